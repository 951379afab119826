"""What a call must satisfy for a variant to take it, derived from the declared arguments.

Everything is one form: an integer read off the arguments (:class:`Subject`) lies in an interval. The
compiled entry, or dispatch just before it, checks most of this, in the same sense; ``enforced`` marks what
neither does.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ..declare import expressions
from ..declare.arguments import (
    ActiveClusters,
    Argument,
    Constant,
    Dim,
    Multiprocessors,
    Pointer,
    Scalar,
    Stream,
    Tensor,
    Tuple,
)
from ..declare.expressions import Compare, Element, Expression, Logic, Name, Negation
from ..declare.kernel import Kernel, Spec, Variant
from ..errors import DeclarationError
from ..kinds import BOOL, FLOAT, HANDLE, INT, NONE, TENSOR, TUPLE

__all__ = ["HIGHEST", "LOWEST", "Region", "Requirement", "Step", "Subject", "VariantTable", "variant_table"]

LOWEST = -(2**63) + 1  # -2**63 stands for "not there"
HIGHEST = 2**63 - 1
INT32_MAX = 2**31 - 1

# Kinds of argument and sources: numbers of runtime/src/aot_tables.h.
SOURCE_MULTIPROCESSORS, SOURCE_ACTIVE_CLUSTERS = 0x80, 0x81
STREAM_FROM_ENVIRONMENT, STREAM_DEFAULT = -1, -2
MAX_PROGRAM_DEPTH = 16
CUDA_DEVICE = 2

# DLPack's (code, bits) of each dtype.
DTYPE_CODES = {
    "i8": (0, 8), "i16": (0, 16), "i32": (0, 32), "i64": (0, 64), "u8": (1, 8), "u16": (1, 16), "u32": (1, 32),
    "u64": (1, 64), "f16": (2, 16), "f32": (2, 32), "f64": (2, 64), "bf16": (4, 16), "bool": (6, 8),
    "f8e4m3": (10, 8), "f8e5m2": (12, 8), "f8e8m0": (14, 8),
}  # fmt: skip

Path = tuple[int, ...]  # of an argument: its position, then positions within tuples


@dataclass(frozen=True)
class Step:
    """One instruction of a stack program."""

    operation: str
    path: Path = ()
    dim: int = 0
    value: int = 0


@dataclass(frozen=True)
class Region:
    """A tensor whose memory a call touches; ``may_be`` are the outputs that may be this very tensor, as bits."""

    path: Path
    is_output: bool
    may_be: int = 0
    label: str = field(default="", compare=False)


@dataclass(frozen=True)
class Subject:
    """An integer that can be read off the arguments; ``operation`` as in ``aot_tables.h``, in lower case."""

    operation: str
    path: Path
    dim: int = 0
    parameter: int = 0
    other: Path = ()
    other_dim: int = 0
    other_is_stride: bool = False
    steps: tuple[Step, ...] = ()
    regions: tuple[Region, ...] = ()
    # How messages name it; two subjects that read the same integer are the same, whatever they are called.
    label: str = field(default="", compare=False)
    other_label: str = field(default="", compare=False)


@dataclass(frozen=True)
class Requirement:
    subject: Subject
    low: int
    high: int
    enforced: bool = field(default=False, compare=False)  # only the tree checks this


@dataclass(frozen=True)
class VariantTable:
    """A variant as the dispatcher needs it; what depends on compiling it is added later."""

    name: str
    function: str
    requirements: tuple[Requirement, ...]
    paths: tuple[Path, ...]  # elements of tuples that the requirements look at, parents first
    sources: tuple[int, ...] | None  # None: the public arguments in their order
    stream: int
    entry_arguments: int
    uses_tensors: bool


def variant_table(variant: Variant) -> VariantTable:
    """Derive a variant's table from its spec."""
    deriver = _Deriver(variant.kernel, variant.spec)
    sources, stream = _sources(variant.kernel, variant.spec)
    identity = sources == tuple(range(len(variant.kernel.parameters)))
    return VariantTable(
        name=variant.name,
        function=variant.function,
        requirements=tuple(_merged(deriver.derive())),
        paths=tuple(deriver.paths),
        sources=None if identity else sources,
        stream=stream,
        entry_arguments=len(sources),
        uses_tensors=deriver.uses_tensors,
    )


def _merged(requirements: Iterator[Requirement]) -> list[Requirement]:
    """One interval per subject: guards may narrow what the arguments already ask."""
    merged: dict[Subject, Requirement] = {}
    for new in requirements:
        old = merged.get(new.subject, new)
        low, high = max(old.low, new.low), min(old.high, new.high)
        merged[new.subject] = Requirement(old.subject, low, high, old.enforced or new.enforced)
    return list(merged.values())


