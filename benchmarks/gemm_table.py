"""Writes the table by which the shipped GEMM chooses its tiling on an H200, from measured times of its tilings.

Reads the times in ``benchmarks/results/h200-gemm-tilings.json``, which are of products to tune on and of no others. Needs NumPy and
no GPU. A table that ``python -m aot tune`` measures has the answer of the nearest measured product in each of its bins. For
a GEMM that is not enough: one tile more than there are multiprocessors costs another wave, so the best tiling of a
product can be a bad one for its neighbour. So the time of each tiling is modelled, with the number of waves exact:

    time = start + waves * (tile + step * steps along k) + bytes / bandwidth

The four numbers are fitted to the measured times. Then what is left of the error is interpolated between the measured
products. Each cell of the table has the tiling with the least time over a few products in it. If another tiling was measured
to be faster on the products of a cell, the cell has that one: the model cannot tell some neighbours apart.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, product
from operator import ne
from typing import Any

import numpy as np
from _common import PROJECT
from aot_runtime.arch import Arch

from aot.bundle.tuning import TunedDevice, TunedKernel, TunedSet, Tuning, tuning_text
from kernels.gemm.gemm import EPILOGUES, SM90_CHOICES

MEASURED = PROJECT / "benchmarks" / "results" / "h200-gemm-tilings.json"
TABLE = PROJECT / "kernels" / "tuning" / "nvidia_h200_132.json"
H200 = TunedDevice("NVIDIA H200", 132, "9.0")
# Clusters that run at once, by their blocks: those of a cluster are on neighbouring multiprocessors.
CLUSTERS = {1: 132, 2: 66, 3: 39, 4: 30, 5: 22, 6: 18, 8: 14}
# The highest extents of the bins; there is one bin more for all above. Tiles are multiples of 16 or 64 rows high.
M_BINS = (*range(16, 257, 16), *range(320, 1025, 64), *range(1152, 2049, 128), *range(2560, 4097, 512), 6144, 8192)
N_BINS = (
    512,
    *range(1024, 5121, 256),
    *range(5632, 8193, 512),
    *range(9216, 16385, 1024),
    18432,
    22528,
    28672,
    36864,
    49152,
)
K_BINS = (1024, 2048, 4096, 8192, 16384)
REACH = 0.3  # of a measured product, in logarithms of extents
SHARES = (1.0, 0.6)  # where in a bin: a tile that ends with the bin has nothing to compute in vain
UNKNOWN = 0.25  # what is not near to a measured product is taken for this much slower
CYCLES = 1830  # per microsecond; in one, a multiprocessor steps along k for 32 elements, and loads about 45 bytes
MEGABYTES_PER_MICROSECOND, LAUNCH = 4.6, 1.5
NO_LIMIT, NEVER = 1 << 40, 99.0
FASTER = 0.02  # by which a measured tiling must be faster than the model's, in logarithms of times
TRUST = 0.5  # in the model, against one measured product at the same place
# Of what was timed before blocks fetched weights early: the time that this saves, in microseconds, as measured for five
# tilings with and without it. Tiles of 64 rows wait the most for their first step.
SAVED = {"rows": 0.85, "swapped": 0.45, "other": 0.2}
MOST_SAVED = 0.12  # of the time
# Clusters of four leave twelve multiprocessors idle. In products of many waves they were timed rarely, and were slow.
FOUR, MOST_WAVES = 4, 6


def features(tiling: Any, shapes: np.ndarray) -> np.ndarray:
    """What the model multiplies its four numbers with, for each of the shapes."""
    m, n, k = shapes.T.astype(float)
    rows, columns = (n, m) if tiling.swapped else (m, n)
    clusters = np.ceil(rows / (tiling.m * tiling.cluster)) * np.ceil(columns / (tiling.n * tiling.across))
    waves = np.ceil(clusters / CLUSTERS[tiling.blocks])
    steps = np.ceil(k / (tiling.k * tiling.split))
    return np.stack([np.ones_like(m), waves, waves * steps, 2e-6 * (m * k + n * k + m * n)], axis=1)


def least(tiling: Any, rows: np.ndarray) -> np.ndarray:
    """No product is faster than tensor cores, caches and memory allow. Far from measured products the fit may be."""
    loaded = (tiling.loaded_rows / tiling.across + tiling.n / tiling.cluster) * tiling.k * 2
    per_step = max(tiling.m * tiling.n / 32, loaded / 45) / CYCLES
    return np.maximum(rows[:, 2] * per_step, rows[:, 3] / MEGABYTES_PER_MICROSECOND) + LAUNCH


def fit(rows: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Numbers that are not negative and have the least relative error."""
    kept = list(range(rows.shape[1]))
    while True:
        found, *_ = np.linalg.lstsq(rows[:, kept] / times[:, None], np.ones(len(times)), rcond=None)
        if (found >= 0).all():
            break
        kept.pop(int(np.argmin(found * rows[:, kept].mean(0))))
    numbers = np.zeros(rows.shape[1])
    numbers[kept] = found
    return numbers


