"""Tables for devices, computed from models: for each cell the variant with the least time over two calls in it."""

from __future__ import annotations

import bisect
import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from aot_runtime.arch import Arch

from ..bundle.details import VariantDetails, WorkDetails
from ..bundle.tables.models import ModelledKernel, ModelledSet, Models
from ..bundle.tables.tuning import TunedKernel, TunedSet, Tuning
from .bins import BYTES, bins_for, label_of, limits_of, usual_extents
from .correction import corrected, features_of
from .parts import Part, named_parts
from .times import Counts, counts_of, scaled, times_of

__all__ = ["tables_of"]

Array = Any
Variants = Sequence[VariantDetails]
Grid = tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]  # bins and cells

# The geometric mean of the times of two calls of a cell counts. Along an extent that is summed no tile ends, and bins are wide:
# the calls are at these parts of them. Rows can be any number, and a tile that ends with the bin computes nothing in vain: they
# are at its end. Other extents are those of layers, and models often have the same: the first call has what most measured calls
# of the bin have, the second one its end. Of 997 products that were timed on an H200, tables then choose tilings that are 1.0%
# slower than the best one of each, with the end of the bin for both 1.4%, and the model without a table 0.8%.
SUMMED = 0.3, 0.9
HEDGE = 0.5  # the weight of the bandwidth that was measured
# A measured call may lie where a tile ends, and most of its cell behind that. So what it says counts unless the model finds the
# end of the cell this many times as slow as with another variant.
TRUST = 1.05
STEADY = 1.01  # a bin keeps the variant of the one before if it is no slower than this: models are less exact, and tables are small
BEYOND = 2.0  # the last bin is taken to end at this many times its beginning
NEAR = 1.12  # what takes longer than this, relative to the fastest variant of a cell, is not corrected
MANY = 0.2  # of the variants of a model: tables of fewer variants have fewer bins
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
    kernel: ModelledKernel,
    variants: Variants,
    measured: Part,
    part: Part,
    choices: dict[Any, Grid],
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
                    own_bins = _bins(one, named, measured, part)
                    chooser = _Chooser(replace(one, bins=own_bins), named, measured, part)
                    choices[key] = _joined(own_bins, chooser.cells())
                names = tuple(variant.name for variant in named)
                sets.append(TunedSet(own[0].function, dict(own[0].point), names, *choices[key]))
    elsewhere = "" if part.name == measured.name else measured.name
    return TunedKernel(kernel.kernel, kernel.arch, kernel.by, tuple(sets), measured_on=elsewhere)


def _bins(one: ModelledSet, named: Variants, measured: Part, part: Part) -> tuple[tuple[int, ...], ...]:
    """Those of the model, unless waves end elsewhere, or there are few of its variants: a choice among few changes less often."""
    share = len(named) / len(one.numbers)
    calls = [call for own in one.fastest.values() for call in own]
    if not calls or (share > MANY and part.multiprocessors == measured.multiprocessors):
        return one.bins
    numbers = {label: scaled(own, measured, part) for label, own in one.numbers.items()}
    return bins_for(named, numbers, calls, part, BYTES if share > MANY else BYTES * share**0.6)


@dataclass(frozen=True)
class _Chooser:
    model: ModelledSet
    variants: Variants
    measured: Part
    part: Part

    def cells(self) -> Array:
        """By bins of all extents."""
        times = self._mean_times()
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

    @functools.cached_property
    def _calls(self) -> list[dict[str, Array]]:
        """Calls of each cell, as axes of grids."""
        by = tuple(self.variants[0].tuned_by)
        tiled = {name for variant in self.variants if variant.work is not None for name in variant.work.tile}
        measured = [call for calls in self.model.fastest.values() for call in calls]
        columns = list(zip(*measured, strict=True)) or [()] * len(by)
        grids = []
        for number, summed in enumerate(SUMMED):
            axes = []
            for axis, (name, bins) in enumerate(zip(by, self.model.bins, strict=True)):
                lows, highs = _ends(bins)
                if name not in tiled:
                    highs = np.ceil(lows - 1 + (highs - lows + 1) * summed)
                elif axis and number == 0:
                    highs = usual_extents(highs, columns[axis])
                axes.append(highs)
            grids.append(dict(zip(by, np.ix_(*axes), strict=True)))
        return grids

    def _mean_times(self) -> Array:
        """The geometric means over the calls of a cell, by variant. Only what is nearly the fastest is corrected, and only for
        devices whose waves are as wide as those that the correction was learnt from.
        """
        alike = self.part.multiprocessors == self.measured.multiprocessors
        trees = self.model.correction if alike else ()
        takes = np.stack([np.broadcast_to(self._takes(one), self._shape) for one in self.variants])
        logs = np.zeros(takes.shape)
        for extents in self._calls:
            counts = [counts_of(_work(one), extents, self.part) for one in self.variants]
            times = np.stack([self._time(one, own) for one, own in zip(self.variants, counts, strict=True)])
            if trees:
                near = takes & (times <= NEAR * np.where(takes, times, NEVER).min(axis=0))
                for one, own, took, where in zip(self.variants, counts, times, near, strict=True):
                    features = [_at(where, feature) for feature in features_of(_work(one), own)]
                    took[where] = corrected(took[where], trees, features)
            logs += np.log(times)
        return np.where(takes, np.exp(logs / len(self._calls)), NEVER)

    @property
    def _shape(self) -> tuple[int, ...]:
        return tuple(len(bins) + 1 for bins in self.model.bins)

    def _time(self, variant: VariantDetails, counts: Counts) -> Array:
        """The predicted time, and as much of that with the bandwidth that was measured: a hedge against the model."""
        numbers = self.model.numbers[label_of(variant)]
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


def _work(variant: VariantDetails) -> WorkDetails:
    assert variant.work is not None
    return variant.work


def _at(places: Array, values: Array) -> Array:
    """Values of a grid, or one for all, at some places of it."""
    return np.broadcast_to(values, places.shape)[places]


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
