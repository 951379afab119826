"""A declared kernel, and the variants that its grid expands into. Nothing is compiled here, and no GPU is needed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from aot_runtime.arch import Arch
from aot_runtime.core.functions import function_symbol
from aot_runtime.description.kernel_records import Backward, Choice, Parameter

from ..errors import DeclarationError
from ..targets import Target
from .archs import code_for, parse_code
from .arguments import (
    ARGUMENT_TYPES,
    MAX_MADE,
    ActiveClusters,
    Argument,
    Constant,
    Multiprocessors,
    Stream,
    Tensor,
    Tuple,
    is_made,
)
from .signatures import check_call, check_output_dtypes
from .specs import CapturedSpec, Cost, Spec
from .workspace import check_workspace_arguments

__all__ = ["VARIANT_BUDGET", "Kernel", "Variant", "is_label"]

VARIANT_BUDGET = 128
_LABEL = re.compile(r"[A-Za-z0-9]+(_[A-Za-z0-9]+)*")


@dataclass(frozen=True)
class Variant:
    """One point of a kernel's grid for one architecture, with the spec that compiles it."""

    name: str  # rmsnorm__bf16__vector, unique within an architecture
    kernel: Kernel
    arch: Arch
    function: str  # the public function it belongs to: activation__relu
    point: Mapping[str, str]  # axis or choice -> label
    spec: Spec
    written_for: str = ""  # the architecture that its code was written for; "": not known, as of captured code


@dataclass(frozen=True)
class Kernel:
    """A declared kernel."""

    name: str
    doc: str
    parameters: tuple[Parameter, ...]
    archs: tuple[Arch, ...]
    axes: Mapping[str, Mapping[str, Any]]  # name -> label -> value
    choices: Mapping[str, Mapping[str, Any]]
    choice_defaults: Mapping[str, str]
    make: Callable[..., Any]
    origin: str  # file:line
    reference: Callable[..., Any] | None = None
    inputs: Callable[..., Any] | None = None
    cost: Callable[..., Cost] | None = None
    options: str = field(default="")
    backward: Backward | None = None
    captured: dict[str, Any] | None = None  # the call of another library that the kernel answers
    tuned_by: tuple[str, ...] = ()  # expressions of a call that tables tell calls apart by
    variant_budget: int = VARIANT_BUDGET  # for one architecture; a build warns above it
    written_for: Mapping[Arch, Arch] = field(default_factory=dict)  # by architecture: whose code serves it

    def variants(self, arch: Arch) -> tuple[Variant, ...]:
        """All variants for an architecture, in the order in which a call tries them."""
        target = Target.of(arch, code_for(self.written_for, arch))
        variants: dict[str, Variant] = {}
        for point in self._points():
            for variant in self._at(point, target):
                if variant.name in variants:
                    raise DeclarationError(
                        f"{self.origin}: kernel {self.name} gives variant {variant.name} twice, "
                        f"at {variants[variant.name].point} and at {variant.point}",
                        hint="pass a different `label` to each spec of one point",
                    )
                variants[variant.name] = variant
        if not variants:
            raise DeclarationError(
                f"{self.origin}: kernel {self.name} gives no variant for {arch}",
                hint=f"return a spec for some point, or take {arch} out of archs",
            )
        return tuple(variants.values())

    def functions(self) -> tuple[str, ...]:
        """The public functions: one per combination of choices."""
        return tuple(function_symbol(self.name, labels) for labels in product(*self.choices.values()))

    def public_choices(self) -> tuple[Choice, ...]:
        return tuple(
            Choice(name, tuple(values), self.choice_defaults.get(name)) for name, values in self.choices.items()
        )

    def _points(self) -> Iterator[dict[str, str]]:
        grid = {**self.choices, **self.axes}
        for labels in product(*grid.values()):
            yield dict(zip(grid, labels, strict=True))

    def _at(self, point: dict[str, str], target: Target) -> Iterator[Variant]:
        grid = {**self.choices, **self.axes}
        values = {name: grid[name][label] for name, label in point.items()}
        try:
            made = self.make(target, **values)
        except DeclarationError as error:
            raise DeclarationError(
                f"{self.origin}: kernel {self.name} at {point} for {target.arch}: {error.message}", hint=error.hint
            ) from None
        for spec in self._specs(made, point):
            _check_spec(self, spec, point)
            labels = [*point.values(), *([spec.label] if spec.label else [])]
            function = function_symbol(self.name, tuple(point[name] for name in self.choices))
            yield Variant(
                "__".join((self.name, *labels)), self, target.arch, function, point, spec, self._code_of(spec, target)
            )

    def _code_of(self, spec: Spec, target: Target) -> str:
        """The architecture that the code of a spec was written for, if the declaration tells."""
        if not self.written_for:
            return ""
        where = f"{self.origin}: kernel {self.name}"
        return str(parse_code(spec.written_for or target.written_for, target.arch, where))

    def _specs(self, made: Any, point: dict[str, str]) -> list[Spec]:
        specs = [made] if isinstance(made, Spec) else made
        if isinstance(specs, Sequence) and all(isinstance(spec, Spec) for spec in specs):
            return list(specs)
        raise DeclarationError(
            f"{self.origin}: kernel {self.name} returned {made!r} at {point}",
            hint="return an aot.Spec, a list of them, or [] to leave this point out",
        )


