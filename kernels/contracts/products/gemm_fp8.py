"""Products of matrices in f8 with scales: one, per row, or per block of 1 x 128 by 128 x 128.

Why the tolerance of the output's dtype is enough. The tensor cores of sm_90a add 32 products to a sum at once and cut each
addend off, towards zero, at ``u = 2**-13 * s``, with ``s`` the largest power of two among them. A product of two f8e4m3 has
8 bits, so only the sum and products below 2**-7 * s lose anything: of products of normal numbers about a sixth. What is
cut off is spread evenly below u, with a mean square of u**2 / 3, and as random in sign as the products are. Four such
additions make a sum of 128 products, with a standard deviation of sqrt(128) = 11.3, in which s is 8 or less as a rule:
4 * (32 / 6 + 1) errors of u = 2**-10 amount to sqrt(25 / 3) * 2**-10 = 2.8e-3, which is 2.5e-4 of the sum. Sums of 128 are
then added in f32, which keeps that ratio for any k. Rounding the result to f16 adds 2.1e-4, together 3.3e-4 of the norm, of
which 4.9e-4 is tolerated. In bf16 rounding alone matters. If all products have the same sign, the errors add up to about
1e-3 of the result, as they do in torch's product: inputs of that kind are not checked in f16.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import aot

from ._products import TUNE

# m, n, k: at least one product for every tiling. Most extents are not multiples of a tile.
SHAPES = (
    (0, 8, 16),
    (1, 8, 16),
    (16, 72, 64),
    (17, 64, 4176),
    (64, 128, 1040),
    (65, 12_304, 112),
    (1, 200, 1040),
    (24, 2504, 3056),
    (350, 2056, 272),
    (24, 4104, 4176),
    (520, 8, 3056),
    (200, 6152, 1040),
    (200, 4104, 3056),
    (129, 10_248, 1168),
    (139, 12_304, 272),
    (333, 6152, 528),
    (200, 12_304, 272),
    (190, 12_304, 1040),
    (1030, 3080, 528),
    (16, 8200, 2064),
    (65, 200, 272),
    (129, 264, 80),
    (333, 648, 1168),
    (520, 1000, 272),
    (1030, 520, 6144),
    (1030, 1368, 528),
    (1030, 2504, 1040),
    (2049, 1136, 272),
    (2049, 8, 2064),
    (129, 2504, 6160),
    (139, 6152, 1168),
    (129, 136, 7600),
    (2049, 136, 544),
    (33, 5384, 5280),
    (50, 3912, 2944),
    (50, 1944, 2720),
    (33, 6600, 7136),
    (33, 8472, 5664),
    (65, 2568, 3712),
    (65, 2568, 4432),
    (97, 1992, 3664),
    (97, 8520, 320),
    (100, 4296, 3056),
    (117, 13_208, 240),
    (97, 6664, 3136),
    (97, 21_144, 336),
    # What is left of the tilings that the table for an H200 chooses.
    (50, 72, 2096),
    (33, 8456, 16),
    (50, 4744, 2064),
    (1030, 1800, 16),
    (100, 72, 2144),
    (1030, 72, 4208),
    (65, 2504, 2432),
    (350, 72, 2128),
    (333, 6920, 16),
)
BLOCK_SHAPES = (
    *((m, n, -(-k // 128) * 128) for m, n, k in SHAPES),
    *SHAPES[::5],  # whose last block along k is smaller
    (520, 72, 128),
    (520, 1000, 128),
    (520, 520, 2176),
    (1, 10_248, 128),
    (150, 12_304, 384),
)
B_DTYPES = ("f8e4m3", "f8e5m2")
BLOCK = 128
BENCH = ((2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192), *((m, 8192, 8192) for m in (16, 64, 256)))


def reference(a: Any, b: Any, a_scale: Any, b_scale: Any) -> Any:
    if a_scale.ndim == 2:
        return _spread(a, a_scale, 1).double() @ _spread(b, b_scale, BLOCK).double().mT
    return (a.double() @ b.double().mT) * a_scale.double()[:, None] * b_scale.double()


def _spread(matrix: Any, scale: Any, rows: int) -> Any:
    """A matrix times the scales of its blocks, in f64."""
    scale = scale.double().repeat_interleave(BLOCK, 1)[:, : matrix.shape[1]]
    return matrix.double() * scale.repeat_interleave(rows, 0)[: matrix.shape[0]]


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for b, shape in product(B_DTYPES, SHAPES):
        yield _rows(make, b, *shape)
    for b, shape in product(B_DTYPES, SHAPES[::4]):
        yield _rows(make, b, *shape) | {"a_scale": _scale(make, 1), "b_scale": _scale(make, 1)}
    for b, shape in product(B_DTYPES, BLOCK_SHAPES):
        yield _blocks(make, b, *shape)
    for b in B_DTYPES:
        yield _rows(make, b, 130, 264, 272, padding=16) | {"b_scale": _scale(make, 1)}
        yield _blocks(make, b, 70, 200, 384, padding=128, columns_first=True)
        yield from _special(make, b)
        yield from _every_value(make, b)


def _scale(make: Any, *shape: int) -> Any:
    return make.tensor(shape, "f32").abs() + 0.125


def _matrix(make: Any, dtype: str, rows: int, k: int, padding: int) -> Any:
    return make.tensor((rows, k), dtype, stride=k + padding)


def _rows(make: Any, b: str, m: int, n: int, k: int, padding: int = 0) -> dict[str, Any]:
    return {
        "a": _matrix(make, "f8e4m3", m, k, padding),
        "b": _matrix(make, b, n, k, padding),
        "a_scale": _scale(make, m),
        "b_scale": _scale(make, n),
    }


def _blocks(make: Any, b: str, m: int, n: int, k: int, padding: int = 0, columns_first: bool = False) -> dict[str, Any]:
    blocks = -(-k // BLOCK)
    a_scale = _scale(make, blocks, m).mT if columns_first else _scale(make, m, blocks)
    return _rows(make, b, m, n, k, padding) | {"a_scale": a_scale, "b_scale": _scale(make, -(-n // BLOCK), blocks)}


def _special(make: Any, b: str) -> Iterator[dict[str, Any]]:
    """NaN in ``a``, in ``b`` and in the scales reaches the elements of its row or column, and no others."""
    for problem in (_rows(make, b, 72, 136, 128), _blocks(make, b, 72, 136, 128)):
        bits = {name: problem[name].view(make.torch.uint8) for name in ("a", "b")}
        bits["a"][3, 5], bits["b"][7, 70] = 0x7F, 0x7F
        problem["a_scale"][9] = math.nan
        yield problem


def _every_value(make: Any, b: str) -> Iterator[dict[str, Any]]:
    """Each number of 8 bits of either operand once, alone in its row."""
    torch = make.torch
    for which in ("a", "b"):
        problem = _rows(make, b, *((256, 8) if which == "a" else (8, 256)), 256)
        problem |= {"a_scale": _scale(make, 1), "b_scale": _scale(make, 1)}
        kind = problem[which].dtype
        alone = torch.zeros(256, 256, dtype=torch.uint8, device=problem[which].device)
        alone.fill_diagonal_(1)
        alone *= torch.arange(256, dtype=torch.uint8, device=alone.device)
        problem[which] = alone.view(kind)
        yield problem


def cost(a: Any, b: Any, a_scale: Any, b_scale: Any) -> aot.Cost:
    (m, k), n = a.shape, b.shape[0]
    return aot.Cost(operations=2 * m * n * k, bytes=m * k + n * k + 2 * m * n + 4 * (a_scale.numel() + b_scale.numel()))


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for shape in BENCH:
        yield _rows(make, "f8e4m3", *shape)
        yield _blocks(make, "f8e4m3", *shape, columns_first=True)


def tune_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for shape in TUNE:
        yield _rows(make, "f8e4m3", *shape)
        yield _blocks(make, "f8e4m3", *shape, columns_first=True)


def torch_equivalent(a: Any, b: Any, a_scale: Any, b_scale: Any) -> Any:
    """On a GPU what torch multiplies f8 with; its sums are as exact as ours. On a CPU the same in f32."""
    import torch

    if not a.is_cuda:
        if a_scale.ndim == 2:
            return _spread(a, a_scale, 1).float() @ _spread(b, b_scale, BLOCK).float().mT
        return (a.float() @ b.float().mT) * a_scale[:, None] * b_scale
    if a_scale.ndim == 2:
        scales = a_scale, b_scale.mT
    elif a_scale.numel() == 1:
        scales = a_scale, b_scale
    else:
        scales = a_scale[:, None], b_scale[None]
    return torch._scaled_mm(a, b.mT, *scales, out_dtype=torch.bfloat16)
