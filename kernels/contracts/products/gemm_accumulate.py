"""Matrix products of 16 bits, added to a matrix of f32.

Products of 16-bit numbers are exact in f32, and their sums are not. An instruction of the tensor cores adds 16 products to a
sum and cuts each addend off, towards zero, at 2^-24 of the largest of them or finer, so one instruction costs a sum at most
``17 * 2^-24`` of the largest addend, which is no larger than ``s = |a| @ |b|.T``. Most addends are far smaller than the sum
that they are added to, and what is cut off of the sum itself is what adds up: ``2^-23 * s`` for each of the ``k / 16``
instructions covers both. To add ``addend`` costs another rounding of the result. So an error of
``2^-23 * (k / 16 + 1) * s + 2^-23 * |addend|`` is the bound of each element. cuBLAS has the same one: it adds up in the
tensor cores as well. A product that is left out, and a sum that is rounded to 16 bits on its way, are far outside.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import aot

# m, n, k: at least one product for every tiling. Most extents are not multiples of a tile.
SHAPES = (
    (0, 8, 8),
    (8, 8, 8),
    (8, 8, 1),
    (16, 24, 16),
    (40, 16, 264),
    (104, 56, 130),
    (64, 128, 1032),
    (136, 264, 72),
    (336, 648, 808),
    (2056, 1136, 520),
    (2056, 4104, 200),
)
BENCH = ((4096, 4096, 8192), (14_336, 4096, 8192), (4096, 14_336, 16_384))


def reference(a: Any, b: Any, addend: Any = None) -> Any:
    product = a.double() @ b.double().mT
    return product if addend is None else product + addend.double()


def bounds(a: Any, b: Any, addend: Any = None) -> Any:
    instructions = a.shape[1] / 16 + 1
    bound = 2.0**-23 * instructions * (a.double().abs() @ b.double().abs().mT)
    return bound if addend is None else bound + 2.0**-23 * addend.double().abs()


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for shape in SHAPES:
        for columns in (True, False):
            if not columns and shape[2] % 8 == 0:
                yield _call(make, dtype, *shape, columns=False)
                yield {**_call(make, dtype, *shape, columns=False), "addend": make.tensor(shape[:2], "f32")}
            if columns:
                yield {**_call(make, dtype, *shape, columns=True), "addend": make.tensor(shape[:2], "f32")}
    yield {**_call(make, dtype, 40, 72, 64, True), "addend": make.tensor((40, 72), "f32", stride=80)}
    special = {**_call(make, dtype, 40, 72, 72, True), "addend": make.tensor((40, 72), "f32")}
    # These must reach the elements of their row or column, and no others.
    special["a"][3, 5], special["b"][7, 70], special["addend"][9, 9] = math.nan, math.inf, math.nan
    yield special


def _call(make: Any, dtype: str, m: int, n: int, k: int, columns: bool) -> dict[str, Any]:
    if columns:
        # The kernel requires columns that are a multiple of 16 bytes apart.
        return {"a": make.tensor((k, m), dtype, stride=max(m, 8)).mT, "b": make.tensor((k, n), dtype).mT}
    return {"a": make.tensor((m, k), dtype), "b": make.tensor((n, k), dtype)}


def cost(a: Any, b: Any, addend: Any = None) -> aot.Cost:
    (m, k), n = a.shape, b.shape[0]
    moved = (a.numel() + b.numel()) * a.element_size() + 4 * m * n * (1 if addend is None else 2)
    return aot.Cost(operations=2 * m * n * k, bytes=moved)


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for m, n, k in BENCH:
        yield {**_call(make, dtype, m, n, k, columns=True), "addend": make.tensor((m, n), "f32")}


def torch_equivalent(a: Any, b: Any, addend: Any = None) -> Any:
    """Torch has no product of 16 bits that gives f32 everywhere; in f32 it is as exact."""
    product = a.float() @ b.float().mT
    return product if addend is None else product + addend
