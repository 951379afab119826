"""Tables for devices, computed from models: for each cell the variant with the least time over a few calls in it."""

from __future__ import annotations

import bisect
import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from aot_runtime.arch import Arch

from ..bundle.details import VariantDetails
from ..bundle.tables.models import ModelledKernel, ModelledSet, Models
from ..bundle.tables.tuning import TunedKernel, TunedSet, Tuning
from .bins import label_of, limits_of
from .parts import Part, named_parts
from .times import counts_of, scaled, times_of

__all__ = ["tables_of"]

Array = Any
Variants = Sequence[VariantDetails]
Grid = tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]  # bins and cells

# Where in a bin: a tile that ends with the bin computes nothing in vain. Along an extent that is summed no tile ends.
TILED, SUMMED = 1.0, 0.8
HEDGE = 0.5  # the weight of the bandwidth that was measured
# A measured call may lie where a tile ends, and most of its cell behind that. So what it says counts unless the model finds the
# end of the cell this many times as slow as with another variant.
TRUST = 1.1
STEADY = 1.01  # a bin keeps the variant of the one before if it is no slower than this: models are less exact, and tables are small
BEYOND = 2.0  # the last bin is taken to end at this many times its beginning
NEVER = 1e30  # microseconds of a variant that does not take every call of a cell


def tables_of(models: Models, variants: Mapping[tuple[str, Arch], Variants]) -> Iterator[Tuning]:
    """The tables of the variants that are there, for every device that the models name."""
    measured = Part(
        models.device.name,
        models.device.capability,
        models.device.multiprocessors,
        models.device.bandwidth,
        models.clock,
    )
    known = [kernel for kernel in models.models if (kernel.kernel, kernel.arch) in variants]
    for part in named_parts(models.devices, models.device.capability):
        choices: dict[Any, Grid] = {}
        tables = [_table(kernel, variants[kernel.kernel, kernel.arch], measured, part, choices) for kernel in known]
        found = tuple(table for table in tables if table.sets)
        if found:
            yield Tuning(part.device, found)


def _table(
    kernel: ModelledKernel, variants: Variants, measured: Part, part: Part, choices: dict[Any, Any]
) -> TunedKernel:
    points: dict[tuple[Any, ...], list[VariantDetails]] = {}
    for variant in variants:
        if variant.work is not None and tuple(variant.tuned_by) == kernel.by:
            points.setdefault((variant.function, *sorted(variant.point.items())), []).append(variant)
    sets = []
    for own in points.values():
        for index, one in enumerate(kernel.sets):
            named = [variant for variant in own if label_of(variant) in one.numbers]
            if one.point.items() <= own[0].point.items() and len(named) > 1:
                key = (kernel.kernel, kernel.arch, index, *map(label_of, named))
                if key not in choices:
                    choices[key] = _joined(one.bins, _Chooser(one, named, measured, part).cells())
                names = tuple(variant.name for variant in named)
                sets.append(TunedSet(own[0].function, dict(own[0].point), names, *choices[key]))
    elsewhere = "" if part.name == measured.name else measured.name
    return TunedKernel(kernel.kernel, kernel.arch, kernel.by, tuple(sets), measured_on=elsewhere)


@dataclass(frozen=True)
class _Chooser:
    model: ModelledSet
    variants: Variants
    measured: Part
    part: Part

    def cells(self) -> Array:
        """By bins of all extents."""
        extents = self._extents(tuple(self.variants[0].tuned_by))
        times = np.stack([np.where(self._takes(one), self._time(one, extents), NEVER) for one in self.variants])
        best, chosen = times.min(axis=0), times.argmin(axis=0)
        for index in range(1, len(chosen)):
            kept = np.take_along_axis(times[:, index], chosen[index - 1][None], axis=0)[0] <= STEADY * best[index]
            chosen[index] = np.where(kept, chosen[index - 1], chosen[index])
        if self.part.name != self.measured.name:
            return chosen
        won = self._measured(chosen.shape)
        of_winner = np.take_along_axis(times, np.maximum(won, 0)[None], axis=0)[0]
        return np.where((won >= 0) & (of_winner <= TRUST * best), won, chosen)

    def _measured(self, shape: Sequence[int]) -> Array:
        """The variant that was the fastest on most measured calls of a cell, where there is one; else -1."""
        found: dict[tuple[int, ...], Counter[int]] = {}
        indices = {label_of(variant): index for index, variant in enumerate(self.variants)}
        for label, calls in self.model.fastest.items():
            for call in calls:
                cell = tuple(
                    bisect.bisect_right(bins, extent) for bins, extent in zip(self.model.bins, call, strict=True)
                )
                found.setdefault(cell, Counter())[indices.get(label, -1)] += 1
        won = np.full(shape, -1)
        for cell, wins in found.items():
            index, most = wins.most_common(1)[0]
            won[cell] = index if 2 * most > wins.total() else -1
        return won

    def _extents(self, by: Sequence[str]) -> dict[str, Array]:
        """A call of each cell, as axes of a grid."""
        tiled = {name for variant in self.variants if variant.work is not None for name in variant.work.tile}
        axes = []
        for name, bins in zip(by, self.model.bins, strict=True):
            lows, highs = _ends(bins)
            axes.append(np.ceil(lows - 1 + (highs - lows + 1) * (TILED if name in tiled else SUMMED)))
        return dict(zip(by, np.ix_(*axes), strict=True))

    def _time(self, variant: VariantDetails, extents: Mapping[str, Array]) -> Array:
        """The predicted time, and as much of that with the bandwidth that was measured: a hedge against the model."""
        assert variant.work is not None
        numbers, counts = self.model.numbers[label_of(variant)], counts_of(variant.work, extents, self.part)
        here = times_of(scaled(numbers, self.measured, self.part), counts)
        known = replace(self.part, bandwidth=self.measured.bandwidth)
        return here if known == self.part else here * times_of(scaled(numbers, self.measured, known), counts) ** HEDGE

    def _takes(self, variant: VariantDetails) -> Array:
        """Whether a variant takes every call of a cell, as far as its extents go."""
        axes = []
        for (low, high), bins in zip(limits_of(variant), self.model.bins, strict=True):
            lows, highs = _ends(bins)
            axes.append((lows >= low) & (highs <= high))
        return functools.reduce(np.logical_and, np.ix_(*(np.where(axis, 1, 0) for axis in axes)))


def _joined(bins: tuple[tuple[int, ...], ...], cells: Array) -> Grid:
    """Without the bins that choose as the ones before them, whatever the other extents are."""
    kept = []
    for axis, lows in enumerate(bins):
        along = np.moveaxis(cells, axis, 0).reshape(len(lows) + 1, -1)
        differs = np.any(along[1:] != along[:-1], axis=1)
        kept.append(tuple(low for low, other in zip(lows, differs, strict=True) if other))
        cells = np.compress([True, *differs], cells, axis=axis)
    return tuple(kept), tuple(cells.ravel().tolist())


def _ends(bins: Sequence[int]) -> tuple[Array, Array]:
    """The lowest and the highest value of each bin."""
    lows = np.array([1, *bins])
    return lows, np.array([*(low - 1 for low in bins), int(BEYOND * lows[-1])])