def _sources(kernel: Kernel, spec: Spec) -> tuple[tuple[int, ...], int]:
    """Where each argument of the compiled entry comes from, and the stream."""
    positions = {parameter.name: i for i, parameter in enumerate(kernel.parameters)}
    sources: list[int] = []
    stream = STREAM_DEFAULT
    for name, argument in spec.arguments.items():
        if isinstance(argument, Multiprocessors):
            sources.append(SOURCE_MULTIPROCESSORS)
        elif isinstance(argument, ActiveClusters):
            sources.append(SOURCE_ACTIVE_CLUSTERS)
        elif isinstance(argument, Stream) and not argument.explicit:
            stream = STREAM_FROM_ENVIRONMENT
        elif not isinstance(argument, Constant):
            sources.append(positions[name])
        if isinstance(argument, Stream) and argument.explicit:
            stream = positions[name]
    return tuple(sources), stream


@dataclass(frozen=True)
class _Place:
    """Where a symbolic extent was first seen."""

    path: Path
    dim: int
    is_stride: bool
    label: str


class _Deriver:
    def __init__(self, kernel: Kernel, spec: Spec) -> None:
        self.kernel = kernel
        self.spec = spec
        self.places: dict[str, _Place] = {}
        self.dims: dict[str, Dim] = {}
        self.tensors: dict[str, tuple[Path, Tensor]] = {}
        self.scalars: dict[str, tuple[Path, Scalar]] = {}
        self.paths: list[Path] = []
        self.uses_tensors = False

    def derive(self) -> Iterator[Requirement]:
        positions = {parameter.name: i for i, parameter in enumerate(self.kernel.parameters)}
        for name, argument in self.spec.arguments.items():
            if name in positions:
                yield from self._argument(argument, (positions[name],), name)
        for guard in self.spec.guards:
            yield from self._guard(self._parsed(guard))
        regions = self._regions()
        if any(region.is_output for region in regions):
            # The last: whoever reads a refusal should hear of what the arguments are before where they lie.
            # Dispatch asks for this before it calls the entry, apart from the tree, in fewer instructions.
            yield Requirement(Subject("overlap", (), regions=regions, label="memory"), 0, 0)

    def _regions(self) -> tuple[Region, ...]:
        """The tensors of a call, outputs first."""
        outputs = [parameter for parameter in self.kernel.parameters if parameter.output]
        written = [
            (path, label, parameter) for parameter in outputs for path, label in self._tensors_of(parameter.name)
        ]
        regions = [Region(path, True, label=label) for path, label, _ in written]
        for parameter in self.kernel.parameters:
            if not parameter.output:
                bits = sum(1 << i for i, (*_, output) in enumerate(written) if parameter.name in output.may_be)
                regions += [Region(path, False, bits, label) for path, label in self._tensors_of(parameter.name)]
        return tuple(regions)

    def _tensors_of(self, parameter: str) -> list[tuple[Path, str]]:
        """The tensor that a parameter is, or those inside its tuple."""
        position = [item.name for item in self.kernel.parameters].index(parameter)
        return [(path, label) for label, (path, _) in self.tensors.items() if path[0] == position]

    def _argument(self, argument: Argument, path: Path, label: str) -> Iterator[Requirement]:
        if len(path) > 1:
            self.paths.append(path)
        if argument is None:
            yield _kind(path, label, NONE, NONE)
        elif isinstance(argument, Tensor):
            yield from self._tensor(argument, path, label)
        elif isinstance(argument, Scalar):
            yield from self._scalar(argument, path, label)
        elif isinstance(argument, Tuple):
            yield from self._tuple(argument, path, label)
        elif isinstance(argument, (Pointer, Stream)):
            yield _kind(path, label, INT, HANDLE)

    def _tuple(self, argument: Tuple, path: Path, label: str) -> Iterator[Requirement]:
        yield _kind(path, label, TUPLE, TUPLE)
        length = len(argument.elements)
        yield Requirement(Subject("length", path, label=f"len({label})"), length, length)
        for index, element in enumerate(argument.elements):
            yield from self._argument(element, (*path, index), f"{label}[{index}]")

    def _scalar(self, argument: Scalar, path: Path, label: str) -> Iterator[Requirement]:
        self.scalars[label] = (path, argument)
        if "f" in argument.dtype:
            yield _kind(path, label, FLOAT, INT)
            return
        yield _kind(path, label, BOOL, INT)
        if argument.dtype == "i32":
            yield Requirement(Subject("integer", path, label=label), -INT32_MAX - 1, INT32_MAX)

    def _tensor(self, tensor: Tensor, path: Path, label: str) -> Iterator[Requirement]:
        self.uses_tensors = True
        self.tensors[label] = (path, tensor)
        code, bits = DTYPE_CODES[tensor.dtype]
        packed = bits << 32 | 1 << 8 | code
        yield _kind(path, label, TENSOR, TENSOR)
        yield Requirement(Subject("device_type", path, label=label), CUDA_DEVICE, CUDA_DEVICE)
        yield Requirement(Subject("device_index", path, label=label), 0, 0)
        # The entry takes signed for unsigned integers and the reverse; we do not.
        yield Requirement(Subject("dtype", path, label=f"{label}.dtype"), packed, packed, enforced=code < 2)
        rank = len(tensor.shape)
        yield Requirement(Subject("ndim", path, label=f"{label}.ndim"), rank, rank)
        for dim, extent in enumerate(tensor.shape):
            yield from self._extent(extent, path, dim, f"{label}.shape[{dim}]")
        for dim, stride in enumerate(tensor.layout(label)):
            yield from self._stride(stride, path, dim, f"{label}.strides[{dim}]")
        if tensor.alignment > 1:
            yield Requirement(Subject("address_modulo", path, parameter=tensor.alignment, label=label), 0, 0)

    def _extent(self, extent: int | Dim, path: Path, dim: int, label: str) -> Iterator[Requirement]:
        plain = Subject("extent", path, dim, label=label)
        if isinstance(extent, int):
            yield Requirement(plain, extent, extent)
        elif (place := self._known(extent)) is not None:
            yield Requirement(_against(plain, "extent_off", place), 0, 0)
        else:
            self._remember(extent, _Place(path, dim, False, label))
            yield Requirement(plain, 0, INT32_MAX if extent.bits == 32 else HIGHEST)
            if extent.divisible_by > 1:
                yield Requirement(replace(plain, operation="extent_modulo", parameter=extent.divisible_by), 0, 0)

    def _stride(self, stride: int | Dim, path: Path, dim: int, label: str) -> Iterator[Requirement]:
        plain = Subject("stride", path, dim, label=label)
        if isinstance(stride, int):
            yield Requirement(replace(plain, operation="stride_off", parameter=stride), 0, 0)
        elif (place := self._known(stride)) is not None:
            yield Requirement(_against(plain, "stride_off_by", place), 0, 0)
        else:
            self._remember(stride, _Place(path, dim, True, label))
            if stride.bits == 32:
                yield Requirement(plain, -INT32_MAX - 1, INT32_MAX)
            if stride.divisible_by > 1:
                yield Requirement(replace(plain, operation="stride_modulo", parameter=stride.divisible_by), 0, 0)

    def _known(self, dim: Dim) -> _Place | None:
        known = self.dims.get(dim.name)
        if known is not None and known != dim:
            raise DeclarationError(
                f"{self.kernel.origin}: kernel {self.kernel.name}: extent {dim.name} is declared as {known} and as {dim}"
            )
        return self.places.get(dim.name)

    def _remember(self, dim: Dim, place: _Place) -> None:
        self.dims[dim.name] = dim
        self.places[dim.name] = place

    def _parsed(self, guard: str) -> Expression:
        if not isinstance(guard, str):
            raise self._error(f"{guard!r} is not a text")
        try:
            return expressions.parse(guard)
        except DeclarationError as error:
            raise self._error(error.message, hint=error.hint) from None

    def _guard(self, guard: Expression) -> Iterator[Requirement]:
        if isinstance(guard, Logic) and guard.operator == "and":
            yield from self._guard(guard.left)
            yield from self._guard(guard.right)
        elif isinstance(guard, Compare) and (interval := self._interval(guard)) is not None:
            yield interval
        else:
            yield Requirement(self._program("condition", guard), 1, 1, enforced=True)

    def _interval(self, guard: Compare) -> Requirement | None:
        """``m <= 64`` as an interval of ``m``; None where neither side is a number."""
        left, right = guard.left, guard.right
        if isinstance(right, expressions.Constant):
            subject, bound = self._subject(left), self._bound(left, right)
            bounds = {"<": (LOWEST, bound - 1), "<=": (LOWEST, bound), "==": (bound, bound)}
        elif isinstance(left, expressions.Constant):
            subject, bound = self._subject(right), self._bound(right, left)
            bounds = {"<": (bound + 1, HIGHEST), "<=": (bound, HIGHEST), "==": (bound, bound)}
        else:
            return None
        if guard.operator not in bounds:
            return None
        low, high = bounds[guard.operator]
        return Requirement(subject, low, high, enforced=True)

    def _bound(self, side: Expression, constant: expressions.Constant) -> int:
        if isinstance(side, Name) and self._is_float(side.name):
            return ordered_float(float(constant.value))
        if isinstance(constant.value, float):
            raise self._error(f"{constant.value} is compared with an integer: {expressions.render(side)}")
        return constant.value

    def _is_float(self, name: str) -> bool:
        return name in self.scalars and "f" in self.scalars[name][1].dtype

    def _subject(self, expression: Expression) -> Subject:
        label = expressions.render(expression)
        if isinstance(expression, Name) and self._is_float(expression.name):
            return Subject("float", self.scalars[expression.name][0], label=label)
        if isinstance(expression, (Name, Element)):
            step = self._leaf(expression)
            return Subject(step.operation, step.path, step.dim, label=label)
        return self._program("program", expression)

    def _leaf(self, expression: Name | Element) -> Step:
        if isinstance(expression, Element):
            path, tensor = self._tensor_named(expression)
            return Step("extent" if expression.field == "shape" else "stride", path, expression.dim % len(tensor.shape))
        if expression.name in self.places:
            place = self.places[expression.name]
            return Step("stride" if place.is_stride else "extent", place.path, place.dim)
        if expression.name in self.scalars and not self._is_float(expression.name):
            return Step("integer", self.scalars[expression.name][0])
        known = [*self.places, *self.scalars]
        raise self._error(
            f"{expression.name!r} is neither an extent nor an integer argument", hint=f"known: {', '.join(known)}"
        )

    def _tensor_named(self, element: Element) -> tuple[Path, Tensor]:
        if element.parameter not in self.tensors:
            raise self._error(f"{element.parameter!r} is not a tensor")
        path, tensor = self.tensors[element.parameter]
        if not -len(tensor.shape) <= element.dim < len(tensor.shape):
            raise self._error(f"{element.parameter} has rank {len(tensor.shape)}, no dimension {element.dim}")
        return path, tensor

    def _program(self, operation: str, expression: Expression) -> Subject:
        steps = tuple(self._steps(expression))
        if _depth(steps) > MAX_PROGRAM_DEPTH:
            raise self._error(f"{expressions.render(expression)!r} is nested too deeply")
        return Subject(operation, (), steps=steps, label=expressions.render(expression))

    def _steps(self, expression: Expression) -> Iterator[Step]:
        if isinstance(expression, expressions.Constant):
            if isinstance(expression.value, float):
                raise self._error(
                    f"{expression.value}: floats can only be compared, with a float argument on the other side"
                )
            yield Step("constant", value=expression.value)
        elif isinstance(expression, (Name, Element)):
            yield self._leaf(expression)
        elif isinstance(expression, Negation):
            yield from self._steps(expression.operand)
            yield Step("not")
        else:
            yield from self._steps(expression.left)
            yield from self._steps(expression.right)
            yield Step(_OPERATIONS[expression.operator])

    def _error(self, message: str, hint: str | None = None) -> DeclarationError:
        return DeclarationError(f"{self.kernel.origin}: kernel {self.kernel.name}: guard: {message}", hint=hint)


_OPERATIONS = {
    "+": "add", "-": "subtract", "*": "multiply", "//": "floor_divide", "%": "modulo", "min": "minimum",
    "max": "maximum", "<": "less", "<=": "less_equal", "==": "equal", "!=": "not_equal", "and": "and", "or": "or",
}  # fmt: skip
_PUSHES = ("constant", "extent", "stride", "integer")


def _depth(steps: tuple[Step, ...]) -> int:
    depth = highest = 0
    for step in steps:
        depth += 1 if step.operation in _PUSHES else 0 if step.operation == "not" else -1
        highest = max(highest, depth)
    return highest


def _kind(path: Path, label: str, low: int, high: int) -> Requirement:
    return Requirement(Subject("kind", path, label=label), low, high)


def _against(subject: Subject, operation: str, place: _Place) -> Subject:
    return replace(
        subject,
        operation=operation,
        other=place.path,
        other_dim=place.dim,
        other_is_stride=place.is_stride,
        other_label=place.label,
    )


def ordered_float(value: float) -> int:
    """The image of a float among the integers that keeps the order; as ``ordered_float`` in C."""
    if value == 0.0:
        return 0
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return int(bits) if bits >= 0 else -(bits & HIGHEST)
