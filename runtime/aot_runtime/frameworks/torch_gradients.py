"""Gradients of operators: the backward kernels that a bundle names, as torch's autograd calls them.

Eager calls with plain tensors use an ``autograd.Function`` around the compiled kernel. Everything that torch traces or
dispatches uses the same two functions, registered with the operator, which costs about 25 us more per call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import torch
from torch.autograd import forward_ad

from ..description.composed import Expression
from ..description.kernel_records import Backward, KernelRecord, Parameter
from ..errors import AotError
from .outputs import SHAPE_FUNCTIONS, rank_of, shape_source
from .torch_autocast import is_autocast

__all__ = ["GradientError", "Gradients", "gradients_of", "is_transformed", "refusal", "register_refusal"]

_GRADIENT = "grad_"
_MAIN = "main_grad"  # of a leaf: the tensor that its gradient is added to, as others who train large models call it
_DETERMINISTIC = "deterministic"  # an input of a backward kernel by this name follows torch's setting
_DETACH = "call it under torch.no_grad(), or pass x.detach()"


class GradientError(AotError, RuntimeError):
    """A gradient was asked of a kernel that cannot compute it."""


class Gradients(ABC):
    """How autograd differentiates one kernel. ``operators`` are those of its bundle, found by name when needed."""

    def __init__(self, record: KernelRecord, operators: Any) -> None:
        self.record, self.operators = record, operators
        self.inputs = [p.name for p in record.parameters if not p.output and p.workspace is None]
        self.outputs = [parameter.name for parameter in record.parameters if parameter.output]
        self.tensors = {parameter.name for parameter in record.parameters if _is_tensor(parameter)}

    ahead = False  # whether the forward computes gradients already: what they depend on is then not saved

    @property
    @abstractmethod
    def shown(self) -> str:
        """What computes the gradients, for errors."""

    @property
    @abstractmethod
    def arriving(self) -> Collection[str]:
        """The gradients of outputs that are read, as ``grad_<output>``."""

    @abstractmethod
    def check(self, name: str) -> None:
        """Raise if the gradient of an input cannot be computed."""

    @abstractmethod
    def saved(self, wanted: list[str]) -> Collection[str]:
        """The inputs and outputs that the gradients of these inputs are computed from."""

    @abstractmethod
    def compute(
        self, values: dict[str, Any], choices: Mapping[str, Any], wanted: list[str], known: dict[str, Any]
    ) -> Mapping[str, Any]:
        """The gradients by input, at least those that are wanted. ``known`` has what :meth:`add_to_main` computed."""

    def sums_of(self, inputs: Mapping[str, Any], wanted: list[str]) -> dict[str, Any]:
        """The tensors, by input, that :meth:`add` adds gradients to instead of returning them."""
        return {}

    def add_to_main(self, name: str, main: Any, values: Mapping[str, Any], known: dict[str, Any]) -> None:
        """Add the gradient of an input to its ``main_grad``. Results of other calls are kept in ``known``."""
        raise NotImplementedError

    def save(self, ctx: Any, inputs: Mapping[str, Any], choices: Mapping[str, Any], results: Any) -> None:
        """Keep what the gradients are computed from; raise if one is wanted that is not computed."""
        wanted = [name for name, wants in zip(self.inputs, ctx.needs_input_grad, strict=False) if wants]
        for name in wanted:
            self.check(name)
        outputs = dict(zip(self.outputs, _as_tuple(results), strict=True))
        values, saved = {**inputs, **outputs}, self.saved(wanted)
        ctx.names = [name for name in values if name in saved and name in self.tensors]
        ctx.save_for_backward(*(values[name] for name in ctx.names))
        ctx.numbers = {name: values[name] for name in values if name in saved and name not in self.tensors}
        ctx.choices = dict(choices)
        ctx.sums = self.sums_of(inputs, wanted)
        ctx.set_materialize_grads(False)  # torch would write zeros for each output that has no gradient
        differentiable = [name for name in self.outputs if _GRADIENT + name in self.arriving]
        ctx.mark_non_differentiable(*(outputs[name] for name in self.outputs if name not in differentiable))
        ctx.kinds = {name: (outputs[name].shape, outputs[name].dtype, outputs[name].device) for name in differentiable}

    def gradients(self, ctx: Any, *arriving: Any) -> tuple[Any, ...]:
        """The gradients of the inputs, None for those that nobody wants."""
        saved = ctx.saved_tensors
        arrived = {name: grad for name, grad in zip(self.outputs, arriving, strict=True) if name in ctx.kinds}
        given = {_GRADIENT + name: _arrived(grad, *ctx.kinds[name]) for name, grad in arrived.items()}
        values = {**dict(zip(ctx.names, saved, strict=True)), **ctx.numbers, **given}
        wanted = [name for name, wants in zip(self.inputs, ctx.needs_input_grad, strict=False) if wants]
        wanted = [name for name in wanted if name not in ctx.sums]
        known: dict[str, Any] = {}
        with torch.no_grad():
            for name, main in ctx.sums.items():
                self.add_to_main(name, main, {**values, **ctx.choices}, known)
            computed = self.compute(values, ctx.choices, wanted, known)
        gradients = tuple(computed[name] if name in wanted else None for name in self.inputs)
        gradients += (None,) * (len(ctx.needs_input_grad) - len(gradients))
        read = (*saved, *arriving)
        if torch.is_grad_enabled() and (self.ahead or any(t is not None and t.requires_grad for t in read)):
            return _differentiated_once(self.shown, gradients)
        return gradients

    def register(self, library: Any, namespace: str) -> None:
        """Tell torch's autograd what to do with the operator itself."""
        torch.library.register_autograd(
            f"{namespace}::{self.record.name}",
            self.gradients,
            setup_context=self._set_up_with_choices if self.record.choices else self._set_up,
            lib=_Intercepted(library, self._intercepted),
        )

    def _intercepted(self, below: Callable[..., Any], keyset: Any, *inputs: Any, **choices: Any) -> Any:
        """What autograd calls: torch's own kernel would lose derivatives in forward mode, and does not split calls."""
        _refuse_forward(self.record.name, inputs)
        if self.is_split(inputs, choices):
            return self.split(inputs, choices)
        return below(keyset, *inputs, **choices)

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
            if self.is_split(inputs, choices):
                return self.split(inputs, choices)
            try:
                return function.apply(*inputs, *(choices[name] for name in names))
            except RuntimeError:
                if not is_transformed():
                    raise
                return operator(*inputs, **choices)  # nothing has run

        return call

    def is_split(self, inputs: tuple[Any, ...], choices: Mapping[str, Any]) -> bool:
        """Whether a call becomes several because it wants gradients."""
        return False

    def split(self, inputs: tuple[Any, ...], choices: Mapping[str, Any]) -> Any:
        """What such a call gives."""
        raise NotImplementedError


