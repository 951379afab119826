"""Writes the tables by which the shipped products choose their tilings on an H200, from measured times of these.

Reads times of products to tune on, and of no others: the files in ``benchmarks/results`` whose names end with ``tilings``.
Needs NumPy and no GPU. The products in f8 and in TF32 are declared with models of their times, see
``kernels/gemm/_choice.py``. Their tables have what these say, unless another tiling was measured to be faster. The rest of
this text is about ``gemm``.

A table that ``python -m aot tune`` measures has the answer of the nearest measured product in each of its bins. For
a GEMM that is not enough: one tile more than there are multiprocessors costs another wave, so the best tiling of a
product can be a bad one for its neighbour. So the time of each tiling is modelled, with the number of waves exact:

    compute = waves * (tile + step * (1 + missing * share of rows that the matrix does not have) * steps along k)
    time = start + (compute**4 + (bytes / bandwidth)**4) ** (1 / 4)

The five numbers are fitted to the measured times. What is left of the error has two parts. One is common to all tilings of
a product; it does not matter for the choice and is removed. The other is interpolated between the measured products by a
Gaussian process, which also says how uncertain it is: of two tilings that are predicted alike, the one that was measured
nearby is taken. Each cell of the table has the tiling with the least time over a few products in it, or the one that was
measured to be faster on the products in it.

``--left-out`` writes nothing. It predicts products of ``gemm`` that the model was not fitted to, and says how fast the tilings are that
it chooses for them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
from _common import PROJECT, parser
from aot_runtime.arch import Arch

from aot.bundle.tuning import TunedDevice, TunedKernel, TunedSet, Tuning, tuning_text
from kernels.f32.gemm_f32 import SM90_TF32
from kernels.fp8.gemm_fp8 import SM90_BLOCKS, SM90_ROWS
from kernels.gemm._choice import Model, time_of
from kernels.gemm.gemm import EPILOGUES, SM90_CHOICES

RESULTS = PROJECT / "benchmarks" / "results"
MEASURED = RESULTS / "h200-gemm-tilings.json"
TABLE = PROJECT / "kernels" / "tuning" / "nvidia_h200_132.json"
H200 = TunedDevice("NVIDIA H200", 132, "9.0")
# Clusters that run at once, by their blocks: those of a cluster are on neighbouring multiprocessors.
CLUSTERS = {1: 132, 2: 66, 3: 39, 4: 30, 5: 22, 6: 18, 8: 15}
# The highest extents of the bins; there is one bin more for all above. Tiles have multiples of 8 rows.
M_BINS = (
    *range(8, 257, 8),
    *range(272, 513, 16),
    *range(544, 1025, 32),
    *range(1088, 2049, 64),
    *range(2304, 4097, 256),
    *(5120, 6144, 8192, 12288),
)
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
SHARES = (1.0, 0.6)  # where in a bin: a tile that ends with the bin has nothing to compute in vain
DEPTH_SHARE = 0.8  # the same along k, where no tile ends
CYCLES = 1830  # per microsecond; in one, a multiprocessor multiplies 64 x 64 elements 64 deep in 128 of them
SHARPNESS = 4.0  # of the transition between products that wait for tensor cores and those that wait for memory
# What the five numbers are taken for without any measurement, and how firmly: microseconds, and per megabyte.
START, TILE, STEP_SHARE, PER_MEGABYTE, MISSING = 2.7, 1.0, 1.2, 1 / 4.2, 0.3
FIRMNESS = np.array([0.6, 0.2, 0.3, 1.8, 0.3])
OUTLIER = 0.5  # errors above this, in logarithms of times, count no more
# The Gaussian process: how far errors are alike along m, n and k, in the share of multiprocessors that the last wave has, and
# in waves, and in the share of rows that are missing; their size; and the noise of a measurement. In logarithms.
LENGTHS = np.array([0.45, 0.45, 0.6, 0.7, 1.4, 0.3])
ERROR, NOISE = 0.055, 0.035
UNKNOWN = 0.1  # what is not near to a measured product is taken for this much slower
COMMON = 2.0  # tilings without an error that the common error of a product is averaged with
FASTER = 0.02  # by which a measured tiling must be faster than the predicted one, in logarithms of times
BEYOND = 0.3  # a tiling is taken for this much slower at e times the most rows, or the fewest, that were measured
NO_LIMIT, NEVER = 1 << 40, 99.0
FOLDS = 4  # of products that are left out in turn


def features(tiling: Any, shapes: np.ndarray) -> np.ndarray:
    """Of each shape: waves, steps along k of all of them, megabytes, waves as a fraction, and the share of missing rows."""
    m, n, k = shapes.T.astype(float)
    rows, columns = (n, m) if tiling.swapped else (m, n)
    clusters = np.ceil(rows / (tiling.m * tiling.cluster)) * np.ceil(columns / (tiling.n * tiling.across))
    running = CLUSTERS[tiling.blocks]
    waves = np.ceil(clusters / running)
    steps = np.ceil(k / (tiling.k * tiling.split))
    height = tiling.n * tiling.across if tiling.swapped else tiling.loaded_rows * tiling.cluster
    missing = 1 - m / (np.ceil(m / height) * height)
    return np.stack([waves, waves * steps, 2e-6 * (m * k + n * k + m * n), clusters / running, missing], axis=1)


def modelled(numbers: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The logarithms of times, from the logarithms of the five numbers."""
    start, tile, step, per_megabyte, missing = np.exp(numbers)
    compute = rows[:, 0] * tile + rows[:, 1] * step * (1 + missing * rows[:, 4])
    memory = rows[:, 2] * per_megabyte
    return np.log(start + (compute**SHARPNESS + memory**SHARPNESS) ** (1 / SHARPNESS))


