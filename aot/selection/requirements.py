"""What a call must satisfy for a variant to take it, derived from the declared arguments.

Everything is one form: an integer read off the arguments (:class:`Subject`) lies in an interval. The
compiled entry, or dispatch just before it, checks most of this, in the same sense; ``enforced`` marks what
neither does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeGuard

from ..declare.arguments import (
    ActiveClusters,
    Argument,
    Constant,
    Dim,
    Fixed,
    Multiprocessors,
    Pointer,
    Scalar,
    Single,
    Stream,
    Tensor,
    Tuple,
    is_made,
    layout_of,
)
from ..declare.expressions import check_size
from ..declare.kernel import Kernel, Variant
from ..declare.specs import Spec, Work
from ..errors import DeclarationError
from ..kinds import BOOL, DTYPES, FLOAT, HANDLE, INT, NONE, TENSOR, TUPLE
from .guards import Guards
from .subjects import (
    HIGHEST,
    INT32_MAX,
    FixedArgument,
    Path,
    Place,
    Region,
    Requirement,
    Subject,
    TunedExtent,
    VariantTable,
    WorkspaceTable,
)

__all__ = ["variant_table"]

# Numbers of runtime/src/aot_tables.h.
SOURCE_MULTIPROCESSORS, SOURCE_ACTIVE_CLUSTERS, SOURCE_WORKSPACE, SOURCE_CONSTANT = 0x80, 0x81, 0x82, 0x90
STREAM_FROM_ENVIRONMENT, STREAM_DEFAULT = -1, -2
CUDA_DEVICE = 2


def variant_table(variant: Variant) -> VariantTable:
    """Derive a variant's table from its spec."""
    spec = variant.spec
    deriver = _Deriver(variant.kernel, spec)
    sources, stream = _sources(variant.kernel, spec)
    requirements = tuple(_merged(deriver.derive()))
    identity = sources == tuple(range(len(variant.kernel.parameters)))
    return VariantTable(
        name=variant.name,
        function=variant.function,
        requirements=requirements,
        paths=tuple(deriver.paths),
        sources=None if identity else sources,
        stream=stream,
        entry_arguments=len(sources),
        uses_tensors=deriver.uses_tensors,
        workspace=deriver.workspace(),
        constants=_constants(variant.kernel, spec),
        preferences=tuple(deriver.preferences()),
        tuned_by=deriver.tuned_by(),
        work=deriver.work(),
    )


def _merged(requirements: Iterator[Requirement]) -> list[Requirement]:
    """One interval per subject: guards may narrow what the arguments already ask."""
    merged: dict[Subject, Requirement] = {}
    for new in requirements:
        old = merged.get(new.subject, new)
        low, high = max(old.low, new.low), min(old.high, new.high)
        merged[new.subject] = Requirement(old.subject, low, high, old.enforced or new.enforced)
    return list(merged.values())


def _constants(kernel: Kernel, spec: Spec) -> tuple[FixedArgument, ...]:
    """What the declaration says about arguments that dispatch makes, in the order of the entry's arguments."""
    positions = {parameter.name: i for i, parameter in enumerate(kernel.parameters)}
    found: list[FixedArgument] = []
    for name, argument in spec.arguments.items():
        if isinstance(argument, Fixed):
            found.append(FixedArgument.of(argument.value))
        elif isinstance(argument, Single):
            found.append(FixedArgument.single(positions[name]))
        elif _is_optional(argument):
            found.append(FixedArgument.optional(positions[name], DTYPES[argument.dtype].packed, len(argument.shape)))
    return tuple(found)


def _is_optional(argument: Argument) -> TypeGuard[Tensor]:
    return isinstance(argument, Tensor) and argument.optional


def _sources(kernel: Kernel, spec: Spec) -> tuple[tuple[int, ...], int]:
    """Where each argument of the compiled entry comes from, and the stream."""
    positions = {parameter.name: i for i, parameter in enumerate(kernel.parameters)}
    workspaces = {parameter.name for parameter in kernel.parameters if parameter.workspace is not None}
    sources: list[int] = []
    made = 0
    stream = STREAM_DEFAULT
    for name, argument in spec.arguments.items():
        if isinstance(argument, Multiprocessors):
            sources.append(SOURCE_MULTIPROCESSORS)
        elif isinstance(argument, ActiveClusters):
            sources.append(SOURCE_ACTIVE_CLUSTERS)
        elif name in workspaces:
            sources.append(SOURCE_WORKSPACE)
        elif isinstance(argument, Fixed) or is_made(argument):
            sources.append(SOURCE_CONSTANT + made)
            made += 1
        elif isinstance(argument, Stream) and not argument.explicit:
            stream = STREAM_FROM_ENVIRONMENT
        elif not isinstance(argument, Constant):
            sources.append(positions[name])
        if isinstance(argument, Stream) and argument.explicit:
            stream = positions[name]
    return tuple(sources), stream


