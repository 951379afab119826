"""Kernels that compute gradients as far as they can be tested without a GPU: what is launched and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import aot_runtime
import pytest
from aot_runtime import ArgumentError, TensorInfo
from standin import Standin

from aot.declare.expressions import shape_of
from aot.pipeline.settings import BuildResult


@pytest.fixture(scope="module")
def path(build_bundle: Callable[..., BuildResult]) -> Path:
    result = build_bundle(Path(__file__).parent / "small_backward.py", ("sm_90a",), shared_cudart=True)
    assert not result.failures
    return result.path


@pytest.fixture
def backward(path: Path, cuda: Standin) -> aot_runtime.Bundle:
    cuda.reset(capabilities=[(9, 0)], sm_counts=[132])
    return aot_runtime.load(path)


def norm(cuda: Standin, m: int, n: int, groups: int) -> list[Any]:
    x, row = (m, n), (n,)
    of_rows = [cuda.tensor(shape, "bfloat16") for shape in (x, x, row, x, row)]
    return [*of_rows, cuda.tensor((m,), "float32"), cuda.tensor((groups, n), "float32")]


def test_the_gradient_of_a_weight_takes_partial_sums_as_declared(cuda: Standin, backward: aot_runtime.Bundle) -> None:
    rows = backward.manifest.kernels["rmsnorm_backward"]
    (partial,) = [one for one in rows.parameters if one.name == "partial"]
    for m in (3, 100_000):
        groups, _ = shape_of(str(partial.shape), {"x": TensorInfo("bf16", (m, 512))})
        backward["rmsnorm_backward"](*norm(cuda, m, 512, groups))
        with pytest.raises(ArgumentError, match="partial"):
            backward["rmsnorm_backward"](*norm(cuda, m, 512, groups + 1))
    assert cuda.launches


def test_one_launch_computes_the_gradient_of_softmax(cuda: Standin, backward: aot_runtime.Bundle) -> None:
    for n in (1, 511, 66_875):
        cuda.clear()
        backward["softmax_backward"](*(cuda.tensor((17, n), "bfloat16") for _ in range(3)))
        assert len(cuda.launches) == 1


def test_no_rows_launch_nothing(cuda: Standin, backward: aot_runtime.Bundle) -> None:
    backward["softmax_backward"](*(cuda.tensor((0, 512), "bfloat16") for _ in range(3)))
    assert cuda.launches == []
