"""Fits the model to measured times: what each spec's seven numbers are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..bundle.details import WorkDetails
from ..declare.expressions import array_value
from .parts import Part
from .times import counts_of, times_of

__all__ = ["fit", "numbers_like"]

Array = Any

# What the numbers are without any measurement, and how firmly: microseconds, shares of the cycles that a step takes at
# least, and microseconds per megabyte as a share of what the bandwidth comes to. In the order of the model.
START, TILE, STEP, WORK, MISSING, READ, PAIR = 3.5, 1.0, 0.7, 0.2, 0.3, 1.1, 0.15
FIRMNESS = np.array([0.15, 0.05, 0.075, 0.05, 0.15, 0.5, 0.05])
OUTLIER = 0.5  # errors above this, in logarithms of times, count no more
# A table needs the times of specs that it may choose. The error of a time counts by this power of how near it is to the least one
# of the call: half, if it is 23% longer.
NEARNESS = 3.3
ROUNDS, SMALL = 40, 1e-4
ALIKE = 3  # specs that a new one is compared with
L2_BYTES = 42  # that a multiprocessor loads in a cycle, while all of them do; seen on an H200


def fit(
    work: WorkDetails,
    by: Sequence[str],
    calls: Array,
    times: Array,
    part: Part,
    least: Array | None = None,
    known: Sequence[float] | None = None,
) -> tuple[float, ...]:
    """The numbers with the least squared error of logarithms, by the method of Levenberg and Marquardt.

    ``least`` are the least times that any spec took for these calls, ``known`` what the numbers are from earlier times: as
    firm as what a spec is taken for without any.
    """
    columns = np.maximum(calls, 1).T.astype(float)
    counts, goal = counts_of(work, dict(zip(by, columns, strict=True)), part), np.log(times)
    prior = np.log(_expected(work, part) if known is None else known)
    weights = 1.0 if least is None else (least / times) ** NEARNESS

    def errors(numbers: Array) -> Array:
        own = weights * np.clip(np.log(times_of(np.exp(numbers), counts)) - goal, -OUTLIER, OUTLIER)
        return np.concatenate([own, FIRMNESS * (numbers - prior)])

    return tuple(float(number) for number in np.exp(_least_squares(errors, prior)))


def numbers_like(
    work: WorkDetails, known: Sequence[tuple[WorkDetails, Sequence[float]]], part: Part
) -> tuple[float, ...]:
    """What the numbers of a new spec may be: as far from what is expected as those of the known ones most like it."""
    nearest = sorted((_distance(work, other), index) for index, (other, _) in enumerate(known))[:ALIKE]
    weights = np.array([1 / (distance + 0.15) for distance, _ in nearest])
    shares = [np.log(known[index][1]) - np.log(_expected(known[index][0], part)) for _, index in nearest]
    found = np.exp(np.log(_expected(work, part)) + np.average(shares, axis=0, weights=weights))
    return tuple(float(number) for number in found)


def _distance(one: WorkDetails, other: WorkDetails) -> float:
    """How unlike two specs are: in the cycles of a step, tile, blocks of a cluster, and step."""
    tiles = sum(abs(math.log(one.tile[name] / other.tile[name])) for name in one.tile)
    steps = sum(abs(math.log(one.step[name] / other.step[name])) for name in one.step)
    blocks, cycles = abs(math.log(one.blocks / other.blocks)), abs(math.log(one.cycles / other.cycles))
    return cycles + tiles / 2 + blocks + steps


def _expected(work: WorkDetails, part: Part) -> Sequence[float]:
    """The numbers without any measurement."""
    step = work.cycles / part.clock
    shared = max(WORK * step, _loading(work, part) - (STEP + PAIR) * step)
    return START, TILE, STEP * step, shared, MISSING, READ * 1e3 / part.bandwidth, PAIR * step


def _loading(work: WorkDetails, part: Part) -> float:
    """Microseconds that a block's share of what a step loads takes through the L2 cache, if all blocks load at once."""
    once, twice = ({**work.tile, **{name: times * size for name, size in work.step.items()}} for times in (1, 2))
    loaded = array_value(work.bytes, twice) - array_value(work.bytes, once)
    return float(loaded / work.blocks / L2_BYTES / part.clock)


def _least_squares(errors: Any, numbers: Array) -> Array:
    now, damping = errors(numbers), 1e-2
    for _ in range(ROUNDS):
        slopes = np.stack([(errors(numbers + SMALL * unit) - now) / SMALL for unit in np.eye(len(numbers))], axis=1)
        square = slopes.T @ slopes
        change = np.linalg.solve(square + damping * np.diag(np.diag(square) + 1e-9), -slopes.T @ now)
        tried = numbers + np.clip(change, -1, 1)
        then = errors(tried)
        if then @ then < now @ now:
            numbers, now, damping = tried, then, damping / 4
        else:
            damping *= 5
    return numbers