class _Deriver:
    """Derives the requirements of one spec; remembers on the way what its arguments are called, for guards."""

    def __init__(self, kernel: Kernel, spec: Spec) -> None:
        self.kernel = kernel
        self.spec = spec
        self.places: dict[str, Place] = {}
        self.dims: dict[str, Dim] = {}
        self.tensors: dict[str, tuple[Path, Tensor]] = {}
        self.scalars: dict[str, tuple[Path, Scalar]] = {}
        self.paths: list[Path] = []
        self.uses_tensors = False

    def derive(self) -> Iterator[Requirement]:
        positions = {parameter.name: i for i, parameter in enumerate(self.kernel.parameters)}
        for name, argument in self.spec.arguments.items():
            # Dispatch supplies a workspace, or checks what the caller passed for it.
            if name in positions and self.kernel.parameters[positions[name]].workspace is None:
                yield from self._argument(argument, (positions[name],), name)
        for guard in self.spec.guards:
            yield from self._guards().requirements(guard)
        regions = self._regions()
        if any(region.is_output for region in regions):
            # It comes last: a refusal should first say what is wrong with the arguments themselves.
            # Dispatch asks for this before it calls the entry, apart from the tree, in fewer instructions.
            yield Requirement(Subject("overlap", (), regions=regions, label="memory"), 0, 0)

    def _guards(self, role: str = "guard") -> Guards:
        where = f"{self.kernel.origin}: kernel {self.kernel.name}"
        return Guards(where, self.places, self.tensors, self.scalars, role)

    def preferences(self) -> Iterator[Requirement]:
        """What the spec prefers; to be asked once its arguments were derived."""
        for condition in self.spec.prefer:
            yield from self._guards("prefer").requirements(condition)

    def tuned_by(self) -> tuple[TunedExtent, ...]:
        """What tables tell calls apart by; to be asked once the arguments were derived."""
        guards = self._guards("tuned_by")
        return tuple(TunedExtent(text, guards.of_call(text), guards.subject(text)) for text in self.kernel.tuned_by)

    def work(self) -> Work | None:
        """What the spec says of its time, in terms of what the kernel is tuned by."""
        work, where = self.spec.work, f"{self.kernel.origin}: kernel {self.kernel.name}"
        if work is None:
            return None
        named = {*work.tile, *work.step, *check_size(work.bytes)}
        if not named <= set(self.kernel.tuned_by):
            raise DeclarationError(
                f"{where}: work names {', '.join(sorted(named - set(self.kernel.tuned_by)))}",
                hint="name what `tuned_by` names",
            )
        if not work.tile or min(*work.tile.values(), *work.step.values(), work.blocks, work.cycles) < 1:
            raise DeclarationError(f"{where}: {work}", hint="tile names an extent at least; every number is positive")
        return work

    def workspace(self) -> WorkspaceTable | None:
        """The scratch memory of the spec; to be asked once its arguments were derived."""
        for position, parameter in enumerate(self.kernel.parameters):
            argument = self.spec.arguments[parameter.name]
            if parameter.workspace is not None and isinstance(argument, Tensor):
                size = self._guards(f"the size of {parameter.name}").subject(parameter.workspace)
                return WorkspaceTable(parameter.name, position, size, argument.dtype, parameter.zeroed)
        return None

    def _regions(self) -> tuple[Region, ...]:
        """The tensors of a call, what is written first. A workspace is one of these: it overlaps nothing."""
        outputs = [parameter for parameter in self.kernel.parameters if parameter.output]
        written = [
            (path, label, parameter) for parameter in outputs for path, label in self._tensors_of(parameter.name)
        ]
        regions = [Region(path, True, label=label) for path, label, _ in written]
        regions += [
            Region((position,), True, label=parameter.name)
            for position, parameter in enumerate(self.kernel.parameters)
            if parameter.workspace is not None
        ]
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
        if argument is None or isinstance(argument, Constant):  # an element of a tuple that is fixed
            yield _kind(path, label, NONE, NONE)
        elif _is_optional(argument):
            yield from map(_or_none, self._tensor(argument, path, label))
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
        dtype = DTYPES[tensor.dtype]
        yield _kind(path, label, TENSOR, TENSOR)
        yield Requirement(Subject("device_type", path, label=label), CUDA_DEVICE, CUDA_DEVICE)
        yield Requirement(Subject("device_index", path, label=label), 0, 0)
        # The entry takes signed for unsigned integers and the reverse; we do not.
        yield Requirement(
            Subject("dtype", path, label=f"{label}.dtype"), dtype.packed, dtype.packed, enforced=dtype.code < 2
        )
        rank = len(tensor.shape)
        yield Requirement(Subject("ndim", path, label=f"{label}.ndim"), rank, rank)
        for dim, extent in enumerate(tensor.shape):
            yield from self._extent(extent, path, dim, f"{label}.shape[{dim}]")
        for dim, stride in enumerate(layout_of(tensor, label)):
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
            self._remember(extent, Place(path, dim, False, label))
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
            self._remember(stride, Place(path, dim, True, label))
            if stride.bits == 32:
                yield Requirement(plain, -INT32_MAX - 1, INT32_MAX)
            if stride.divisible_by > 1:
                yield Requirement(replace(plain, operation="stride_modulo", parameter=stride.divisible_by), 0, 0)

    def _known(self, dim: Dim) -> Place | None:
        known = self.dims.get(dim.name)
        if known is not None and known != dim:
            raise DeclarationError(
                f"{self.kernel.origin}: kernel {self.kernel.name}: extent {dim.name} is declared as {known} and as {dim}"
            )
        return self.places.get(dim.name)

    def _remember(self, dim: Dim, place: Place) -> None:
        self.dims[dim.name] = dim
        self.places[dim.name] = place


def _or_none(requirement: Requirement) -> Requirement:
    """The same of an optional tensor: None meets it.

    The entry gets a tensor without elements for None, so it cannot compare the extents with those of other tensors.
    """
    subject = replace(requirement.subject, none=requirement.low)
    if subject.operation == "kind":
        return replace(requirement, subject=subject, low=NONE)
    return replace(requirement, subject=subject, enforced=requirement.enforced or subject.operation == "extent_off")


def _kind(path: Path, label: str, low: int, high: int) -> Requirement:
    return Requirement(Subject("kind", path, label=label), low, high)


def _against(subject: Subject, operation: str, place: Place) -> Subject:
    return replace(
        subject,
        operation=operation,
        other=place.path,
        other_dim=place.dim,
        other_is_stride=place.is_stride,
        other_label=place.label,
    )
