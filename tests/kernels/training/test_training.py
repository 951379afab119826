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


def loss(cuda: Standin, tokens: int, words: int, k: int) -> list[Any]:
    """The arguments of a loss with its gradients."""
    (x, weight), gradients = ([cuda.tensor((rows, k), "bfloat16") for rows in (tokens, words)] for _ in range(2))
    return [x, weight, cuda.tensor((tokens,), "int64"), cuda.tensor((1,), "float32"), *gradients]


def test_a_loss_takes_as_many_tokens_at_a_time_as_its_scratch_memory_has_room_for(
    cuda: Standin, bundle: aot_runtime.Bundle
) -> None:
    """What counts comes first and the sum of losses last; a step has the logits, their loss and two gradients."""
    (scratch,) = [one for one in bundle.manifest.kernels["linear_cross_entropy"].parameters if one.name == "scratch"]
    steps = []
    for tokens, words in ((1, 8), (300, 4000), (1024, 131_072), (2000, 131_072), (8192, 131_072), (10_000, 131_072)):
        arguments = loss(cuda, tokens, words, 64)
        room = eval(str(scratch.workspace), {}, {"x": arguments[0], "weight": arguments[1]})
        cuda.clear()
        bundle["linear_cross_entropy"](*arguments, scratch=cuda.tensor((room,), "uint8"))
        rows = [launch.grid[0] for launch in cuda.launches[2::4]]  # a block for each token
        assert sum(rows) == tokens and rows == sorted(rows, reverse=True)
        assert len(cuda.launches) == 2 + 4 * len(rows)
        assert 4 * tokens + 2 * rows[0] * words <= room < (1 << 30) + (1 << 17)
        steps.append(len(rows))
    assert steps[0] == 1 and steps == sorted(steps) and steps[-1] > 1


def test_a_loss_of_no_tokens_writes_zeros_and_multiplies_nothing(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    bundle["linear_cross_entropy"](*loss(cuda, 0, 512, 64), scratch=cuda.tensor((128,), "uint8"))
    assert [launch.grid[0] for launch in cuda.launches] == [1, 512, 1]


def test_a_vocabulary_that_tma_cannot_address_is_refused(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    with pytest.raises(ArgumentError, match="weight"):
        bundle["linear_cross_entropy"](*loss(cuda, 300, 4001, 64))


def test_gradients_of_a_loss_are_scaled_one_by_one(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    by_x, by_weight = cuda.tensor((300, 64), "bfloat16"), cuda.tensor((4000, 64), "bfloat16")
    bundle["linear_cross_entropy_backward"](cuda.tensor((1,), "float32"), by_x, by_weight, by_x, by_weight)
    assert len(cuda.launches) == 2


def test_a_product_is_added_in_place(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    columns = [cuda.tensor((rows, 512), "bfloat16", strides=(1, rows)) for rows in (128, 256)]
    total = cuda.tensor((128, 256), "float32")
    bundle["gemm_accumulate"](*columns, total, total)
    assert len(cuda.launches) == 1


def matrices(cuda: Standin, *shapes: tuple[int, int]) -> list[Any]:
    return [cuda.tensor(shape, "bfloat16") for shape in shapes]


def test_a_product_is_added_to_the_residual_stream_in_its_place(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    a, b, addend = matrices(cuda, (300, 64), (136, 64), (300, 136))
    bundle["gemm_add"](a, b, addend, addend)
    assert len(cuda.launches) == 1
    with pytest.raises(ArgumentError, match="n"):
        bundle["gemm_add"](*matrices(cuda, (300, 64), (136, 64), (300, 144), (300, 144)))


def test_a_product_whose_heads_are_turned_has_whole_heads_and_angles_of_its_rows(
    cuda: Standin, bundle: aot_runtime.Bundle
) -> None:
    a, b, out = matrices(cuda, (300, 64), (192, 64), (300, 192))
    cos, sin = (cuda.tensor((300, 32), "float32") for _ in range(2))
    bundle["gemm_rope"](a, b, cos, sin, out, 2)
    assert len(cuda.launches) == 1
    with pytest.raises(ArgumentError, match="m"):
        bundle["gemm_rope"](a, b, *(cuda.tensor((200, 32), "float32") for _ in range(2)), out, 2)
    with pytest.raises(ArgumentError, match="n % 64"):
        bundle["gemm_rope"](a, *matrices(cuda, (200, 64)), cos, sin, *matrices(cuda, (300, 200)), 2)


def test_a_gated_product_is_twice_as_wide_as_what_it_becomes(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    bundle["gemm_gated_product"](*matrices(cuda, (300, 64), (272, 64), (300, 136), (300, 272)))
    assert len(cuda.launches) == 1
    with pytest.raises(ArgumentError, match="both"):
        bundle["gemm_gated_product"](*matrices(cuda, (300, 64), (272, 64), (300, 144), (300, 272)))


def test_the_gradient_of_a_gated_product_may_replace_it(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    (a, product), down = matrices(cuda, (300, 64), (300, 272)), cuda.tensor((136, 64), "bfloat16", strides=(1, 136))
    bundle["gemm_silu_and_mul_backward"](a, down, product, product)
    assert len(cuda.launches) == 1
    (narrow,) = matrices(cuda, (300, 256))
    with pytest.raises(ArgumentError, match="both"):
        bundle["gemm_silu_and_mul_backward"](a, down, narrow, narrow)


def test_no_rows_launch_no_product(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    down = cuda.tensor((136, 64), "bfloat16", strides=(1, 136))
    bundle["gemm_silu_and_mul_backward"](*matrices(cuda, (0, 64)), down, *matrices(cuda, (0, 272), (0, 272)))
    bundle["gemm_add"](*matrices(cuda, (0, 64), (136, 64), (0, 136), (0, 136)))
    bundle["gemm_gated_product"](*matrices(cuda, (0, 64), (272, 64), (0, 136), (0, 272)))
    assert not cuda.launches
