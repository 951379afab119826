"""The model: how long a spec takes for a call on a device.

Blocks compute as many tiles at once as there are multiprocessors: a wave. One tile more than fits into a wave costs a wave,
which is what makes a spec wrong for a shape. Meanwhile memory delivers the operands. The longer of both counts, and where
they are about equal they are in each other's way:

    multiply = waves * tile + steps * (step * waves * (1 + missing * share of the first extent outside) + work * full + pair * paired)
    time = start + (multiply^4 + (read * megabytes)^4)^(1/4)

``full`` are the waves as a fraction: blocks that run at once share power and caches. ``paired`` are the waves in which more
than half of the multiprocessors work: two of them share a path to the L2 cache. The seven numbers of a spec are
fitted to measured times. For another device, its own waves are counted, and its clock, bandwidth and tensor cores scale the times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..bundle.details import WorkDetails
from ..declare.expressions import array_value
from .parts import Part

__all__ = ["Counts", "clusters_at_once", "counts_of", "scaled", "times_of"]

Array = Any  # of NumPy; its types say nothing of shapes

# By blocks of a cluster, the share of multiprocessors that clusters can fill: blocks of one lie in one group of multiprocessors,
# and groups have 16 or 18 of them. Seen on an H200.
_FILLED = {1: 1.0, 2: 1.0, 3: 0.887, 4: 0.91, 5: 0.84, 6: 0.82, 7: 0.80, 8: 0.91}
_FEW = 0.8  # of larger clusters


def clusters_at_once(part: Part, blocks: int) -> int:
    """How many clusters of ``blocks`` blocks run at once, if each block fills a multiprocessor."""
    return max(1, int(part.multiprocessors * _FILLED.get(blocks, _FEW) / blocks))


@dataclass(frozen=True)
class Counts:
    """What the model goes by, of one spec on one device, for many calls."""

    waves: Array
    full: Array
    steps: Array
    outside: Array
    megabytes: Array

    @property
    def paired(self) -> Array:
        whole = np.floor(self.full)
        return whole + (self.full - whole > 0.5)


def counts_of(work: WorkDetails, extents: Mapping[str, Array], part: Part) -> Counts:
    """Of calls whose extents are arrays that go together: columns, or the axes of a grid. The first one may have a share
    outside of its matrix.
    """
    tiles = {name: np.ceil(extents[name] / size) for name, size in work.tile.items()}
    steps = [np.ceil(extents[name] / size) for name, size in work.step.items()]
    full = math.prod(tiles.values(), start=1 / clusters_at_once(part, work.blocks))
    first = next(iter(extents))
    inside = extents[first] / (tiles[first] * work.tile[first]) if first in tiles else 1.0
    return Counts(np.ceil(full), full, math.prod(steps), 1 - inside, array_value(work.bytes, extents) * 1e-6)


def times_of(numbers: Sequence[float], counts: Counts) -> Array:
    """Microseconds."""
    start, tile, step, work, missing, read, pair = numbers
    waves = counts.waves
    of_steps = step * waves * (1 + missing * counts.outside) + work * counts.full + pair * counts.paired
    multiply = waves * tile + counts.steps * of_steps
    return start + np.sqrt(np.sqrt(np.square(np.square(multiply)) + np.square(np.square(read * counts.megabytes))))


def scaled(numbers: Sequence[float], measured: Part, part: Part) -> tuple[float, ...]:
    """The numbers that were fitted on one device for another one."""
    start, tile, step, work, missing, read, pair = numbers
    slower = measured.clock / part.clock
    multiplied = slower * measured.rate / part.rate
    read *= measured.bandwidth / part.bandwidth
    return start * slower, tile * slower, step * multiplied, work * multiplied, missing, read, pair * slower