def is_label(label: Any) -> bool:
    """Labels are joined by two underscores. Without any inside, a name can be split again in only one way."""
    return isinstance(label, str) and _LABEL.fullmatch(label) is not None


def _check_spec(kernel: Kernel, spec: Spec, point: Mapping[str, str]) -> None:
    where = (
        f"{kernel.origin}: kernel {kernel.name} at {dict(point)}" if point else f"{kernel.origin}: kernel {kernel.name}"
    )
    if not callable(spec.function):
        raise DeclarationError(
            f"{where}: {spec.function!r} is not callable", hint="the first argument of aot.Spec is the jit callable"
        )
    if not isinstance(spec.arguments, Mapping):
        raise DeclarationError(
            f"{where}: the arguments are {spec.arguments!r}", hint="pass a mapping from names to aot.Tensor, ..."
        )
    if spec.label and not is_label(spec.label):
        raise DeclarationError(f"{where}: the label {spec.label!r} cannot be part of a name")
    public = {parameter.name for parameter in kernel.parameters}
    for name, argument in spec.arguments.items():
        _check_argument(where, name, argument, name in public)
    missing = public - spec.arguments.keys()
    if missing:
        raise DeclarationError(f"{where}: no argument for parameter {', '.join(sorted(missing))}")
    made = sum(map(is_made, spec.arguments.values()))
    if made > MAX_MADE:
        raise DeclarationError(f"{where}: {made} optional and single tensors; {MAX_MADE} is the limit")
    check_workspace_arguments(kernel.parameters, spec.arguments, where)
    _check_stream(where, spec)
    if not isinstance(spec, CapturedSpec):  # what another library passed is compiled as it was passed
        check_call(spec, where)
        check_output_dtypes(kernel.parameters, spec, where)


def _check_argument(where: str, name: str, argument: Any, public: bool) -> None:
    supplied = isinstance(argument, (Constant, Multiprocessors, ActiveClusters)) or argument == Stream(explicit=False)
    if not isinstance(argument, ARGUMENT_TYPES):
        raise DeclarationError(
            f"{where}: argument {name} is {argument!r}", hint="use aot.Tensor, aot.Scalar, ..., or None"
        )
    if public and supplied:
        raise DeclarationError(
            f"{where}: {name} is a parameter of the call, but {argument!r} is not passed by the caller"
        )
    if not public and not supplied:
        raise DeclarationError(
            f"{where}: argument {name} is not among the kernel's parameters", hint=f"add aot.In({name!r})"
        )


def _check_stream(where: str, spec: Spec) -> None:
    streams = [argument for argument in spec.arguments.values() if isinstance(argument, Stream)]
    if len(streams) > 1:
        raise DeclarationError(f"{where}: {len(streams)} streams; a launch has one")
    if not streams and not spec.default_stream:
        raise DeclarationError(
            f"{where}: no stream among the arguments, so it would launch on stream 0 whatever the framework's stream is",
            hint="add a stream parameter to the jit function and pass aot.Stream(); or pass default_stream=True",
        )
    if streams == [Stream(explicit=False)] and not any(_has_tensor(item) for item in spec.arguments.values()):
        raise DeclarationError(
            f"{where}: without a tensor the current stream is not known",
            hint="declare a parameter for the stream and pass aot.Stream(explicit=True)",
        )


def _has_tensor(argument: Argument) -> bool:
    if isinstance(argument, Tuple):
        return any(_has_tensor(element) for element in argument.elements)
    return isinstance(argument, Tensor)
