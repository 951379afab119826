"""How a node of the decision tree finds its branch: by looking one value up, or by searching ranges.

Most questions are about single values (which dtype, which fixed extent). For these, a multiplier is searched that maps
every value to a different slot. A call then multiplies and looks once, however many variants there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Branching", "branch_by_range", "branch_by_value"]

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15  # odd, its bits well spread: the first of the multipliers that are tried
_TRIES = 4096


@dataclass(frozen=True)
class Branching:
    """A node's branches as ``runtime/src/aot_tables.h`` describes them."""

    branches: tuple[tuple[int, int], ...]  # value, child
    otherwise: int
    multiplier: int = 0
    shift: int = 0


def branch_by_range(cuts: Sequence[int], children: Sequence[int]) -> Branching:
    """Sorted ranges; neighbours that lead to the same child are one."""
    branches: list[tuple[int, int]] = []
    last = children[0]
    for cut, child in zip(cuts, children[1:], strict=True):
        if child != last:
            branches.append((cut, child))
            last = child
    return Branching(tuple(branches), children[0])


def branch_by_value(cuts: Sequence[int], children: Sequence[int]) -> Branching | None:
    """One slot per value; None if the children belong to ranges and not to single values."""
    otherwise = children[0]
    values: dict[int, int] = {}
    for index, child in enumerate(children[1:]):
        if child == otherwise:
            continue
        is_single = index + 1 < len(cuts) and cuts[index + 1] == cuts[index] + 1
        if not is_single:
            return None
        values[cuts[index]] = child
    bits = max(len(values).bit_length(), 1)
    for extra in range(4):
        found = _spread(values, otherwise, bits + extra)
        if found is not None:
            return found
    return None


def _spread(values: dict[int, int], otherwise: int, bits: int) -> Branching | None:
    shift = 64 - bits
    multiplier = _GOLDEN
    for _ in range(_TRIES):
        slots = {(value * multiplier & _MASK) >> shift: value for value in values}
        if len(slots) == len(values):
            return Branching(_table(slots, values, otherwise, 1 << bits), otherwise, multiplier, shift)
        multiplier = (multiplier * 6364136223846793005 + 1442695040888963407) & _MASK | 1
    return None


def _table(slots: dict[int, int], values: dict[int, int], otherwise: int, size: int) -> tuple[tuple[int, int], ...]:
    """Empty slots lead to ``otherwise``, so their value does not matter."""
    return tuple((slots[i], values[slots[i]]) if i in slots else (0, otherwise) for i in range(size))
