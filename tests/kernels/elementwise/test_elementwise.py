"""Elementwise kernels as far as they can be tested without a GPU: what is launched and what is refused."""

from __future__ import annotations

import aot_runtime
import pytest
from aot_runtime import ArgumentError
from standin import Standin, address_of


def test_one_kernel_has_all_activations(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    x, out = cuda.tensor((1000,), "bfloat16"), cuda.tensor((1000,), "bfloat16")
    for op in ("relu", "gelu", "gelu_tanh", "silu"):
        bundle["activation"](x, out, op=op)
    assert len({(launch.kernel, launch.grid) for launch in cuda.launches}) == 1 and len(cuda.launches) == 4
    with pytest.raises(ArgumentError, match="tanh"):
        bundle["activation"](x, out, op="tanh")


def test_an_activation_may_be_in_place_and_addresses_decide_about_chunks(
    cuda: Standin, bundle: aot_runtime.Bundle
) -> None:
    x = cuda.tensor((1000,), "bfloat16")
    bundle["activation"](x, x, op="relu")
    odd = cuda.tensor((1000,), "bfloat16", address=address_of(x) + 2)
    bundle["activation"](odd, odd, op="relu")
    chunks, elements = cuda.launches
    assert chunks.kernel != elements.kernel
    with pytest.raises(ArgumentError, match="shares memory"):
        bundle["activation"](x, odd, op="relu")


def test_halves_of_rows_are_read_in_chunks_as_wide_as_their_addresses_allow(
    cuda: Standin, bundle: aot_runtime.Bundle
) -> None:
    """Another kernel for each width of access: of eight bytes, four, shifted chunks, and single elements."""
    for n in (1004, 1002, 1001, 7):
        bundle["silu_and_mul"](cuda.tensor((64, 2 * n), "bfloat16"), cuda.tensor((64, n), "bfloat16"))
    assert len({launch.kernel for launch in cuda.launches}) == 4


def test_no_elements_launch_nothing(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    bundle["activation"](cuda.tensor((0,), "bfloat16"), cuda.tensor((0,), "bfloat16"), op="relu")
    bundle["silu_and_mul"](cuda.tensor((0, 1002), "bfloat16"), cuda.tensor((0, 501), "bfloat16"))
    angles = cuda.tensor((0, 64), "float32"), cuda.tensor((0, 64), "float32")
    bundle["rope"](cuda.tensor((0, 4, 128), "bfloat16"), *angles, cuda.tensor((0, 4, 128), "bfloat16"))
    assert cuda.launches == []
