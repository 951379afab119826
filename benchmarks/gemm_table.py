"""Writes the tables by which the shipped products choose their tilings on an H200, from measured times of these.

Reads times of products to tune on, and of no others: the files that ``tilings.py`` writes, in the folder ``--times``.
Needs NumPy and no GPU, and takes ten minutes on two cores. The times are too large for the repository. Those of the
shipped table are in its history:

    git archive b0b3cf6 benchmarks/results | tar x -C /tmp
    python benchmarks/gemm_table.py --times /tmp/benchmarks/results

A table that ``python -m aot tune`` measures has the answer of the nearest measured product in each of its bins. For
a product that is not enough: one tile more than there are multiprocessors costs another wave, so the best tiling of a
product can be a bad one for its neighbour. So the time of each tiling is modelled, with the number of waves exact:

    time = start + waves * (tile + step * (1 + missing * share of rows that the matrix does not have) * steps along k)
           + work * (tiles / tiles of a wave) * steps along k + bytes / bandwidth

The six numbers are fitted to the measured times. What is left of the error has two parts. One is common to all tilings of
a product; it does not matter for the choice and is removed. The other is interpolated between the measured products by a
Gaussian process, which also says how uncertain it is: of two tilings that are predicted alike, the one that was measured
nearby is taken. Each cell of the table has the tiling with the least time over a few products in it, or the one that was
measured to be faster on the products in it. Bins of m and n are narrow for the sake of waves, those of k need not be.

``--left-out`` writes nothing. It predicts products that the model was not fitted to, and says how fast the tilings are that
it chooses for them: by the prediction itself, and by a cell of a table.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _common import PROJECT
from aot_runtime.arch import Arch
from gemm_shapes import BEHIND

from aot.bundle.tuning import TunedDevice, TunedKernel, TunedSet, Tuning, tuning_text
from kernels.products._choice import preferences
from kernels.products.gemm import EPILOGUES, SM90_CHOICES
from kernels.products.gemm_f32 import SM90_EXACT_TABLED, SM90_EXACT_USUAL, SM90_TF32_TABLED, SM90_TF32_USUAL
from kernels.products.gemm_fp8 import SM90_BLOCKS_TABLED, SM90_BLOCKS_USUAL, SM90_ROWS_TABLED, SM90_ROWS_USUAL

TABLE = PROJECT / "kernels" / "tuning" / "nvidia_h200_132.json"
H200 = TunedDevice("NVIDIA H200", 132, "9.0")
# Clusters that run at once, by their blocks: those of a cluster are on neighbouring multiprocessors.
CLUSTERS = {1: 132, 2: 66, 3: 39, 4: 30, 5: 22, 6: 18, 8: 15}
# The highest extents of the bins; there is one bin more for all above. Tiles have multiples of 8 rows.
M_BINS = (
    *range(8, 257, 8),
    *range(272, 1025, 16),
    *range(1056, 2049, 32),
    *range(2112, 4097, 64),
    *range(4224, 8193, 128),
    *(10240, 12288, 16384),
)
N_BINS = (
    *range(384, 8193, 128),
    *range(8448, 16385, 256),
    *range(16896, 24577, 512),
    *range(25600, 32769, 1024),
    *(36864, 49152),
)
K_BINS = (2048, 6144)
BINS = (M_BINS, N_BINS, K_BINS)
# Where in a bin: a tile that ends with the bin has nothing to compute in vain. Along k no tile ends.
M_SHARES, N_SHARES, K_SHARE = (1.0, 0.7, 0.3), (1.0, 0.5), 0.8
CYCLES = 1830  # per microsecond; in one, a multiprocessor multiplies 64 x 64 elements 64 deep in 128 of them
# What the six numbers are taken for without any measurement, and how firmly: microseconds, shares of what the tensor cores
# need for a step, and microseconds per megabyte.
START, TILE, STEP_SHARE, WORK_SHARE, MISSING, PER_MEGABYTE = 2.7, 1.0, 0.7, 0.35, 0.3, 0.1
FIRMNESS = np.array([0.3, 0.1, 0.15, 0.1, 0.3, 0.3])
OUTLIER = 0.5  # errors above this, in logarithms of times, count no more
# The Gaussian process: how far errors are alike along m, n and k, in the share of multiprocessors that the last wave has, and
# in waves, and in the share of rows that are missing; their size; and the noise of a measurement. In logarithms.
LENGTHS = np.array([0.45, 0.45, 0.6, 0.7, 1.4, 0.3])
ERROR, NOISE = 0.055, 0.035
UNKNOWN = 0.1  # what is not near to a measured product is taken for this much slower
COMMON = 2.0  # tilings without an error that the common error of a product is averaged with
FASTER = 0.02  # by which a measured tiling must be faster than the predicted one, in logarithms of times
# A tiling is taken for this much slower at e times the most rows or columns, or the fewest rows, that were measured: those that
# are much slower than others on a product were not.
BEYOND = 0.3
NO_LIMIT, NEVER = 1 << 40, 99.0
AT_ONCE = 4096  # shapes that are predicted together, which bounds the memory
FOLDS = 4  # of products that are left out in turn


class Tile(NamedTuple):
    """What the model has to know of a tiling."""

    tokens: int  # rows of ``a`` that a cluster computes
    weights: int  # and rows of ``b``
    area: int  # results of one block
    blocks: int  # of a cluster
    depth: int  # along k, of a step of a cluster
    step: int  # along k, of a step of a block
    least_k: int
    most_rows: int
    bytes: tuple[int, int]  # of an element of the inputs, and of the output
    passes: int  # how often the tensor cores multiply as many bytes as the inputs have


def tile_of(tiling: Any, step: int, input_bytes: int, output_bytes: int, passes: int = 1) -> Tile:
    down, across = tiling.m * tiling.cluster_m, tiling.n * tiling.cluster_n
    rows = getattr(tiling, "rows", None)
    return Tile(
        tokens=across if tiling.swapped else (rows or down),
        weights=down if tiling.swapped else across,
        area=tiling.m * tiling.n,
        blocks=tiling.blocks,
        depth=step * tiling.split_k,
        step=step,
        least_k=tiling.least_k,
        most_rows=rows or NO_LIMIT,
        bytes=(input_bytes, output_bytes),
        passes=passes,
    )


def features(tile: Tile, shapes: np.ndarray) -> np.ndarray:
    """Of each shape: waves, steps along k of all of them, megabytes, waves as a fraction, and the share of missing rows."""
    m, n, k = shapes.T.astype(float)
    high = np.ceil(m / tile.tokens)
    clusters = high * np.ceil(n / tile.weights)
    running = CLUSTERS[tile.blocks]
    waves = np.ceil(clusters / running)
    steps = np.ceil(k / tile.depth)
    megabytes = 1e-6 * (tile.bytes[0] * (m + n) * k + tile.bytes[1] * m * n)
    return np.stack([waves, waves * steps, megabytes, clusters / running, 1 - m / (high * tile.tokens)], axis=1)


def modelled(numbers: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The logarithms of times, from the logarithms of the six numbers."""
    start, tile, step, work, missing, per_megabyte = np.exp(numbers)
    waves, steps, megabytes, full_waves, missing_share = rows.T
    of_waves = waves * tile + steps * step * (1 + missing * missing_share)
    times: np.ndarray = np.log(start + of_waves + work * full_waves * steps / waves + per_megabyte * megabytes)
    return times


