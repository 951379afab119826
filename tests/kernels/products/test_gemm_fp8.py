"""Products in f8 and gated products, as far as they can be tested without a GPU: what is launched and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aot_runtime
import pytest
from aot_runtime import ArgumentError, Device
from standin import Standin

from aot.model.parts import known_parts

TUNING = (Path(__file__).parents[3] / "kernels" / "tuning" / "products.json",)
F8 = "float8_e4m3fn"
# For 300 x 520 elements of the output and 400 along k: scales of ``a`` and of ``b``.
SCALES = {
    "one": ((1,), (1,)),
    "rows": ((300,), (520,)),
    "rows of one": ((300,), (1,)),
    "blocks": ((300, 4), (5, 4)),
}


def product(cuda: Standin, scales: tuple[tuple[int, ...], ...], m: int = 300, b: str = F8) -> list[Any]:
    operands = cuda.tensor((m, 400), F8), cuda.tensor((520, 400), b)
    return [*operands, *(cuda.tensor(one, "float32") for one in scales), cuda.tensor((m, 520), "bfloat16")]


def test_nothing_spills_to_memory(path: Path) -> None:
    variants = json.loads((path / "details" / "sm_90a.json").read_text())["variants"]
    assert len(variants) > 1
    assert not [variant["name"] for variant in variants for launch in variant["launches"] if launch["local_memory"]]


def test_the_shapes_of_scales_say_what_each_is_for(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    kernels = {}
    for name, scales in SCALES.items():
        cuda.clear()
        bundle["gemm_fp8"](*product(cuda, scales))
        (kernels[name],) = (launch.kernel for launch in cuda.launches)
    assert kernels["one"] == kernels["rows"] == kernels["rows of one"] != kernels["blocks"]


@pytest.mark.parametrize(
    "scales", [((299,), (520,)), ((300,), (521,)), ((300, 3), (5, 4)), ((300, 4), (4, 4)), ((300, 4), (520,))]
)
def test_scales_that_do_not_fit_the_matrices_are_refused(
    scales: tuple[tuple[int, ...], ...], cuda: Standin, bundle: aot_runtime.Bundle
) -> None:
    with pytest.raises(ArgumentError, match="scale"):
        bundle["gemm_fp8"](*product(cuda, scales))
    assert cuda.launches == []


def test_operands_of_16_bits_are_refused(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    with pytest.raises(ArgumentError, match=r"b\.dtype is bfloat16"):
        bundle["gemm_fp8"](*product(cuda, SCALES["one"], b="bfloat16"))


@pytest.mark.parametrize("part", known_parts(), ids=lambda part: part.name)
def test_few_rows_become_columns_of_a_tile(part: Any, cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    """Else most of a tile would be computed in vain."""
    device = Device(part.capability, part.name, part.multiprocessors, part.bandwidth)
    chosen = {}
    for m in (1, 16, 4096):
        found = bundle.explain("gemm_fp8", device, *product(cuda, ((m,), (520,)), m)).chosen
        assert found is not None
        chosen[m] = found.variant
    assert "swapped" in chosen[1] and chosen[1] == chosen[16] != chosen[4096]


def test_a_gated_product_is_half_as_wide_as_its_matrix_has_rows(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    a, out = cuda.tensor((300, 400), "bfloat16"), cuda.tensor((300, 520), "bfloat16")
    bundle["gemm_gated"](a, cuda.tensor((1040, 400), "bfloat16"), out)
    assert len(cuda.launches) == 1
    for rows in (1039, 1042):
        with pytest.raises(ArgumentError, match=r"b|both"):
            bundle["gemm_gated"](a, cuda.tensor((rows, 400), "bfloat16"), out)
    assert len(cuda.launches) == 1


def test_no_rows_launch_nothing(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    bundle["gemm_fp8"](*product(cuda, ((1,), (1,)), 0))
    a, out = cuda.tensor((0, 400), "bfloat16"), cuda.tensor((0, 520), "bfloat16")
    bundle["gemm_gated"](a, cuda.tensor((1040, 400), "bfloat16"), out)
    assert cuda.launches == []
