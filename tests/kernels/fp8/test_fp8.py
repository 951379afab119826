"""Kernels that round to f8 as far as they can be tested without a GPU: what is launched and what is refused."""

from __future__ import annotations

import aot_runtime
import pytest
from aot_runtime import ArgumentError
from standin import Standin

F8 = "float8_e4m3fn"
SCALES = {"quantize_fp8_blocks": (300, 4), "quantize_fp8_squares": (3, 4)}  # of 300 x 512 elements


@pytest.mark.parametrize("kernel", SCALES)
def test_each_block_of_elements_has_a_scale(kernel: str, cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    x, out = cuda.tensor((300, 512), "bfloat16"), cuda.tensor((300, 512), F8)
    bundle[kernel](x, out, cuda.tensor(SCALES[kernel], "float32"))
    assert len(cuda.launches) == 1
    rows, columns = SCALES[kernel]
    for wrong in ((rows, columns + 1), (rows + 1, columns)):
        with pytest.raises(ArgumentError, match="scale"):
            bundle[kernel](x, out, cuda.tensor(wrong, "float32"))
    assert len(cuda.launches) == 1


@pytest.mark.parametrize("kernel", SCALES)
def test_rows_that_are_no_whole_blocks_are_refused(kernel: str, cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    x, out = cuda.tensor((300, 500), "bfloat16"), cuda.tensor((300, 500), F8)
    with pytest.raises(ArgumentError, match="128"):
        bundle[kernel](x, out, cuda.tensor(SCALES[kernel], "float32"))


def test_a_given_scale_takes_rows_of_any_width(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    scale = cuda.tensor((1,), "float32")
    for n in (1, 7, 513):
        bundle["quantize_fp8_scaled"](cuda.tensor((300, n), "bfloat16"), scale, cuda.tensor((300, n), F8))
    assert len(cuda.launches) == 3


def test_no_rows_launch_nothing(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    x, out = cuda.tensor((0, 512), "bfloat16"), cuda.tensor((0, 512), F8)
    bundle["quantize_fp8_blocks"](x, out, cuda.tensor((0, 4), "float32"))
    bundle["quantize_fp8_squares"](x, out, cuda.tensor((0, 4), "float32"))
    bundle["quantize_fp8_scaled"](x, cuda.tensor((1,), "float32"), out)
    assert cuda.launches == []
