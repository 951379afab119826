"""What the model leaves: a correction of the times that it predicts, learnt from all specs together.

The model's errors depend on what a call and a tile have in common: how full the waves are, how much of the last tiles lies
outside, how many steps there are. A spec alone has too few times to show that, all of them have enough. So a few small
decision trees are fitted, one after the other, each to what is left of the errors. All leaves of a level of a tree ask the same
question (an oblivious tree), so that a million calls take no longer than a comparison of arrays for each level.

Only errors that differ between the specs of a call matter, because a table compares them. What all have in common is taken out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..bundle.details import WorkDetails
from ..bundle.tables.models import CorrectionTree
from .times import Counts

__all__ = ["Errors", "corrected", "features_of", "fit_correction"]

Array = Any

TREES, DEPTH, RATE = 48, 5, 0.2
THRESHOLDS = 32  # that a question may have, for each feature
FIRMNESS = 8.0  # errors of zero that are added to each leaf
MOST = 0.2  # the logarithm of the largest correction


def features_of(work: WorkDetails, counts: Counts) -> list[Array]:
    """What trees ask about a spec and its calls. Arrays that may be broadcast; some are numbers."""
    full = counts.full
    return [
        counts.waves,
        full,
        full / counts.waves,
        full - np.floor(full),
        counts.outside,
        np.log(counts.steps),
        np.log(counts.megabytes),
        *(float(size) for size in work.tile.values()),
        *(float(size) for size in work.step.values()),
        float(work.blocks),
        float(work.cycles),
    ]


def corrected(times: Array, trees: Sequence[CorrectionTree], features: Sequence[Array]) -> Array:
    """The times of one spec with the correction."""
    if not trees:
        return times
    asked = [np.asarray(feature, dtype=np.float32) for feature in features]
    total = np.zeros(np.shape(times), dtype=np.float32)
    for tree in trees:
        leaf = np.zeros(np.shape(times), dtype=np.uint8)
        for level, (feature, threshold) in enumerate(zip(tree.features, tree.thresholds, strict=True)):
            leaf |= np.left_shift(asked[feature] > np.float32(threshold), level, dtype=np.uint8)
        total += np.array(tree.leaves, dtype=np.float32)[leaf]
    return times * np.exp(np.clip(total, -MOST, MOST))


@dataclass(frozen=True)
class Errors:
    """Of one spec: which calls were timed, their features, and the logarithm of measured relative to predicted time."""

    calls: Array  # numbers of calls
    features: Sequence[Array]
    errors: Array


def fit_correction(specs: Iterable[Errors]) -> tuple[CorrectionTree, ...]:
    """Trees that predict how much slower a spec is than the model says, compared with the others of the same call."""
    given = list(specs)
    calls = np.concatenate([one.calls for one in given])
    table = np.concatenate([np.stack(np.broadcast_arrays(*one.features, one.errors)[:-1], axis=1) for one in given])
    left = np.concatenate([one.errors for one in given])
    left = left - (np.bincount(calls, left) / np.maximum(np.bincount(calls), 1))[calls]
    thresholds = [np.unique(np.quantile(own, np.linspace(0, 1, THRESHOLDS + 2)[1:-1])) for own in table.T]
    bins = [np.searchsorted(own, column) for own, column in zip(thresholds, table.T, strict=True)]
    trees = []
    for _ in range(TREES):
        tree, change = _grow(bins, thresholds, left)
        trees.append(tree)
        left = left - change
    return tuple(trees)


def _grow(bins: Sequence[Array], thresholds: Sequence[Array], left: Array) -> tuple[CorrectionTree, Array]:
    """One tree, and what it predicts."""
    leaf = np.zeros(len(left), dtype=np.intp)
    questions: list[tuple[int, float]] = []
    for level in range(DEPTH):
        gains = [_gains(own, len(each), leaf, 1 << level, left) for own, each in zip(bins, thresholds, strict=True)]
        feature = int(np.argmax([gain.max(initial=-1.0) for gain in gains]))
        at = int(np.argmax(gains[feature]))
        questions.append((feature, float(f"{thresholds[feature][at]:.4g}")))
        leaf += (bins[feature] > at).astype(np.intp) << level
    sums, counts = (np.bincount(leaf, weights, 1 << DEPTH) for weights in (left, None))
    leaves = RATE * sums / (counts + FIRMNESS)
    features, values = zip(*questions, strict=True)
    return CorrectionTree(features, values, tuple(float(f"{value:.3g}") for value in leaves)), leaves[leaf]


def _gains(bins: Array, count: int, leaf: Array, leaves: int, left: Array) -> Array:
    """How much of the squared errors each threshold of a feature takes away, if all leaves are cut by it."""
    place = leaf * (count + 1) + bins
    sums, counts = (
        np.bincount(place, weights, leaves * (count + 1)).reshape(leaves, count + 1).cumsum(axis=1)
        for weights in (left, None)
    )
    below, above = (sums[:, :-1], counts[:, :-1]), (sums[:, -1:] - sums[:, :-1], counts[:, -1:] - counts[:, :-1])
    return sum((own**2 / (number + FIRMNESS)).sum(axis=0) for own, number in (below, above))