class FromKernel(Gradients):
    """One kernel computes the gradients."""

    def __init__(self, record: KernelRecord, named: Backward, backward: KernelRecord, operators: Any) -> None:
        super().__init__(record, operators)
        self.named = named
        self.takes = [p.name for p in backward.parameters if not p.output and p.workspace is None]
        self.gives = [parameter.name for parameter in backward.parameters if parameter.output]
        self.choices = [choice.name for choice in backward.choices]
        # Outputs of the forward that exist for its gradients alone, and become these. A second backward pass over the same
        # graph then fails: torch sees that what it saved was overwritten.
        reused = {p.name: p.may_be[0] for p in backward.parameters if p.output and p.may_be}
        alone = {name for name in self.outputs if _GRADIENT + name not in self.takes}
        self.reused = reused if set(reused.values()) <= alone and set(reused) == {*self.gives} else {}
        self.ahead = bool(self.reused)

    @property
    def shown(self) -> str:
        return self.named.kernel

    @property
    def arriving(self) -> Collection[str]:
        return self.takes

    def check(self, name: str) -> None:
        getattr(self.operators, self.named.kernel)  # says why, if the backward kernel cannot be called
        if name not in self.named.gradients:
            raise _no_gradient(self.record.name, name)

    def saved(self, wanted: list[str]) -> Collection[str]:
        return self.named.saves

    def compute(
        self, values: dict[str, Any], choices: Mapping[str, Any], wanted: list[str], known: dict[str, Any]
    ) -> Mapping[str, Any]:
        values.setdefault(_DETERMINISTIC, torch.are_deterministic_algorithms_enabled())
        taken = {name: values[name] for name in self.takes if name in values}  # the others have defaults
        chosen = {name: choices[name] for name in self.choices}
        operator = getattr(self.operators, self.named.kernel)
        if self.reused and _is_quiet(tuple(taken.values())) and not is_transformed():
            computed = {name: values[source] for name, source in self.reused.items()}
            operator.out(**taken, **chosen, **computed)
        else:
            computed = dict(zip(self.gives, _as_tuple(operator(**taken, **chosen)), strict=True))
        return {name: computed[_GRADIENT + name] for name in self.named.gradients}