def fit(tile: Tile, rows: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The logarithms of the six numbers with the least squared error, by the method of Levenberg and Marquardt."""
    step = tile.passes * tile.area * tile.step * tile.bytes[0] / (64 * 64) / CYCLES
    prior = np.log([START, TILE, STEP_SHARE * step, WORK_SHARE * step, MISSING, PER_MEGABYTE])

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

    def __init__(self, tile: Tile, shapes: np.ndarray, times: np.ndarray) -> None:
        self.tile = tile
        rows = features(tile, shapes)
        self.numbers = fit(tile, rows, times)
        self.errors = times - modelled(self.numbers, rows)
        self.places = self._places(shapes, rows)
        self.measured = shapes.min(0), shapes.max(0)

    def interpolate(self, common: np.ndarray) -> None:
        """Prepare to predict, with the errors that all tilings have in common removed."""
        covariance = ERROR**2 * likeness(self.places, self.places) + NOISE**2 * np.eye(len(self.places))
        self.inverse = np.linalg.inv(covariance)
        self.weights = self.inverse @ (self.errors - common)

    def __call__(self, shapes: np.ndarray) -> np.ndarray:
        """The logarithms of the times, and a bit more if uncertain; very high if the tiling does not take a product."""
        parts = np.split(shapes, range(AT_ONCE, len(shapes), AT_ONCE))
        return np.concatenate([self._predict(part) for part in parts])

    def _predict(self, shapes: np.ndarray) -> np.ndarray:
        rows = features(self.tile, shapes)
        near = likeness(self._places(shapes, rows), self.places)
        alike = ERROR**2 * near
        variance = np.maximum(ERROR**2 - ((alike @ self.inverse) * alike).sum(1), 0)
        time = modelled(self.numbers, rows) + alike @ self.weights + np.sqrt(variance) + UNKNOWN * (1 - near.max(1))
        m, n, k = shapes.T
        (fewest, _, _), (most, widest, _) = self.measured
        beyond = np.maximum(1, np.maximum(fewest / m, m / most)) * np.maximum(1, n / widest)
        time += BEYOND * np.log(beyond)
        return np.where((k < self.tile.least_k) | (m > self.tile.most_rows), NEVER, time)

    def _places(self, shapes: np.ndarray, rows: np.ndarray) -> np.ndarray:
        waves, share = np.log(np.minimum(rows[:, 0], 6)), rows[:, 3] / rows[:, 0]
        return np.concatenate([np.log(shapes), share[:, None], waves[:, None], rows[:, 4:]], axis=1) / LENGTHS


def predict(tiles: Sequence[Tile], shapes: np.ndarray, times: np.ndarray) -> list[Predicted]:
    """A prediction for each tiling, from logarithms of times by product and tiling; NaN: not measured."""
    known = ~np.isnan(times)
    found = [Predicted(one, shapes[known[:, j]], times[known[:, j], j]) for j, one in enumerate(tiles)]
    errors = np.zeros_like(times)
    for j, one in enumerate(found):
        errors[known[:, j], j] = one.errors
    common = errors.sum(1) / (known.sum(1) + COMMON)
    for j, one in enumerate(found):
        one.interpolate(common[known[:, j]])
    return found


class Measured(NamedTuple):
    """Products to tune on, the logarithms of times by product and tiling, NaN if not measured, and those of torch."""

    shapes: np.ndarray
    times: np.ndarray
    torch: np.ndarray


def read_times(file: Path, labels: Sequence[str]) -> Measured:
    data = json.loads(file.read_text())
    numbers = [str(data["tilings"].index(label)) for label in labels]
    rows = data["rows"]
    times = np.array([[row[4].get(number, np.nan) for number in numbers] for row in rows])
    return Measured(np.array([row[:3] for row in rows]), np.log(times), np.log([row[3] for row in rows]))


def products_of_cells(lows: Sequence[np.ndarray], highs: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
    """A few products of each cell, of which the lowest and the highest extents are given."""
    for shares in product(M_SHARES, N_SHARES, (K_SHARE,)):
        extents = [low + (high - low) * share for low, high, share in zip(lows, highs, shares, strict=True)]
        yield np.round(np.stack(extents, axis=1)).astype(int)


def best_of_cells(predicted: Sequence[Predicted], cells: Sequence[np.ndarray]) -> np.ndarray:
    """For each cell the number of the tiling with the least time. A cell is given by its bins of m, n and k."""
    ends = [np.array([bins[0] // 2, *bins, 2 * bins[-1]]) for bins in BINS]
    lows, highs = ([end[own + more] for end, own in zip(ends, cells, strict=True)] for more in (0, 1))
    total: Any = 0.0
    for shapes in products_of_cells(lows, highs):
        total = total + np.stack([own(shapes) for own in predicted], axis=1)
    chosen: np.ndarray = total.argmin(1)
    return chosen


def all_cells() -> list[np.ndarray]:
    grid = np.meshgrid(*(np.arange(len(bins) + 1) for bins in BINS), indexing="ij")
    return [axis.ravel() for axis in grid]


def cells_of(shapes: np.ndarray) -> list[np.ndarray]:
    return [np.searchsorted(bins, extents) for bins, extents in zip(BINS, shapes.T, strict=True)]


def corrected(chosen: np.ndarray, measured: Measured) -> list[int]:
    """The same cells, with the tiling that was measured to be the fastest on all measured products of a cell."""
    cells = np.ravel_multi_index(cells_of(measured.shapes), [len(bins) + 1 for bins in BINS])
    found = [int(index) for index in chosen]
    for cell in np.unique(cells):
        mean = measured.times[cells == cell].mean(0)  # NaN if a tiling was not timed on one of them
        if mean[found[cell]] > np.nanmin(np.append(mean, NEVER)) + FASTER:
            found[cell] = int(np.nanargmin(mean))
    return found


def left_out(tiles: Sequence[Tile], measured: Measured) -> None:
    """Print how fast the chosen tilings are on products that the predictions did not see."""
    shapes, times, torch = measured
    order = np.random.RandomState(1).permutation(len(shapes))
    known = np.where(np.isnan(times), np.inf, times)
    ratios: dict[str, list[float]] = {"the predicted tiling": [], "a cell of a table": [], "the fastest": []}
    for fold in range(FOLDS):
        out = order[fold::FOLDS]
        seen = np.setdiff1d(order, out)
        predicted = predict(tiles, shapes[seen], times[seen])
        exact = np.stack([own(shapes[out]) for own in predicted], 1).argmin(1)
        for name, chosen in (
            ("the predicted tiling", exact),
            ("a cell of a table", best_of_cells(predicted, cells_of(shapes[out]))),
            ("the fastest", known[out].argmin(1)),
        ):
            own = (torch[out] - known[out, chosen])[np.isfinite(known[out, chosen])]  # those that were timed
            ratios[name] += list(own)
    for name, own in ratios.items():
        behind = sum(ratio < np.log(BEHIND) for ratio in own)
        print(f"  {np.exp(np.mean(own)):.3f} of torch with {name}, {behind} of {len(own)} below {BEHIND}")


def sets_of(
    points: Sequence[tuple[str, dict[str, str]]], labels: Sequence[str], chosen: Sequence[int]
) -> list[TunedSet]:
    """The same choice for all these functions and points."""
    used = [index for index in range(len(labels)) if index in chosen]
    cells = tuple(used.index(index) for index in chosen)
    bins = tuple(tuple(high + 1 for high in highest) for highest in BINS)
    print(f"{points[0][0]}: {len(chosen)} cells, {len(used)} of {len(labels)} tilings")
    for index, label in enumerate(labels):
        print(f"  {label:36} {chosen.count(index):5} cells")
    return [
        TunedSet(function, point, tuple("__".join((function.partition("__")[0], *point.values(), labels[i])) for i in used), bins, cells)
        for function, point in points
    ]  # fmt: skip


class Product(NamedTuple):
    """A product with its tilings, where these were measured, and the points that choose alike."""

    kernel: str
    tilings: Sequence[Any]
    tiles: Sequence[Tile]
    file: str
    points: Sequence[tuple[str, dict[str, str]]]

    def measured(self, times: Path) -> Measured:
        return read_times(times / self.file, [tiling.label for tiling in self.tilings])

    def sets(self, times: Path) -> list[TunedSet]:
        measured = self.measured(times)
        chosen = best_of_cells(predict(self.tiles, measured.shapes, measured.times), all_cells())
        return sets_of(self.points, [tiling.label for tiling in self.tilings], corrected(chosen, measured))


def gemm_points() -> list[tuple[str, dict[str, str]]]:
    matrix = {"batched": "matrix", "a": "a_rows", "b": "b_rows"}
    return [
        (f"gemm__{epilogue}", {"epilogue": epilogue, "dtype": dtype, **matrix})
        for epilogue, dtype in product(EPILOGUES, ("f16", "bf16"))
    ]


def fp8_points(scales: str) -> list[tuple[str, dict[str, str]]]:
    dtypes = product(("bf16", "f16"), ("f8e4m3", "f8e5m2"))
    return [("gemm_fp8", {"dtype": dtype, "b": b, "scales": scales}) for dtype, b in dtypes]


def f32_points(precision: str) -> list[tuple[str, dict[str, str]]]:
    given = {"precision": precision, "batched": "matrix"}
    return [(f"gemm_f32__{epilogue}__{precision}", {"epilogue": epilogue, **given}) for epilogue in EPILOGUES]


def products() -> Iterator[Product]:
    tilings: list[Any] = [one.tiling for one in SM90_CHOICES]
    tiles = [tile_of(tiling, tiling.k, 2, 2) for tiling in tilings]
    yield Product("gemm", tilings, tiles, "h200-gemm-tilings.json", gemm_points())
    for scales, usual, tabled, file in (
        ("rows", SM90_ROWS_USUAL, SM90_ROWS_TABLED, "h200-scaled-tilings.json"),
        ("blocks", SM90_BLOCKS_USUAL, SM90_BLOCKS_TABLED, "h200-scaled-block-tilings.json"),
    ):
        tilings = [tiling for tiling, _ in preferences(usual, tabled)]
        yield Product("gemm_fp8", tilings, [tile_of(tiling, 128, 1, 2) for tiling in tilings], file, fp8_points(scales))
    # Exact products are six of pieces that are half as wide.
    for precision, usual, tabled, passes, file in (
        ("tf32", SM90_TF32_USUAL, SM90_TF32_TABLED, 1, "h200-f32-tilings.json"),
        ("exact", SM90_EXACT_USUAL, SM90_EXACT_TABLED, 3, "h200-f32-exact-tilings.json"),
    ):
        tilings = [tiling for tiling, _ in preferences(usual, tabled)]
        tiles = [tile_of(tiling, 32, 4, 4, passes) for tiling in tilings]
        yield Product("gemm_f32", tilings, tiles, file, f32_points(precision))


def main() -> None:
    arguments = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    arguments.add_argument("--times", type=Path, required=True, metavar="FOLDER", help="with the files of `tilings.py`")
    arguments.add_argument(
        "--left-out", action="store_true", help="write no table, and tell how good the predictions are"
    )
    given = arguments.parse_args()
    sets: dict[str, list[TunedSet]] = {}
    for one in products():
        if given.left_out:
            print(one.file)
            left_out(one.tiles, one.measured(given.times))
        else:
            sets.setdefault(one.kernel, []).extend(one.sets(given.times))
    if not given.left_out:
        arch, by = Arch.parse("sm_90a"), ("m", "n", "k")
        kernels = tuple(TunedKernel(kernel, arch, by, tuple(own)) for kernel, own in sets.items())
        TABLE.write_text(tuning_text(Tuning(H200, kernels)))


if __name__ == "__main__":
    main()
