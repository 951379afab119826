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


def test_one_launch_computes_the_gradient_of_softmax(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    for n in (1, 511, 66_875):
        cuda.clear()
        bundle["softmax_backward"](*(cuda.tensor((17, n), "bfloat16") for _ in range(3)))
        assert len(cuda.launches) == 1


def test_no_rows_launch_nothing(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    bundle["softmax_backward"](*(cuda.tensor((0, 512), "bfloat16") for _ in range(3)))
    assert cuda.launches == []