def fit(tiling: Any, rows: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The logarithms of the five numbers with the least squared error, by the method of Levenberg and Marquardt."""
    step = STEP_SHARE * tiling.m * tiling.n * tiling.k / (64 * 64 * 64) * 128 / CYCLES
    prior = np.log([START, TILE, step, PER_MEGABYTE, MISSING])

    def errors(numbers: np.ndarray) -> np.ndarray:
        own = np.clip(modelled(numbers, rows) - times, -OUTLIER, OUTLIER)
        return np.concatenate([own, FIRMNESS * (numbers - prior)])

    numbers, damping, small = prior, 1e-2, 1e-4
    now = errors(numbers)
    for _ in range(40):
        slopes = np.stack([(errors(numbers + small * unit) - now) / small for unit in np.eye(len(prior))], axis=1)
        square = slopes.T @ slopes
        change = np.linalg.solve(square + damping * np.diag(np.diag(square) + 1e-9), -slopes.T @ now)
        then = errors(numbers + np.clip(change, -1, 1))
        if then @ then < now @ now:
            numbers, now, damping = numbers + np.clip(change, -1, 1), then, damping / 4
        else:
            damping *= 5
    return numbers


def likeness(places: np.ndarray, others: np.ndarray) -> np.ndarray:
    """1 for the same place, and less the farther two of them are apart."""
    squares = (places**2).sum(1)[:, None] + (others**2).sum(1)[None] - 2 * places @ others.T
    return np.exp(-0.5 * np.maximum(squares, 0))


class Predicted:
    """The time of one tiling for any product."""

    def __init__(self, tiling: Any, shapes: np.ndarray, times: np.ndarray) -> None:
        self.tiling = tiling
        rows = features(tiling, shapes)
        self.numbers = fit(tiling, rows, times)
        self.errors = times - modelled(self.numbers, rows)
        self.places = self._places(shapes, rows)
        self.rows = shapes[:, 0].min(), shapes[:, 0].max()

    def interpolate(self, common: np.ndarray) -> None:
        """Prepare to predict, with the errors that all tilings have in common removed."""
        covariance = ERROR**2 * likeness(self.places, self.places) + NOISE**2 * np.eye(len(self.places))
        self.inverse = np.linalg.inv(covariance)
        self.weights = self.inverse @ (self.errors - common)

    def __call__(self, shapes: np.ndarray) -> np.ndarray:
        """The logarithms of the times, and a bit more if uncertain; very high if the tiling does not take a product."""
        rows = features(self.tiling, shapes)
        near = likeness(self._places(shapes, rows), self.places)
        alike = ERROR**2 * near
        variance = np.maximum(ERROR**2 - ((alike @ self.inverse) * alike).sum(1), 0)
        time = modelled(self.numbers, rows) + alike @ self.weights + np.sqrt(variance) + UNKNOWN * (1 - near.max(1))
        m, _, k = shapes.T
        time += BEYOND * np.maximum(0, np.maximum(np.log(self.rows[0] / m), np.log(m / self.rows[1])))
        return np.where((k < self.tiling.least_k) | (m > (self.tiling.rows or NO_LIMIT)), NEVER, time)

    def _places(self, shapes: np.ndarray, rows: np.ndarray) -> np.ndarray:
        waves, share = np.log(np.minimum(rows[:, 0], 6)), rows[:, 3] / rows[:, 0]
        return np.concatenate([np.log(shapes), share[:, None], waves[:, None], rows[:, 4:]], axis=1) / LENGTHS


class Modelled:
    """The time of one tiling for any product, by the model that it is declared with."""

    def __init__(self, tiling: Any, model: Model) -> None:
        self.time = compile(time_of(tiling, model), tiling.label, "eval")

    def __call__(self, shapes: np.ndarray) -> np.ndarray:
        m, n, k = shapes.T
        logarithms: np.ndarray = np.log(eval(self.time, {"m": m, "n": n, "k": k, "max": np.maximum}))
        return logarithms


def predict(tilings: Sequence[Any], shapes: np.ndarray, times: np.ndarray) -> list[Predicted]:
    """A prediction for each tiling, from logarithms of times by product and tiling; NaN: not measured."""
    known = ~np.isnan(times)
    found = [Predicted(one, shapes[known[:, j]], times[known[:, j], j]) for j, one in enumerate(tilings)]
    errors = np.zeros_like(times)
    for j, one in enumerate(found):
        errors[known[:, j], j] = one.errors
    common = errors.sum(1) / (known.sum(1) + COMMON)
    for j, one in enumerate(found):
        one.interpolate(common[known[:, j]])
    return found


def inside(bins: Sequence[int], share: float) -> list[int]:
    """An extent in each bin: its highest one, with a share of 1. Above the last bin, as far again."""
    ends = [bins[0] // 2, *bins, 2 * bins[-1]]
    return [round(low + (high - low) * share) for low, high in pairwise(ends)]


def read_times(path: Path, name: str, labels: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The products to tune on, the logarithms of times by tiling, and those of cuBLAS or torch."""
    rows = [row for row in json.loads(path.read_text())[name] if row[3].keys() & set(labels)]
    times = np.array([[row[3].get(label, np.nan) for label in labels] for row in rows])
    other = [row[3].get("cublas") or row[3]["torch"] for row in rows]
    return np.array([row[:3] for row in rows]), np.log(times), np.log(other)


def best_of_cells(predicted: Sequence[Callable[[np.ndarray], np.ndarray]]) -> list[int]:
    """For each cell the number of the tiling with the least time, over a few products in the cell."""
    total: Any = 0.0
    for m_share, n_share in product(SHARES, repeat=2):
        shares = (m_share, n_share, DEPTH_SHARE)
        extents = (inside(bins, share) for bins, share in zip((M_BINS, N_BINS, K_BINS), shares, strict=True))
        shapes = np.array(list(product(*extents)))
        total = total + np.stack([own(shapes) for own in predicted], axis=1)
    return [int(index) for index in total.argmin(1)]


def corrected(chosen: Sequence[int], shapes: np.ndarray, times: np.ndarray) -> list[int]:
    """The same cells, with the tiling that was measured to be the fastest on all measured products of a cell."""
    cells = np.zeros(len(shapes), dtype=int)
    for bins, extents in zip((M_BINS, N_BINS, K_BINS), shapes.T, strict=True):
        cells = cells * (len(bins) + 1) + np.searchsorted(bins, extents)
    found = list(chosen)
    for cell in np.unique(cells):
        mean = times[cells == cell].mean(0)  # NaN if a tiling was not timed on one of them
        if mean[found[cell]] > np.nanmin(np.append(mean, NEVER)) + FASTER:
            found[cell] = int(np.nanargmin(mean))
    return found


def left_out(tilings: Mapping[str, Any], shapes: np.ndarray, times: np.ndarray, cublas: np.ndarray) -> None:
    """Print how fast the chosen tilings are on products that the predictions did not see."""
    order = np.random.RandomState(1).permutation(len(shapes))
    ratios, best = [], []
    for fold in range(FOLDS):
        out = order[fold::FOLDS]
        seen = np.setdiff1d(order, out)
        choices = np.stack([own(shapes[out]) for own in predict(list(tilings.values()), shapes[seen], times[seen])], 1)
        known = np.where(np.isnan(times[out]), np.inf, times[out])
        chosen = known[np.arange(len(out)), choices.argmin(1)]
        timed = np.isfinite(chosen)
        ratios += list(cublas[out][timed] - chosen[timed])
        best += list(cublas[out][timed] - known[timed].min(1))
    print(f"{len(ratios)} of {len(shapes)} products, of which the chosen tiling was timed:")
    print(
        f"  {np.exp(np.mean(ratios)):.3f} of cuBLAS with the predicted tiling, {np.exp(np.mean(best)):.3f} with the fastest"
    )


def sets_of(
    points: Sequence[tuple[str, dict[str, str]]], labels: Sequence[str], chosen: Sequence[int]
) -> list[TunedSet]:
    """The same choice for all these functions and points."""
    used = [index for index in range(len(labels)) if index in chosen]
    cells = tuple(used.index(index) for index in chosen)
    bins = tuple(tuple(high + 1 for high in highest) for highest in (M_BINS, N_BINS, K_BINS))
    print(f"{points[0][0]}: {len(chosen)} cells, {len(used)} of {len(labels)} tilings")
    for index, label in enumerate(labels):
        print(f"  {label:36} {chosen.count(index):5} cells")
    return [
        TunedSet(function, point, tuple("__".join((function.partition("__")[0], *point.values(), labels[i])) for i in used), bins, cells)
        for function, point in points
    ]  # fmt: skip


def gemm_sets() -> list[TunedSet]:
    tilings = [one.tiling for one in SM90_CHOICES]
    labels = [tiling.label for tiling in tilings]
    shapes, times, _ = read_times(MEASURED, "rows", labels)
    chosen = corrected(best_of_cells(predict(tilings, shapes, times)), shapes, times)
    matrix = {"batched": "matrix", "a": "a_rows", "b": "b_rows"}
    points = [
        (f"gemm__{epilogue}", {"epilogue": epilogue, "dtype": dtype, **matrix})
        for epilogue, dtype in product(EPILOGUES, ("f16", "bf16"))
    ]
    return sets_of(points, labels, chosen)


def modelled_sets(
    tilings: Sequence[tuple[Any, Model]], file: str, measured: str, points: Sequence[tuple[str, dict[str, str]]]
) -> list[TunedSet]:
    labels = [tiling.label for tiling, _ in tilings]
    shapes, times, _ = read_times(RESULTS / file, measured, labels)
    return sets_of(points, labels, corrected(best_of_cells([Modelled(*one) for one in tilings]), shapes, times))


def fp8_points(scales: str) -> list[tuple[str, dict[str, str]]]:
    dtypes = product(("bf16", "f16"), ("f8e4m3", "f8e5m2"))
    return [("gemm_fp8", {"dtype": dtype, "b": b, "scales": scales}) for dtype, b in dtypes]


def tf32_points() -> list[tuple[str, dict[str, str]]]:
    rounded = {"precision": "tf32", "batched": "matrix"}
    return [(f"gemm_f32__{epilogue}__tf32", {"epilogue": epilogue, **rounded}) for epilogue in EPILOGUES]


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument(
        "--left-out", action="store_true", help="write no table, and tell how good the predictions are"
    )
    given = arguments.parse_args()
    if given.left_out:
        tilings = {one.tiling.label: one.tiling for one in SM90_CHOICES}
        left_out(tilings, *read_times(MEASURED, "rows", list(tilings)))
        return
    sets = {
        "gemm": gemm_sets(),
        "gemm_fp8": [
            *modelled_sets(SM90_ROWS, "h200-scaled-tilings.json", "tensor_52", fp8_points("rows")),
            *modelled_sets(SM90_BLOCKS, "h200-scaled-block-tilings.json", "blocks", fp8_points("blocks")),
        ],
        "gemm_f32": modelled_sets(SM90_TF32, "h200-f32-tilings.json", "tf32_40", tf32_points()),
    }
    arch, by = Arch.parse("sm_90a"), ("m", "n", "k")
    kernels = tuple(TunedKernel(kernel, arch, by, tuple(own)) for kernel, own in sets.items())
    TABLE.write_text(tuning_text(Tuning(H200, kernels)))


if __name__ == "__main__":
    main()
