"""Integers that can be read off the arguments of a call, and the intervals that a variant wants them in.

Data types, ranks, extents, strides, alignment, ``None`` and guards all reduce to this one form, so that matching, the
decision tree and the reasons for a refusal need one mechanism. The numbers are those of ``runtime/src/aot_tables.h``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from ..declare.specs import Work

__all__ = [
    "HIGHEST",
    "INT32_MAX",
    "LOWEST",
    "FixedArgument",
    "Path",
    "Place",
    "Region",
    "Requirement",
    "Step",
    "Subject",
    "TunedExtent",
    "VariantTable",
    "WorkspaceTable",
    "ordered_float",
]

_DLTENSOR = 7  # kTVMFFIDLTensorPtr
_RANK_SHIFT = 48  # AOT_RANK_SHIFT
LOWEST = -(2**63) + 1  # -2**63 stands for "not there"
HIGHEST = 2**63 - 1
INT32_MAX = 2**31 - 1

Path = tuple[int, ...]  # of an argument: its position, then positions within tuples


@dataclass(frozen=True)
class Place:
    """Where a symbolic extent was first seen."""

    path: Path
    dim: int
    is_stride: bool
    label: str


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
    none: int | None = None  # of an optional argument: what None counts as
    steps: tuple[Step, ...] = ()
    regions: tuple[Region, ...] = ()
    # For messages only: two subjects that read the same integer are equal, whatever their labels.
    label: str = field(default="", compare=False)
    other_label: str = field(default="", compare=False)


@dataclass(frozen=True)
class Requirement:
    subject: Subject
    low: int
    high: int
    enforced: bool = field(default=False, compare=False)  # only the tree checks this


@dataclass(frozen=True)
class WorkspaceTable:
    """Scratch memory that a variant needs; ``dtype`` is what the compiled entry takes it for."""

    name: str
    argument: int
    size: Subject  # in bytes
    dtype: str
    zeroed: bool


@dataclass(frozen=True)
class FixedArgument:
    """None or a number that dispatch passes to the entry, as TVM-FFI has it; or a tensor that it makes for one of a call."""

    type_index: int
    bits: int
    argument: int = 0  # of the call, for such a tensor

    @classmethod
    def optional(cls, argument: int, dtype: int, rank: int) -> FixedArgument:
        """A tensor of the call, or one without elements if the caller passes None; as ``aot_constant_t`` in C."""
        return cls(_DLTENSOR, dtype | rank << _RANK_SHIFT, argument)

    @classmethod
    def single(cls, argument: int) -> FixedArgument:
        """A tensor of the call as a batch of one."""
        return cls(_DLTENSOR, 0, argument)

    @classmethod
    def of(cls, value: bool | int | float | None) -> FixedArgument:
        if value is None:
            return cls(0, 0)
        if isinstance(value, float):
            (bits,) = struct.unpack("<q", struct.pack("<d", value))
            return cls(3, int(bits))
        return cls(2 if isinstance(value, bool) else 1, int(value))


@dataclass(frozen=True)
class TunedExtent:
    """An integer of a call that tables go by."""

    name: str  # as it is declared: ``m * n``
    of_call: str  # the same of the public arguments: ``a.shape[0] * b.shape[0]``
    subject: Subject


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
    workspace: WorkspaceTable | None = None
    constants: tuple[FixedArgument, ...] = ()  # those that ``sources`` from SOURCE_CONSTANT on name
    preferences: tuple[Requirement, ...] = ()  # a variant whose preferences hold goes before one whose do not
    tuned_by: tuple[TunedExtent, ...] = ()  # what tables tell calls apart by
    work: Work | None = None  # what a model of its time goes by


def ordered_float(value: float) -> int:
    """The image of a float among the integers that keeps the order; as ``ordered_float`` in C."""
    if value == 0.0:
        return 0
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return int(bits) if bits >= 0 else -(bits & HIGHEST)