class FromCalls(Gradients):
    """Calls of kernels compute the gradients, each for itself; what two of them share is computed once."""

    def __init__(self, record: KernelRecord, composed: Backward, operators: Any) -> None:
        super().__init__(record, operators)
        self.composed = composed
        self.expressions = {
            name: Expression(text) for name, text in zip(composed.gradients, composed.calls, strict=True)
        }
        self.adds = {name: Expression(text) for name, _, text in (added.partition("=") for added in composed.adds)}
        self.replacement = Expression(composed.split) if composed.split else None
        self.defaults = {p.name: p.default for p in record.parameters if p.has_default and not p.output}
        self.chosen = {choice.name: choice.default for choice in record.choices}
        (first, *_) = (parameter for parameter in record.parameters if parameter.output)
        source = shape_source(str(first.shape), self.inputs)
        self.shape = eval(f"lambda {', '.join(self.inputs)}: {source}", dict(SHAPE_FUNCTIONS))

    @property
    def shown(self) -> str:
        return f"the gradient of {self.record.name}"

    @property
    def arriving(self) -> Collection[str]:
        return {name for expression in self.expressions.values() for name in expression.names}

    def check(self, name: str) -> None:
        if name not in self.expressions:
            raise _no_gradient(self.record.name, name)
        self._check_built(self.expressions[name], name)

    def _check_built(self, expression: Expression, name: str) -> None:
        for kernel in expression.kernels:
            if kernel not in self.operators:
                raise GradientError(
                    f"{self.record.name} has no gradient of `{name}` here: {kernel} was not built",
                    hint=f"build it with `--kernel {kernel}`, or {_DETACH}",
                )

    def saved(self, wanted: list[str]) -> Collection[str]:
        return {read for name in wanted for read in self.expressions[name].names}

    def compute(
        self, values: dict[str, Any], choices: Mapping[str, Any], wanted: list[str], known: dict[str, Any]
    ) -> Mapping[str, Any]:
        values = {**values, **choices}
        return {name: self.expressions[name].evaluate(values, self._kernel, known) for name in wanted}

    def _kernel(self, name: str) -> Any:
        return getattr(self.operators, name)

    def sums_of(self, inputs: Mapping[str, Any], wanted: list[str]) -> dict[str, Any]:
        built = [name for name in wanted if name in self.adds and self.adds[name].kernels <= {*self.operators}]
        found = {name: getattr(inputs[name], _MAIN, None) for name in built}
        return {name: main for name, main in found.items() if main is not None and main.ndim == self._added_rank(name)}

    def _added_rank(self, name: str) -> int:
        """The rank of what a kernel adds: of a batch of weights, or of one."""
        record = self.operators._bundle._record(self.adds[name].last)
        return rank_of(str(next(parameter.shape for parameter in record.parameters if parameter.output)))

    def add_to_main(self, name: str, main: Any, values: Mapping[str, Any], known: dict[str, Any]) -> None:
        added = self.adds[name]

        def adding(kernel: str) -> Callable[..., Any]:
            one = self._kernel(kernel)
            return partial(one.out, out=main) if kernel == added.last else one

        added.evaluate({**values, _MAIN: main}, adding, known)

    def is_split(self, inputs: tuple[Any, ...], choices: Mapping[str, Any]) -> bool:
        return (
            self.composed.is_split({**self.chosen, **choices})
            and torch.is_grad_enabled()
            and any(isinstance(item, torch.Tensor) and item.requires_grad for item in inputs)
        )

    def split(self, inputs: tuple[Any, ...], choices: Mapping[str, Any]) -> Any:
        assert self.replacement is not None
        given = {**self.defaults, **dict(zip(self.inputs, inputs, strict=False))}
        wanted = next(n for n, x in given.items() if isinstance(x, torch.Tensor) and x.requires_grad)
        self._check_built(self.replacement, wanted)
        result = self.replacement.evaluate({**given, **self.chosen, **choices}, self._kernel, {})
        return result.reshape(self.shape(**given))  # of a batch, whose rows a kernel took as those of a matrix


def _no_gradient(kernel: str, name: str) -> GradientError:
    return GradientError(f"{kernel} computes no gradient of `{name}`, which requires one", hint=f"pass {name}.detach()")


class _Intercepted:
    """A library of torch for ``register_autograd``, which registers another kernel: it may call the one that torch made."""

    def __init__(self, library: Any, kernel: Callable[..., Any]) -> None:
        self._library, self._kernel = library, kernel

    def impl(self, name: str, below: Callable[..., Any], key: str, *, with_keyset: bool) -> None:
        assert with_keyset
        self._library.impl(name, partial(self._kernel, below), key, with_keyset=True)


