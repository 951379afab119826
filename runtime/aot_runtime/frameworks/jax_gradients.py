"""Gradients of a function of JAX that are calls of other kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ..description.composed import Expression
from ..description.kernel_records import Backward
from ..errors import ArgumentError

__all__ = ["FromCalls"]


class FromCalls:
    """One call of a function. ``arrays`` are the names of what is passed, ``others`` what else expressions may read."""

    def __init__(
        self, function: Any, named: Backward, functions: Any, arrays: list[str], others: Mapping[str, Any]
    ) -> None:
        self.function, self.named, self.functions = function, named, functions
        self.arrays, self.others = arrays, others
        self.outputs = [parameter.name for parameter in function.outputs]
        self.expressions = {name: Expression(text) for name, text in zip(named.gradients, named.calls, strict=True)}

    def differentiable(self, call: Callable[..., Any], chosen: Mapping[str, str]) -> Callable[..., Any]:
        made = jax.custom_vjp(call)
        if self.named.is_split(chosen):
            split = Expression(self.named.split)
            if not split.kernels <= set(self.functions):
                return call

            def replaced(*given: Any) -> Any:
                values = {**self.others, **dict(zip(self.arrays, given, strict=True))}
                shape, _ = self.function.shapes(**{p.name: values[p.name] for p in self.function.inputs})[0]
                return split.evaluate(values, self._kernel, {}).reshape(shape)

            made.defvjp(lambda *given: jax.vjp(replaced, *given), lambda pull, arriving: pull(arriving))
        else:
            made.defvjp(lambda *given: self._forward(call, given), self._gradients, symbolic_zeros=True)
        run: Callable[..., Any] = made
        return run

    def _forward(self, call: Callable[..., Any], given: tuple[Any, ...]) -> tuple[Any, Any]:
        """The results, and what the gradients that are wanted read."""
        wanted = [name for name, primal in zip(self.arrays, given, strict=True) if primal.perturbed]
        for name in wanted:
            self._check(name)
        arrays = [primal.value for primal in given]
        results = call(*arrays)
        outputs = results if isinstance(results, (tuple, list)) else (results,)
        values = {**dict(zip(self.arrays, arrays, strict=True)), **dict(zip(self.outputs, outputs, strict=True))}
        read = {name for one in wanted for name in self.expressions[one].names}
        return results, {name: value if name in read else None for name, value in values.items()}

    def _gradients(self, saved: dict[str, Any], arriving: Any) -> tuple[Any, ...]:
        """The gradients of all arrays; None for those of which not everything was saved, since nobody wants them."""
        arrived = arriving if isinstance(arriving, (tuple, list)) else (arriving,)
        given = {f"grad_{name}": _array(gradient) for name, gradient in zip(self.outputs, arrived, strict=True)}
        values, known = {**self.others, **saved, **given}, dict[str, Any]()
        ready = [
            name
            for name, expression in self.expressions.items()
            if expression.kernels <= set(self.functions)
            and all(values.get(read) is not None for read in expression.names)
        ]
        return tuple(
            self.expressions[name].evaluate(values, self._kernel, known) if name in ready else None
            for name in self.arrays
        )

    def _kernel(self, name: str) -> Any:
        return getattr(self.functions, name)

    def _check(self, name: str) -> None:
        kernel = self.function.record.name
        if name not in self.expressions:
            raise ArgumentError(
                f"{kernel} computes no gradient of `{name}`", hint=f"pass jax.lax.stop_gradient({name})"
            )
        for called in self.expressions[name].kernels:
            if called not in self.functions:
                raise ArgumentError(
                    f"{kernel} has no gradient of `{name}` here: {called} was not built",
                    hint=f"build it with `--kernel {called}`",
                )


def _array(gradient: Any) -> Any:
    """A gradient as an array: of an output that nobody used, JAX passes none."""
    if isinstance(gradient, jax.custom_derivatives.SymbolicZero):
        return jnp.zeros(gradient.shape, gradient.dtype)
    return gradient
