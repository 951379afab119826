"""Matrix products of f32: exact ones, and ones of inputs that are rounded to TF32.

The tolerance is that of every output in f32: an error of 2^-18 of the largest element, or 2^-20 by norm. A sum in f32 of
256 products has an error near sqrt(256 / 6) * 2^-24 of itself, 2^-21.3, and the sum of such sums adds less than that as
long as k is below 65,536. Products of few rows are 128 sums of k / 128 products each, which are 512 at most: 2^-20.8.
Tensor cores cut off bits instead of rounding: 8 instructions have up to 8 * 2^-24 * 2/3, and their sums are added up after
that. Products of two numbers of TF32 are exact in f32.

On sm_90a, exact products are sums of products of pieces, of which each is right to 2^-24. Sums of 32 are cut off twice, and up
to k / 32 of them are added up in f32: an error near sqrt(k / 32 / 6) * 2^-24, below 2^-20 as long as k is below 49,152.

A number halfway between two of TF32 may be rounded to either: TMA, which rounds on sm_90a, takes the even one, and the
instruction of other code the one farther from zero. Inputs have no such numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from .. import _activations
from ._products import TUNE, with_specials
from ._products import cost as cost

# m, n, k: most extents are not multiples of a tile, and some k are longer than a block of sums.
SHAPES = ((0, 8, 8), (1, 1, 1), (1, 200, 4099), (127, 129, 17), (130, 264, 1031), (257, 77, 8808), (1000, 515, 200))
FEW = ((1, 200, 4100), (2, 77, 2060), (4, 515, 132))  # few rows, which are multiplied without tiles
# Tiles of each height, of which each has one block, or shares its part of k with one other or with seven.
LOW = ((16, 200, 132), (9, 130, 260), (7, 77, 1032), (32, 70, 68), (17, 100, 516), (31, 515, 2060))
SMALL = ((60, 136, 72), (100, 129, 516), (64, 300, 1100))
WIDE = ((1030, 3080, 516), (777, 2056, 512), (700, 780, 1036), (500, 3204, 36))  # enough work for wide tiles
# Exponents of two by which inputs are multiplied: bits of such numbers are below the smallest of bf16, or they become infinite
# if they are multiplied with 2**16.
FAR = ((-120, 100), (115, -110))
# For each tile of TF32 for sm_90a, products for which the models, or the table for an H200, choose it.
TF32 = (
    *((520, 260, 188), (33, 4132, 516), (117, 4228, 632), (1030, 132, 1032), (520, 132, 764), (117, 4812, 728)),
    *((190, 8452, 4), (200, 10852, 792), (129, 4292, 732), (117, 8548, 1352), (1, 8460, 4), (190, 11076, 148)),
    *((17, 3848, 16), (333, 72, 208), (33, 8456, 16), (117, 5064, 80), (129, 4872, 16), (50, 4760, 1120)),
    *((100, 1800, 80), (117, 10264, 16)),
)
BATCHES = ((1, 64, 64, 64), (3, 104, 137, 71), (2, 130, 72, 68), (2, 1, 77, 132), (2, 3, 77, 132))
BATCHES_OF_TILES = ((2, 9, 200, 1032), (3, 20, 72, 260), (2, 100, 130, 1032), (3, 520, 520, 260))
BENCH = ((2048, 2048, 2048), (4096, 4096, 4096), (333, 5120, 2048), (64, 8192, 8192), (1, 4096, 4096))
EXACT = {"identity": lambda x: x, **_activations.EXACT}


def reference(a: Any, b: Any, bias: Any = None, epilogue: str = "identity", precision: str = "exact") -> Any:
    if precision == "tf32":
        a, b = tf32(a), tf32(b)
    product = a.double() @ b.double().mT
    return EXACT[epilogue](product if bias is None else product + bias.double())


def tf32(x: Any) -> Any:
    """``x`` rounded to the nearest of the numbers of 11 bits that TF32 has of f32."""
    import torch

    nearest = ((x.contiguous().view(torch.int32) + (1 << 12)) & -(1 << 13)).view(torch.float32)
    return torch.where(x.isfinite(), nearest, x)


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for (m, n, k), biased in product(SHAPES, (False, True)):
        yield _problem(make, (m, k), (n, k), biased)
    for m, n, k in (*FEW, *LOW, *SMALL, *WIDE, *TF32):
        yield _problem(make, (m, k), (n, k), True)
    for (batch, m, n, k), biased in (*product(BATCHES, (False, True)), *product(BATCHES_OF_TILES, (True,))):
        yield _problem(make, (batch, m, k), (batch, n, k), biased)
    for a_rows, b_rows in product((True, False), (True, False)):
        yield _problem(make, (136, 73), (261, 73), True, a_rows, b_rows)
    a, b = make.tensor((77, 65), "f32", stride=67), make.tensor((65, 130), "f32", stride=131)
    yield {"a": _off_ties(make, a), "b": _off_ties(make, b).mT[::2]}
    yield with_specials(_problem(make, (40, 72), (72, 72), True))
    for own, other in FAR:
        a, b = [_off_ties(make, _matrix(make, (rows, 72), True).abs() + 0.5) for rows in (40, 72)]
        yield {"a": a * 2.0**own, "b": b * 2.0**other}


def _problem(make: Any, a: Any, b: Any, biased: bool, a_rows: bool = True, b_rows: bool = True) -> dict[str, Any]:
    problem = {"a": _matrix(make, a, a_rows), "b": _matrix(make, b, b_rows)}
    return {**problem, "bias": make.tensor((b[-2],), "f32")} if biased else problem


def _matrix(make: Any, shape: tuple[int, ...], row_major: bool) -> Any:
    """Elements near k ** -0.25, so that sums are in the range in which epilogues are not linear."""
    *batch, rows, columns = shape
    tensor = make.tensor((*batch, rows, columns) if row_major else (*batch, columns, rows), "f32")
    tensor *= max(columns, 1) ** -0.25
    _off_ties(make, tensor)
    return tensor if row_major else tensor.mT


def _off_ties(make: Any, tensor: Any) -> Any:
    """The tensor, with no number halfway between two of TF32: their last bit is 0."""
    tensor.view(make.torch.int32).bitwise_or_(1)
    return tensor


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for m, n, k in BENCH:
        yield {"a": make.tensor((m, k), "f32"), "b": make.tensor((n, k), "f32")}


def tune_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for m, n, k in TUNE:
        yield {"a": make.tensor((m, k), "f32"), "b": make.tensor((n, k), "f32")}


def torch_equivalent(a: Any, b: Any, bias: Any = None, epilogue: str = "identity", precision: str = "exact") -> Any:
    import torch

    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    added = a @ b.mT if bias is None else a @ b.mT + bias
    return added if epilogue == "identity" else getattr(torch.nn.functional, epilogue)(added)
