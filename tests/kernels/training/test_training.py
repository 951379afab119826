"""Kernels of a step of training as far as they can be tested without a GPU: what is launched and what is refused."""

from __future__ import annotations

from typing import Any

import aot_runtime
import pytest
from aot_runtime import ArgumentError
from standin import Standin


def step(cuda: Standin, size: int, tensors: int, grad: str = "bfloat16") -> list[Any]:
    """The arguments of a step of AdamW, up to the last output."""
    states = [cuda.tensor((size,), "float32") for _ in range(3)]
    segments = [cuda.tensor((tensors,), "int64"), cuda.tensor((tensors,), "float32")]
    numbers = [cuda.tensor((1,), "float32"), cuda.tensor((1,), "int64")]
    return [cuda.tensor((size,), grad), *states, *segments, *numbers, cuda.tensor((size,), "bfloat16"), *states]


def test_one_launch_updates_all_tensors(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    for grad in ("bfloat16", "float32"):
        for size, tensors in ((1, 1), (1 << 20, 300)):
            cuda.clear()
            bundle["adamw"](*step(cuda, size, tensors, grad))
            (launch,) = cuda.launches
            assert launch.grid[0] * launch.block[0] * 4 >= size


def test_gradients_may_be_scaled(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    bundle["adamw"](*step(cuda, 4096, 3), cuda.tensor((1,), "float32"))
    assert len(cuda.launches) == 1


def test_a_model_without_parameters_launches_nothing(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    bundle["adamw"](*step(cuda, 0, 1))
    assert not cuda.launches


def test_a_step_without_tensors_or_with_states_of_another_size_is_refused(
    cuda: Standin, bundle: aot_runtime.Bundle
) -> None:
    with pytest.raises(ArgumentError, match="ends"):
        bundle["adamw"](*step(cuda, 8, 0))
    short, long = step(cuda, 8, 1), step(cuda, 16, 1)
    with pytest.raises(ArgumentError):
        bundle["adamw"](*short[:2], long[2], *short[3:])


def test_a_product_is_added_in_place(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    columns = [cuda.tensor((rows, 512), "bfloat16", strides=(1, rows)) for rows in (128, 256)]
    total = cuda.tensor((128, 256), "float32")
    bundle["gemm_accumulate"](*columns, total, total)
    assert len(cuda.launches) == 1