class Predicted:
    """The time of one tiling for any product."""

    def __init__(self, tiling: Any, measured: Sequence[tuple[tuple[int, int, int], float]]) -> None:
        self.tiling = tiling
        shapes, times = np.array([shape for shape, _ in measured]), np.array([time for _, time in measured])
        rows = features(tiling, shapes)
        self.numbers = fit(rows, times)
        self.places = np.log(shapes)
        self.errors = np.log(times / np.maximum(rows @ self.numbers, least(tiling, rows)))

    def __call__(self, shapes: np.ndarray) -> np.ndarray:
        """The logarithms of the times; very high if the tiling does not take a product."""
        rows = features(self.tiling, shapes)
        time = np.log(np.maximum(rows @ self.numbers, least(self.tiling, rows)))
        distances = ((np.log(shapes)[:, None, :] - self.places[None]) ** 2).sum(2)
        weights = np.exp(-distances / (2 * REACH**2))
        time += (weights * self.errors).sum(1) / (weights.sum(1) + TRUST)
        time += UNKNOWN * (1 - weights.max(1))
        m, _, k = shapes.T
        refused = (k < self.tiling.least_k) | (m > (self.tiling.rows or NO_LIMIT))
        refused |= (self.tiling.blocks >= FOUR) & (rows[:, 1] > MOST_WAVES)
        return np.where(refused, NEVER, time)


def inside(bins: Sequence[int], share: float) -> list[int]:
    """An extent in each bin: its highest one, with a share of 1. Above the last bin, as far again."""
    ends = [bins[0] // 2, *bins, 2 * bins[-1]]
    return [round(low + (high - low) * share) for low, high in pairwise(ends)]


def fetched_early(tiling: Any, time: float) -> float:
    """The time of a tiling, from one that was measured before blocks fetched weights early."""
    kind = "other" if tiling.m > 64 else "swapped" if tiling.swapped else "rows"
    return time - min(SAVED[kind], MOST_SAVED * time)


def read_times(tilings: dict[str, Any]) -> dict[str, list[tuple[tuple[int, int, int], float]]]:
    """Measured times by tiling, of the products to tune on."""
    data = json.loads(MEASURED.read_text())
    found: dict[str, list[tuple[tuple[int, int, int], float]]] = {}
    for key in ("rows", "before"):
        for m, n, k, times in data[key]:
            for label in times.keys() & tilings.keys():
                time = times[label] if key == "rows" else fetched_early(tilings[label], times[label])
                found.setdefault(label, []).append(((m, n, k), time))
    return found


def best_of_cells(predicted: Sequence[Predicted]) -> list[int]:
    """For each cell the number of the tiling with the least time, over a few products in the cell."""
    total: Any = 0.0
    for shares in product(SHARES, repeat=3):
        extents = (inside(bins, share) for bins, share in zip((M_BINS, N_BINS, K_BINS), shares, strict=True))
        shapes = np.array(list(product(*extents)))
        total = total + np.stack([own(shapes) for own in predicted], axis=1)
    return [int(index) for index in total.argmin(1)]


def cell_of(shape: tuple[int, int, int]) -> int:
    """The number of the cell that a product is in."""
    number = 0
    for bins, extent in zip((M_BINS, N_BINS, K_BINS), shape, strict=True):
        number = number * (len(bins) + 1) + bisect_left(bins, extent)
    return number


def corrected(chosen: Sequence[int], labels: Sequence[str], measured: Mapping[str, Any]) -> list[int]:
    """The same cells, with the tiling that was measured to be the fastest on all products of a cell that were measured."""
    times: dict[int, dict[tuple[int, int, int], dict[str, list[float]]]] = {}
    for label in labels:
        for shape, time in measured[label]:
            times.setdefault(cell_of(shape), {}).setdefault(shape, {}).setdefault(label, []).append(time)
    found = list(chosen)
    for cell, products in times.items():
        own = labels[chosen[cell]]
        everywhere = set.intersection(*(set(by_label) for by_label in products.values()))
        if own in everywhere:
            mean = {
                label: np.mean([np.log(np.median(by_label[label])) for by_label in products.values()])
                for label in everywhere
            }
            best = min(mean, key=lambda label: mean[label])
            if mean[best] < mean[own] - FASTER:
                found[cell] = labels.index(best)
    return found


def sets_of(labels: Sequence[str], chosen: Sequence[int]) -> Iterator[TunedSet]:
    """The same choice for every dtype and epilogue."""
    bins = tuple(tuple(high + 1 for high in highest) for highest in (M_BINS, N_BINS, K_BINS))
    for epilogue, dtype in product(EPILOGUES, ("f16", "bf16")):
        point = {"epilogue": epilogue, "dtype": dtype, "batched": "matrix", "a": "a_rows", "b": "b_rows"}
        names = tuple("__".join(("gemm", *point.values(), label)) for label in labels)
        yield TunedSet(f"gemm__{epilogue}", point, names, bins, tuple(chosen))


def main() -> None:
    declared = {one.tiling.label: one.tiling for one in SM90_CHOICES}
    measured = read_times(declared)
    tilings = {label: tiling for label, tiling in declared.items() if label in measured}
    labels = list(tilings)
    chosen = best_of_cells([Predicted(tiling, measured[label]) for label, tiling in tilings.items()])
    modelled, chosen = chosen, corrected(chosen, labels, measured)
    print(f"{sum(map(ne, modelled, chosen))} cells have another tiling than the model's")
    used = [label for index, label in enumerate(labels) if index in chosen]
    sets = sets_of(used, [used.index(labels[index]) for index in chosen])
    print(f"{len(chosen)} cells, {len(used)} of {len(labels)} tilings")
    for index, label in enumerate(labels):
        print(f"  {label:36} {chosen.count(index):5} cells")
    TABLE.parent.mkdir(exist_ok=True)
    kernel = TunedKernel("gemm", Arch.parse("sm_90a"), ("m", "n", "k"), tuple(sets))
    TABLE.write_text(tuning_text(Tuning(H200, (kernel,))))


if __name__ == "__main__":
    main()
