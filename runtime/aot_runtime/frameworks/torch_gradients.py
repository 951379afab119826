"""Gradients of operators: the backward kernels that a bundle names, as torch's autograd calls them.

Eager calls with plain tensors use an ``autograd.Function`` around the compiled kernel. Everything that torch traces or
dispatches uses the same two functions, registered with the operator, which costs about 25 us more per call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch.autograd import forward_ad

from ..description.kernel_records import KernelRecord, Parameter
from ..errors import AotError

__all__ = ["GradientError", "Gradients", "gradients_of", "refusal"]

_GRADIENT = "grad_"
_DETERMINISTIC = "deterministic"  # an input of a backward kernel by this name follows torch's setting
_DETACH = "call it under torch.no_grad(), or pass x.detach()"


class GradientError(AotError, RuntimeError):
    """A gradient was asked of a kernel that cannot compute it."""


class Gradients:
    """How autograd differentiates one kernel. ``operators`` are those of its bundle, found by name when needed."""

    def __init__(self, record: KernelRecord, backward: KernelRecord, operators: Any) -> None:
        assert record.backward is not None
        self.record, self.named = record, record.backward
        self.inputs = [p.name for p in record.parameters if not p.output and p.workspace is None]
        self.outputs = [parameter.name for parameter in record.parameters if parameter.output]
        tensors = {parameter.name for parameter in record.parameters if _is_tensor(parameter)}
        self.saved_tensors = [name for name in self.named.saves if name in tensors]
        self.saved_numbers = [name for name in self.named.saves if name not in tensors]
        self.takes = [p.name for p in backward.parameters if not p.output and p.workspace is None]
        self.gives = [parameter.name for parameter in backward.parameters if parameter.output]
        self.choices = [choice.name for choice in backward.choices]
        self.operators = operators

    def save(self, ctx: Any, inputs: Mapping[str, Any], choices: Mapping[str, Any], results: Any) -> None:
        """Keep what the backward kernel reads; raise if a gradient is wanted that it does not compute."""
        getattr(self.operators, self.named.kernel)  # says why, if the backward kernel cannot be called
        for name, wanted in zip(self.inputs, ctx.needs_input_grad, strict=False):
            if wanted and name not in self.named.gradients:
                raise GradientError(
                    f"{self.record.name} computes no gradient of `{name}`, which requires one",
                    hint=f"pass {name}.detach()",
                )
        outputs = dict(zip(self.outputs, _as_tuple(results), strict=True))
        values = {**inputs, **outputs}
        ctx.save_for_backward(*(values[name] for name in self.saved_tensors))
        ctx.numbers = {name: values[name] for name in self.saved_numbers}
        ctx.choices = {name: choices[name] for name in self.choices}
        ctx.mark_non_differentiable(*(outputs[name] for name in self.outputs if _GRADIENT + name not in self.takes))

    def gradients(self, ctx: Any, *arriving: Any) -> tuple[Any, ...]:
        """The gradients of the inputs, None for those that nobody wants."""
        saved = ctx.saved_tensors
        given = {_GRADIENT + name: _contiguous(grad) for name, grad in zip(self.outputs, arriving, strict=True)}
        values = {**dict(zip(self.saved_tensors, saved, strict=True)), **ctx.numbers, **given}
        values.setdefault(_DETERMINISTIC, torch.are_deterministic_algorithms_enabled())
        compute = getattr(self.operators, self.named.kernel)
        with torch.no_grad():
            taken = {name: values[name] for name in self.takes if name in values}  # the others have defaults
            results = _as_tuple(compute(**taken, **ctx.choices))
        computed = dict(zip(self.gives, results, strict=True))
        wanted = zip(self.inputs, ctx.needs_input_grad, strict=False)
        gradients = tuple(computed.get(_GRADIENT + name) if wants else None for name, wants in wanted)
        gradients += (None,) * (len(ctx.needs_input_grad) - len(gradients))
        if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (*saved, *arriving)):
            return _differentiated_once(self.named.kernel, gradients)
        return gradients

    def register(self, library: Any, namespace: str) -> None:
        """Tell torch's autograd what to do with the operator itself."""
        torch.library.register_autograd(
            f"{namespace}::{self.record.name}",
            self.gradients,
            setup_context=self._set_up_with_choices if self.record.choices else self._set_up,
            lib=_NoForwardMode(library),
        )

    def _set_up(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        self.save(ctx, dict(zip(self.inputs, inputs, strict=True)), {}, output)

    def _set_up_with_choices(
        self, ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: Mapping[str, Any], output: Any
    ) -> None:
        self.save(ctx, dict(zip(self.inputs, inputs, strict=True)), keyword_only_inputs, output)

    def calling(self, operator: Callable[..., Any], compute: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
        """What calls the operator, or an ``autograd.Function`` around ``compute()`` for plain tensors in eager mode.

        With grad mode off, ``compute()`` has called this because it cannot take the arguments: the operator answers.
        """
        function = _function(self, compute)
        names = [choice.name for choice in self.record.choices]
        is_compiling, is_quiet, wants_gradients = torch.compiler.is_compiling, _is_quiet, torch.is_grad_enabled

        def call(*inputs: Any, **choices: Any) -> Any:
            _refuse_forward(self.record.name, inputs)
            if is_compiling() or not wants_gradients() or not is_quiet(inputs):
                return operator(*inputs, **choices)
            return function.apply(*inputs, *(choices[name] for name in names))

        return call


class _NoForwardMode:
    """A library of torch whose kernels for autograd refuse derivatives in forward mode.

    Those of ``register_autograd`` would lose them: unless a tensor requires a gradient, they only call the operator.
    """

    def __init__(self, library: Any) -> None:
        self._library = library

    def impl(self, name: str, kernel: Callable[..., Any], key: str, *, with_keyset: bool) -> None:
        def refusing(keyset: Any, *inputs: Any, **choices: Any) -> Any:
            _refuse_forward(name, inputs)
            return kernel(keyset, *inputs, **choices)

        assert with_keyset
        self._library.impl(name, refusing, key, with_keyset=True)


def _function(plan: Gradients, compute: Callable[[], Callable[..., Any]]) -> Any:
    count, names = len(plan.inputs), [choice.name for choice in plan.record.choices]

    def forward(ctx: Any, *arguments: Any) -> Any:
        inputs, choices = arguments[:count], dict(zip(names, arguments[count:], strict=True))
        results = compute()(*inputs, **choices)  # grad mode is off in here, so this is the compiled kernel itself
        plan.save(ctx, dict(zip(plan.inputs, inputs, strict=True)), choices, results)
        return results

    members = {"forward": staticmethod(forward), "backward": staticmethod(plan.gradients)}
    return type(f"{plan.record.name}_function", (torch.autograd.Function,), members)


def _is_quiet(inputs: tuple[Any, ...]) -> bool:
    """Whether tensors are plain, and neither a mode nor a transform is active."""
    exact = (torch.Tensor, torch.nn.Parameter)
    return (
        all(type(item) in exact for item in inputs if isinstance(item, torch.Tensor))
        and not torch._C._is_tracing()
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._len_torch_function_stack()
        and torch._C._functorch.peek_interpreter_stack() is None
    )


def _differentiated_once(kernel: str, gradients: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same gradients, which raise if somebody differentiates them too."""
    leaves = [gradient.detach().requires_grad_() for gradient in gradients if gradient is not None]
    refusing = iter(_Once.apply(kernel, *leaves))
    return tuple(None if gradient is None else next(refusing) for gradient in gradients)


class _Once(torch.autograd.Function):  # type: ignore[misc]  # torch is not installed where types are checked
    @staticmethod
    def forward(ctx: Any, kernel: str, *gradients: Any) -> Any:
        ctx.kernel = kernel
        return gradients

    @staticmethod
    def backward(ctx: Any, *arriving: Any) -> Any:
        raise GradientError(
            f"{ctx.kernel} has no backward: gradients of gradients cannot be computed",
            hint="use torch's own operation if you differentiate twice",
        )


# Which kernels have gradients, and why others have none.


def gradients_of(record: KernelRecord, bundle: Any, operators: Any) -> Gradients | None:
    """The gradients of a kernel; None if the bundle names no backward for it, or does not have the one it names."""
    if record.backward is None or record.backward.kernel not in bundle.kernels:
        return None
    backward = bundle._record(record.backward.kernel)
    return None if _misfit(record, backward) else Gradients(record, backward, operators)


def _misfit(record: KernelRecord, backward: KernelRecord) -> str:
    """What is wrong if two builds with different declarations were joined; "" if nothing is."""
    assert record.backward is not None
    arriving = {_GRADIENT + parameter.name for parameter in record.parameters if parameter.output}
    known = {*arriving, *record.backward.saves}
    declared = {parameter.name for parameter in record.parameters}
    read = [p for p in backward.parameters if not p.output and p.workspace is None]
    unknown = [p.name for p in read if p.name not in known and (p.name in declared or not p.has_default)]
    written = {parameter.name for parameter in backward.parameters if parameter.output}
    unwritten = [name for name in record.backward.gradients if _GRADIENT + name not in written]
    foreign = [c.name for c in backward.choices if c.name not in (choice.name for choice in record.choices)]
    return ", ".join((*unknown, *unwritten, *foreign))


def refusal(record: KernelRecord, bundle: Any) -> Callable[[str, tuple[Any, ...]], None]:
    """A function that raises if one of the tensors requires a gradient that no operator computes."""
    reason, hint = _why_none(record, bundle)

    def refuse(kernel: str, tensors: Collection[Any]) -> None:
        _refuse_forward(kernel, tensors)
        if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors):
            raise GradientError(f"{kernel} {reason}, and an argument requires a gradient", hint=hint)

    return refuse


def _refuse_forward(kernel: str, arguments: Collection[Any]) -> None:
    """Raise if derivatives are computed forward and an argument has one: torch would take the result for a constant."""
    if forward_ad._current_level < 0:
        return
    tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
    if any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors):
        raise GradientError(
            f"{kernel} has no derivative in forward mode", hint="use torch's own operation there, or pass x.detach()"
        )


def _why_none(record: KernelRecord, bundle: Any) -> tuple[str, str]:
    if record.backward is None:
        return "has no backward", _DETACH
    name = record.backward.kernel
    if name not in bundle.kernels:
        reason = f"has no backward in bundle {bundle.name!r}: {name} was not built"
        return reason, f"build it with `--kernel {name}`, or {_DETACH}"
    problem = _misfit(record, bundle._record(name))
    if problem:
        return f"has a backward that was built for another declaration ({name}: {problem})", "rebuild both kernels"
    inputs = ", ".join(parameter.name for parameter in record.parameters if not parameter.output)
    return "has no gradient if it writes into a tensor of yours", f"call {record.name}({inputs}) as torch's operator"


def _contiguous(gradient: Any) -> Any:
    """A gradient may be a view with strides that kernels do not take: that of a sum is one element, expanded.

    Torch calls an empty tensor contiguous whatever its strides are.
    """
    if gradient.numel() == 0:
        return torch.empty_like(gradient, memory_format=torch.contiguous_format)
    return gradient.contiguous()


def _is_tensor(parameter: Parameter) -> bool:
    return parameter.output or parameter.type in ("tensor", "tensor?")


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
