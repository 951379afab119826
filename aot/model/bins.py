"""Where the bins of a table begin: fine bins are merged where that costs the least time.

A tile that ends within a bin makes the bin's choice wrong for some of its calls, so bins had better end where tiles do. Which
of these ends matter is up to the models: two neighbouring bins are merged if one variant is nearly the best for both of
them, whatever the other extents are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..bundle.details import VariantDetails
from ..bundle.tables.models import CorrectionTree
from .correction import corrected, features_of
from .parts import Part
from .times import counts_of, times_of

__all__ = ["bins_for", "label_of", "limits_of", "predicted", "usual_extents"]

Array = Any

# A row of cells, which has those of all bins of the last extent, is stored once, and each combination of bins of the others
# has the number of its row. So bins of the last extent take little: in tables of products, a third of the rows differ.
BYTES = 52_000  # of a table, about; `benchmarks/table_sizes.py` tells what all tables of a bundle take
NUMBER, DIFFERENT = 2, 0.35
CELLS = 250_000
FINEST = 96  # multiples of the narrowest bin, before bins get wider; then half as many for each doubling
PER_DOUBLING = 6  # bins along extents that no tile cuts
BEYOND = 2  # bins reach this many times as far as what was measured
RARE = 0.02  # the weight of bins where nothing was measured
SAMPLES, SUMMED_SAMPLES = 40, 8  # of the measured extents, those of which tiles are cut and the others
NEVER = 12.0  # the logarithm of the microseconds of a variant that does not take a call
NO_LIMIT = 2**62


def label_of(variant: VariantDetails) -> str:
    return variant.name.rpartition("__")[2]


def limits_of(variant: VariantDetails) -> list[tuple[int, int]]:
    """The least and the highest value that a variant takes, of each extent."""
    found = []
    for of_call in variant.tuned_by.values():
        own = [one for one in variant.requirements if (one.operation, one.label) == ("extent", of_call)]
        found.append((max((one.low for one in own), default=0), min((one.high for one in own), default=NO_LIMIT)))
    return found


def predicted(
    variant: VariantDetails,
    numbers: Sequence[float],
    calls: Sequence[Sequence[int]],
    part: Part,
    correction: Sequence[CorrectionTree] = (),
) -> Array:
    """Microseconds of each call; infinite if the variant does not take it."""
    assert variant.work is not None
    columns = np.array(calls, dtype=float).T
    counts = counts_of(variant.work, dict(zip(variant.tuned_by, columns, strict=True)), part)
    times = corrected(times_of(numbers, counts), correction, features_of(variant.work, counts))
    for (low, high), column in zip(limits_of(variant), columns, strict=True):
        times = np.where((column < low) | (column > high), np.inf, times)
    return times


def bins_for(
    variants: Sequence[VariantDetails],
    numbers: Mapping[str, Sequence[float]],
    calls: Sequence[Sequence[int]],
    part: Part,
    room: float = BYTES,
) -> tuple[tuple[int, ...], ...]:
    """For each extent, the lowest values of its bins but the first. A table of them takes about ``room`` bytes."""
    by = tuple(variants[0].tuned_by)
    columns = [sorted(column) for column in zip(*calls, strict=True)]
    tiles = [[one.work.tile[name] for one in variants if one.work and name in one.work.tile] for name in by]
    limits = zip(*map(limits_of, variants), strict=True)
    ends = [_fine(*of_extent) for of_extent in zip(columns, tiles, limits, strict=True)]
    samples = [_samples(column, SAMPLES if own else SUMMED_SAMPLES) for column, own in zip(columns, tiles, strict=True)]
    merges = []
    for axis, column in enumerate(columns):
        lows, weights = np.concatenate([[1], ends[axis][:-1] + 1]), _weights(ends[axis], column)
        if axis and tiles[axis]:
            weights = (weights + _frequencies(ends[axis], column)) / 2
        low, high = ([*samples[:axis], own, *samples[axis + 1 :]] for own in (lows, ends[axis]))
        times = np.stack([_times(one, numbers[label_of(one)], low, high, part) for one in variants], axis=-1)
        merges.append(_merges(np.moveaxis(times, axis, 0), weights))
    kept = _fitting(merges, room)
    return tuple(tuple(int(own[bin - 1]) + 1 for bin in starts) for own, starts in zip(ends, kept, strict=True))


def usual_extents(ends: Array, column: Sequence[int]) -> Array:
    """Of bins with these last values, the extents that most calls have; of a bin without calls, its last value."""
    found, most = ends.astype(float), np.zeros(len(ends))
    values, counts = np.unique(column, return_counts=True)
    for value, count, bin in zip(values, counts, np.searchsorted(ends, values), strict=True):
        if bin < len(ends) and count >= most[bin]:
            found[bin], most[bin] = value, count
    return found


def _fine(column: Sequence[int], tiles: Sequence[int], limits: Sequence[tuple[int, int]]) -> Array:
    """The last values of fine bins. A bin ends where a variant begins or ceases to take calls."""
    own, highest = math.gcd(*column), BEYOND * column[-1]
    found: Array
    if tiles:
        found = _ladder(max(own, math.gcd(*tiles)), highest)
    else:
        count = math.ceil(PER_DOUBLING * math.log2(max(2, highest / column[0])))
        found = own * np.round(column[0] * 2 ** (np.arange(count + 1) / PER_DOUBLING) / own)
    edges = [edge for low, high in limits for edge in (low - 1, high) if 0 < edge < highest]
    return np.unique([*found, *edges]).astype(float)


def _ladder(width: int, highest: int) -> list[int]:
    found = [width]
    while found[-1] < highest:
        if found[-1] >= FINEST * width:
            width *= 2
        found.append(found[-1] + width)
    return found


def _samples(column: Sequence[int], count: int) -> Array:
    return np.unique([column[int(share * (len(column) - 1))] for share in np.linspace(0, 1, count)]).astype(float)


def _weights(ends: Array, column: Sequence[int]) -> Array:
    """Extents are taken to be as frequent as their logarithms, where they were measured."""
    lows = np.concatenate([[max(1.0, ends[0] / 2)], ends[:-1]])
    usual = (ends >= column[0]) & (ends <= column[-1])
    found = np.log(np.maximum(ends / lows, 1.01)) * np.where(usual, 1.0, RARE)
    return found / found.sum()


def _frequencies(ends: Array, column: Sequence[int]) -> Array:
    """The share of the measured calls that each bin has: layers of models often have the same extents."""
    return np.bincount(np.searchsorted(ends, column), minlength=len(ends))[: len(ends)] / len(column)


def _times(
    variant: VariantDetails, numbers: Sequence[float], lows: Sequence[Array], highs: Sequence[Array], part: Part
) -> Array:
    """Logarithms of a variant's times at the highest values, if it takes the lowest, too."""
    assert variant.work is not None
    extents = dict(zip(variant.tuned_by, np.ix_(*highs), strict=True))
    times = np.log(times_of(numbers, counts_of(variant.work, extents, part)))
    for limit, low, high in zip(limits_of(variant), np.ix_(*lows), extents.values(), strict=True):
        times = np.where((low < limit[0]) | (high > limit[1]), NEVER, times)
    return np.broadcast_to(times, [len(values) for values in highs]).astype(np.float32)


