"""What :meth:`Bundle.explain` takes and gives: tensors without memory, and the variants that a call considers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ArgumentError
from ..values import Value

if TYPE_CHECKING:
    from ..arch import Capability

__all__ = ["Candidate", "Device", "Explanation", "TensorInfo", "parse_explanation"]

_MOST_DIMENSIONS = 32  # that a bundle describes
_INT64_END = 1 << 63


class Device(Value):
    """A GPU for :meth:`Bundle.explain`. It takes the table of its name, or that of the nearest device."""

    __slots__ = ("bandwidth", "capability", "multiprocessors", "name")

    capability: str | Capability
    name: str
    multiprocessors: int
    bandwidth: int  # of its memory in GB/s; 0: not known

    def __init__(self, capability: str | Capability, name: str, multiprocessors: int, bandwidth: int = 0) -> None:
        self._set(capability=capability, name=name, multiprocessors=multiprocessors, bandwidth=bandwidth)


def _check_numbers(what: str, given: object) -> None:
    if not isinstance(given, (tuple, list)) or not all(hasattr(one, "__index__") for one in given):
        example = f"({given},)" if hasattr(given, "__index__") else "(4, 8)"
        raise ArgumentError(f"{what} is {given!r}, not a tuple of integers", hint=f"write it like {example}")
    if len(given) > _MOST_DIMENSIONS:
        raise ArgumentError(f"{what} has {len(given)} numbers: a tensor has at most {_MOST_DIMENSIONS} dimensions")
    for one in given:
        if not -_INT64_END <= one.__index__() < _INT64_END:
            raise ArgumentError(f"{what} holds {one}, which is no integer of 64 bits")


class TensorInfo(Value):
    """A tensor for :meth:`Bundle.explain` that has a type and a shape, and no memory."""

    __slots__ = ("align", "dtype", "shape", "strides")

    dtype: str  # any of its names: `f16`, `float16`, `half`
    shape: tuple[int, ...]  # extents
    strides: tuple[int, ...] | None  # in elements; None: row-major
    align: int  # bytes that the address is a multiple of

    def __init__(
        self, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...] | None = None, align: int = 256
    ) -> None:
        _check_numbers("shape", shape)
        if any(extent.__index__() < 0 for extent in shape):
            raise ArgumentError(f"shape is {tuple(shape)!r}, with an extent below 0")
        if type(align) is not int or align < 1 or align & (align - 1):
            raise ArgumentError(f"align is {align!r}, not a power of two", hint="pass bytes, such as 16")
        if strides is not None:
            _check_numbers("strides", strides)
            if len(strides) != len(shape):
                raise ArgumentError(f"shape {tuple(shape)} and strides {tuple(strides)} differ in length")
        self._set(dtype=dtype, shape=shape, strides=strides, align=align)

    def resolved_strides(self) -> tuple[int, ...]:
        if self.strides is not None:
            return self.strides
        strides, step = [], 1
        for extent in reversed(self.shape):
            strides.append(step)
            step *= max(extent, 1)
        if step >= _INT64_END:
            raise ArgumentError(f"a tensor of shape {tuple(self.shape)} has more elements than 64 bits can count")
        return tuple(reversed(strides))


class Candidate(Value):
    """A variant that was considered. ``reason`` says why it was refused; it is "" if the variant is eligible.

    ``table`` is the device of the table that chose it; "" if no table did.
    """

    __slots__ = ("arch", "reason", "table", "variant")

    arch: str  # the architecture that it was built for
    variant: str  # its name
    reason: str  # why it was refused; "": it was not
    table: str  # the device of the table that chose it; "": no table did

    def __init__(self, arch: str, variant: str, reason: str, table: str = "") -> None:
        self._set(arch=arch, variant=variant, reason=reason, table=table)


class Explanation(Value):
    """What a call would run, and why not the rest."""

    __slots__ = ("candidates", "chosen")

    chosen: Candidate | None
    candidates: tuple[Candidate, ...]

    def __init__(self, chosen: Candidate | None, candidates: tuple[Candidate, ...]) -> None:
        self._set(chosen=chosen, candidates=candidates)

    def __str__(self) -> str:
        lines = []
        for candidate in self.candidates:
            chosen = f"chosen by the table of {candidate.table}" if candidate.table else "chosen"
            verdict = candidate.reason or (chosen if candidate is self.chosen else "eligible, but lower priority")
            lines.append(f"{candidate.arch} {candidate.variant}: {verdict}")
        return "\n".join(lines)


def parse_explanation(text: str) -> Explanation:
    """The lines of the entry library: architecture, variant and reason. The chosen one has a star, and for a reason the
    table that chose it."""
    chosen, candidates = None, []
    for line in str(text).splitlines():
        arch, variant, reason = line.split("\t")
        is_chosen = arch.startswith("*")
        known = ("", reason) if is_chosen else (reason, "")
        candidate = Candidate(arch.removeprefix("*"), variant, *known)
        candidates.append(candidate)
        if is_chosen:
            chosen = candidate
    return Explanation(chosen, tuple(candidates))
