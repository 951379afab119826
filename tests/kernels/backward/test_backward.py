"""Kernels that compute gradients as far as they can be tested without a GPU: what is launched and what is refused."""

from __future__ import annotations

from typing import Any

import aot_runtime
import pytest
from aot_runtime import ArgumentError, TensorInfo
from standin import Standin

from aot.declare.expressions import shape_of


def norm(cuda: Standin, m: int, n: int, groups: int) -> list[Any]:
    x, row = (m, n), (n,)
    of_rows = [cuda.tensor(shape, "bfloat16") for shape in (x, x, row, x, row)]
    return [*of_rows, cuda.tensor((m,), "float32"), cuda.tensor((groups, n), "float32")]


def test_the_gradient_of_a_weight_takes_partial_sums_as_declared(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    rows = bundle.manifest.kernels["rmsnorm_backward"]
    (partial,) = [one for one in rows.parameters if one.name == "partial"]
    for m in (3, 100_000):
        groups, _ = shape_of(str(partial.shape), {"x": TensorInfo("bf16", (m, 512))})
        bundle["rmsnorm_backward"](*norm(cuda, m, 512, groups))
        with pytest.raises(ArgumentError, match="partial"):
            bundle["rmsnorm_backward"](*norm(cuda, m, 512, groups + 1))
    assert cuda.launches


def groups_of(bundle: aot_runtime.Bundle, m: int, n: int) -> int:
    """Rows of the partial sums that the declaration asks for."""
    (partial,) = [p for p in bundle.manifest.kernels["rmsnorm_residual_backward"].parameters if p.name == "partial"]
    groups, _ = shape_of(str(partial.shape), {"residual_out": TensorInfo("bf16", (m, n))})
    return groups


def residual(cuda: Standin, bundle: aot_runtime.Bundle, m: int, n: int) -> list[Any]:
    """The launches of a call."""
    groups = groups_of(bundle, m, n)
    rows = [cuda.tensor((m, n), "bfloat16") for _ in range(3)]
    results = [cuda.tensor((m, n), "bfloat16"), cuda.tensor((n,), "bfloat16"), cuda.tensor((m,), "float32")]
    cuda.clear()
    bundle["rmsnorm_residual_backward"](
        *rows, cuda.tensor((n,), "bfloat16"), *results, cuda.tensor((groups, n), "float32")
    )
    return list(cuda.launches)


def test_rows_that_a_block_holds_are_read_once(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    """One kernel for both gradients and one that adds up groups; longer rows take a third, which reads them again."""
    launches = [len(residual(cuda, bundle, 1000, n)) for n in (8, 256, 264, 1024, 2048, 4096, 40_000, 200_000)]
    assert launches[:6] == [2] * 6 and launches[-1] == 3 and launches == sorted(launches)


def test_a_block_takes_the_rows_of_one_group(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    for m in (3, 500, 100_000):
        assert residual(cuda, bundle, m, 512)[0].grid[0] == groups_of(bundle, m, 512)
    assert groups_of(bundle, 3, 512) == 3 and groups_of(bundle, 100_000, 512) < 10_000


def test_sums_of_columns_of_no_rows_are_written(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    for m, launches in ((0, 1), (5, 2)):
        cuda.clear()
        x, out = cuda.tensor((m, 512), "bfloat16"), cuda.tensor((512,), "bfloat16")
        bundle["column_sums"](x, out, cuda.tensor((m, 512), "float32"))
        assert len(cuda.launches) == launches


def test_one_launch_computes_the_gradient_of_softmax(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    for n in (1, 511, 66_875):
        cuda.clear()
        bundle["softmax_backward"](*(cuda.tensor((17, n), "bfloat16") for _ in range(3)))
        assert len(cuda.launches) == 1


def test_no_rows_launch_nothing(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    bundle["softmax_backward"](*(cuda.tensor((0, 512), "bfloat16") for _ in range(3)))
    assert cuda.launches == []