def _merges(times: Array, weights: Array) -> tuple[list[float], list[int]]:
    """The bins that are merged with the one before, the cheapest first, and what each of these costs.

    ``times`` are by bin, sample and variant. A bin's cost is what its calls take with the variant that is the best for all
    of it.
    """
    sums = list(times.reshape(len(times), -1, times.shape[-1]) * weights[:, None, None])
    firsts, own = list(range(len(sums))), [float(one.min(axis=1).sum()) for one in sums]

    def cost(left: int) -> float:
        return float((sums[left] + sums[left + 1]).min(axis=1).sum()) - own[left] - own[left + 1]

    costs = [cost(left) for left in range(len(sums) - 1)]
    prices, merged = [], []
    while costs:
        left = int(np.argmin(costs))
        prices.append(costs[left] / len(sums[left]))
        merged.append(firsts.pop(left + 1))
        sums[left] = sums[left] + sums.pop(left + 1)
        own[left], _ = float(sums[left].min(axis=1).sum()), own.pop(left + 1)
        costs.pop(left)
        if left < len(costs):
            costs[left] = cost(left)
        if left > 0:
            costs[left - 1] = cost(left - 1)
    return prices, merged


def _bytes(counts: Sequence[int]) -> float:
    """About how many bytes a table with these bins takes."""
    return math.prod(counts[:-1]) * (NUMBER + DIFFERENT * counts[-1])


def _fitting(merges: Sequence[tuple[list[float], list[int]]], room: float) -> list[list[int]]:
    """The bins that are left if merging stops as soon as a table has room, but for the first ones."""
    done = [0] * len(merges)
    counts = [len(merged) + 1 for _, merged in merges]

    def price(axis: int) -> float:
        """Of the next merge along an axis, for each byte that it saves."""
        fewer = [count - (other == axis) for other, count in enumerate(counts)]
        return merges[axis][0][done[axis]] / (_bytes(counts) - _bytes(fewer))

    while (_bytes(counts) > room or math.prod(counts) > CELLS) and max(counts) > 1:
        axis = min((axis for axis, count in enumerate(counts) if count > 1), key=price)
        done[axis], counts[axis] = done[axis] + 1, counts[axis] - 1
    return [sorted(merged[first:]) for (_, merged), first in zip(merges, done, strict=True)]
