"""Matrix products: rows of ``a`` with rows of ``b``, a bias per column, an epilogue."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from .. import _activations
from .._layouts import every_value
from ._products import TUNE, with_specials
from ._products import cost as cost

# m, n, k: at least one product for every tiling, with the table for an H200. Most extents are not multiples of a tile.
SHAPES = (
    (0, 8, 8),
    (1, 8, 8),
    (2, 6152, 200),
    (16, 72, 64),
    (9, 136, 4104),
    (17, 64, 40),
    (17, 64, 4168),
    (33, 520, 1032),
    (64, 128, 1032),
    (65, 200, 64),
    (65, 520, 4168),
    (65, 1800, 2056),
    (129, 264, 72),
    (129, 8200, 200),
    (161, 4872, 200),
    (177, 3848, 200),
    (257, 5128, 200),
    (333, 648, 8808),
    (333, 1000, 520),
    (385, 5640, 200),
    (600, 1288, 1032),
    (801, 1032, 200),
    (801, 2312, 200),
    (897, 520, 200),
    (897, 1288, 200),
    (1030, 472, 4168),
    (1030, 1368, 200),
    (1025, 1544, 200),
    (1281, 1544, 200),
    (1409, 520, 200),
    (1921, 520, 200),
    (1665, 1032, 200),
    (1000, 3080, 2056),
    (2049, 4104, 200),
)
BATCHES = ((1, 64, 64, 64), (3, 104, 136, 72), (2, 304, 264, 520))
# With rows or columns of either operand: at least one product for every tiling.
LAID_OUT = ((136, 264, 72), (136, 264, 520))
LONG = (2056, 8200, 8200)  # gradients of large outputs with long sums have a tiling of their own
IDENTITIES = (64, 1024, 4096)  # products with these are every number of 16 bits: 1024, 64 and 16 rows
BENCH = ((2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192), *((m, 8192, 8192) for m in (16, 64, 256)))


def reference(a: Any, b: Any, bias: Any = None, epilogue: str = "identity") -> Any:
    product = a.double() @ b.double().mT
    return EXACT[epilogue](product if bias is None else product + bias.double())


EXACT = {"identity": lambda x: x, **_activations.EXACT}


def ulps(a: Any, b: Any, bias: Any = None, epilogue: str = "identity") -> float | None:
    """If ``b`` is the identity, each sum is an element of ``a``, and the epilogue alone is measured."""
    alone = a.element_size() == 2 and bias is None and b.ndim == 2 and b.shape[0] == b.shape[1]
    return 1.0 if alone and bool((b == _identity(b)).all()) else None


def _identity(like: Any) -> Any:
    import torch

    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)


def _epilogue(name: str) -> Any:
    from torch.nn import functional

    return (lambda x: x) if name == "identity" else getattr(functional, name)


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for (m, n, k), biased in product(SHAPES, (False, True)):
        yield _problem(make, dtype, (m, k), (n, k), biased)
    for (batch, m, n, k), a_rows, b_rows, biased in product(BATCHES, (True, False), (True, False), (False, True)):
        yield _problem(make, dtype, (batch, m, k), (batch, n, k), biased, a_rows, b_rows)
    for (m, n, k), a_rows, b_rows, biased in product(LAID_OUT, (True, False), (True, False), (False, True)):
        yield _problem(make, dtype, (m, k), (n, k), biased, a_rows, b_rows)
    m, n, k = LONG
    for a_rows in (True, False) if dtype != "f32" else ():
        yield _problem(make, dtype, (m, k), (n, k), False, a_rows, False)
    # Columns with columns that get tiles of their own.
    yield _problem(make, dtype, (2056, 200), (2056, 200), False, False, False)
    yield {"a": make.tensor((40, 64), dtype, stride=72), "b": make.tensor((72, 64), dtype, stride=128)}
    yield with_specials(_problem(make, dtype, (40, 72), (72, 72), True))
    for k in IDENTITIES if dtype != "f32" else ():
        a = every_value(make, dtype, k)
        yield {"a": a, "b": _identity(a)}


def _problem(make: Any, dtype: str, a: Any, b: Any, biased: bool, a_rows: bool = True, b_rows: bool = True) -> dict:
    problem = {"a": _matrix(make, dtype, a, a_rows), "b": _matrix(make, dtype, b, b_rows)}
    return {**problem, "bias": make.tensor((b[-2],), dtype)} if biased else problem


def _matrix(make: Any, dtype: str, shape: tuple[int, ...], row_major: bool) -> Any:
    """Elements near 1 / sqrt(k), so that sums are in the range in which epilogues are not linear."""
    *batch, rows, columns = shape
    laid_out = (*batch, rows, columns) if row_major else (*batch, columns, rows)
    # The kernel requires rows that are a multiple of 16 bytes apart.
    tensor = make.tensor(laid_out, dtype, stride=-(-laid_out[-1] // 8) * 8)
    tensor *= max(columns, 1) ** -0.25
    return tensor if row_major else tensor.mT


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for m, n, k in BENCH:
        yield {"a": make.tensor((m, k), dtype), "b": make.tensor((n, k), dtype)}


def tune_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for m, n, k in TUNE:
        yield {"a": make.tensor((m, k), dtype), "b": make.tensor((n, k), dtype)}


def torch_equivalent(a: Any, b: Any, bias: Any = None, epilogue: str = "identity") -> Any:
    import torch

    if a.ndim == 2:
        return _epilogue(epilogue)(torch.nn.functional.linear(a, b, bias))
    if bias is None:
        return _epilogue(epilogue)(torch.bmm(a, b.mT))
    return _epilogue(epilogue)(torch.baddbmm(bias, a, b.mT))
