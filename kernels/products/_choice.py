"""Which tiling is the fastest for a product, by a model of the time that each tiling takes.

Blocks compute as many tiles at once as there are multiprocessors: a wave. A wave takes a time for each step along ``k``,
and a time for what is done once for each tile. If a wave is not full, its steps are a bit faster: fewer blocks share what
there is of memory and power. Operands come from memory, which takes a time for each of their elements. So the model is
``start + waves * (step * k + tile) + work * tiles / (tiles of a wave) * k + read * elements``. It counts waves exactly: one
tile more than fits into a wave costs a wave, which is what makes a tiling wrong for a shape.

The products in f8 and in f32 choose by it. Its numbers were fitted to measurements on an H200, and so is the
number of multiprocessors: on a device with fewer of them the choice is a little worse, never wrong. On a device without a
measured table each call evaluates the models, so only the usual tilings have one; a table alone chooses the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

MULTIPROCESSORS = 132
# Clusters that run at once, by their blocks: those of a cluster are on neighbouring multiprocessors.
CLUSTERS = {1: MULTIPROCESSORS, 2: 66, 3: 39, 4: 30, 8: 15}
NEVER = 10**9  # more than any product takes


@dataclass(frozen=True)
class Model:
    """The time of a tiling: units do not matter, they are about 10 picoseconds."""

    start: int
    step: int
    tile: int
    read: int = 0  # for 4096 elements of the operands
    work: int = 0  # for a step of as many tiles as a full wave has


def waves_of(tiles: str, at_once: int) -> str:
    """How many waves so many tiles are, as an expression."""
    return f"(({tiles} + {at_once - 1}) // {at_once})"


def time_of(tiling: Any, model: Model) -> str:
    """The time of a product as an expression of its extents."""
    rows, at_once = tiling.m * tiling.cluster_m, CLUSTERS[tiling.blocks]
    high, wide = ("n", "m") if tiling.swapped else ("m", "n")
    tiles = f"(({high} + {rows - 1}) // {rows}) * (({wide} + {tiling.n - 1}) // {tiling.n})"
    time = f"{model.start} + {waves_of(tiles, at_once)} * ({model.step} * k + {model.tile})"
    if model.work:
        time += f" + {model.work} * ({tiles} * k // {at_once})"
    if model.read:
        time += f" + {model.read} * ((m + n) * k // 4096)"
    if tiling.least_k > 1:  # with split-K, each block of a cluster needs something to add up
        time += f" + max(0, {tiling.least_k} - k) * {NEVER}"
    return time


def fastest(tilings: Sequence[tuple[Any, Model]]) -> list[str]:
    """For each tiling the condition that none of the others is faster.

    All conditions compare the same expression with a number, so a call evaluates it once.
    """
    count = len(tilings)
    numbered = [f"({time_of(tiling, model)}) * {count} + {index}" for index, (tiling, model) in enumerate(tilings)]
    least = numbered[0]
    for other in numbered[1:]:
        least = f"min({least}, {other})"
    return [f"{least} % {count} == {index}" for index in range(count)]


def preferences(usual: Sequence[tuple[Any, Model]], tabled: Sequence[Any]) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Each tiling with its preferences. Those that only a table chooses have none."""
    for (tiling, _), condition in zip(usual, fastest(usual), strict=True):
        yield tiling, (condition,)
    for tiling in tabled:
        yield tiling, ()