def register_refusal(library: Any, operator: str, kernel: Callable[..., Any]) -> None:
    """Register what torch's autograd calls for an operator without gradients: it refuses, or calls ``below(keyset, ...)``."""
    torch.library.register_autograd(operator, _no_backward, lib=_Intercepted(library, kernel))


def _no_backward(ctx: Any, *arriving: Any) -> Any:
    raise AssertionError("a gradient was not refused")


def _function(plan: Gradients, compute: Callable[[], Callable[..., Any]]) -> Any:
    count, names = len(plan.inputs), [choice.name for choice in plan.record.choices]

    # With `setup_context`, which transforms need, a call takes 35 us more: torch inspects the signature each time.
    def forward(ctx: Any, *arguments: Any) -> Any:
        inputs, choices = arguments[:count], dict(zip(names, arguments[count:], strict=True))
        results = compute()(*inputs, **choices)  # grad mode is off in here, so this is the compiled kernel itself
        plan.save(ctx, dict(zip(plan.inputs, inputs, strict=True)), choices, results)
        return results

    members = {"forward": staticmethod(forward), "backward": staticmethod(plan.gradients)}
    return type(f"{plan.record.name}_function", (torch.autograd.Function,), members)


class _Probe(torch.autograd.Function):  # type: ignore[misc]  # torch is not installed where types are checked
    @staticmethod
    def forward(ctx: Any) -> None:
        pass


def is_transformed() -> bool:
    """Whether a transform of ``torch.func`` is active: torch then refuses functions without ``setup_context``."""
    try:
        _Probe.apply()
    except RuntimeError:
        return True
    return False


def _is_quiet(inputs: tuple[Any, ...]) -> bool:
    """Whether tensors are plain, and no mode is active but those of dispatch: these see what a function calls."""
    exact = (torch.Tensor, torch.nn.Parameter)
    return (
        all(type(item) in exact for item in inputs if isinstance(item, torch.Tensor))
        and not is_autocast()
        and not (torch.jit.is_tracing() or torch.overrides.has_torch_function(inputs))
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
    named = record.backward
    if named is not None and not named.kernel:
        return FromCalls(record, named, operators)
    if named is None or named.kernel not in bundle.kernels:
        return None
    backward = bundle._record(named.kernel)
    return None if _misfit(record, named, backward) else FromKernel(record, named, backward, operators)


def _misfit(record: KernelRecord, named: Backward, backward: KernelRecord) -> str:
    """What is wrong if two builds with different declarations were joined; "" if nothing is."""
    arriving = {_GRADIENT + parameter.name for parameter in record.parameters if parameter.output}
    known = {*arriving, *named.saves}
    declared = {parameter.name for parameter in record.parameters}
    read = [p for p in backward.parameters if not p.output and p.workspace is None]
    unknown = [p.name for p in read if p.name not in known and (p.name in declared or not p.has_default)]
    written = {parameter.name for parameter in backward.parameters if parameter.output}
    unwritten = [name for name in named.gradients if _GRADIENT + name not in written]
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
    """Raise if an argument has a derivative that is computed forward: torch would take the result for a constant."""
    tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
    if any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors):
        raise GradientError(
            f"{kernel} has no derivative in forward mode", hint="use torch's own operation there, or pass x.detach()"
        )


def _why_none(record: KernelRecord, bundle: Any) -> tuple[str, str]:
    if record.backward is None:
        return "has no backward", _DETACH
    if record.backward.kernel:
        name = record.backward.kernel
        if name not in bundle.kernels:
            reason = f"has no backward in bundle {bundle.name!r}: {name} was not built"
            return reason, f"build it with `--kernel {name}`, or {_DETACH}"
        problem = _misfit(record, record.backward, bundle._record(name))
        if problem:
            return f"has a backward that was built for another declaration ({name}: {problem})", "rebuild both kernels"
    inputs = ", ".join(parameter.name for parameter in record.parameters if not parameter.output)
    return "has no gradient if it writes into a tensor of yours", f"call {record.name}({inputs}) as torch's operator"


def _arrived(gradient: Any, shape: Any, dtype: Any, device: Any) -> Any:
    """A gradient as kernels take it; zeros if nobody has used this output."""
    return torch.zeros(shape, dtype=dtype, device=device) if gradient is None else _contiguous(gradient)


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
