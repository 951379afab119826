"""Products into a part of a larger matrix, on a real GPU: every variant writes its elements, and no other.

Needs a bundle with the products: ``pytest tests/gpu/test_products.py --bundle dist/kernels``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aot_runtime
import pytest
from aot_runtime.core.asking import variant_function

from aot.bundle.contracts import load_contracts
from aot.gpu.check import compare

pytestmark = pytest.mark.gpu

KERNELS = ("gemm", "gemm_f32", "gemm_fp8", "gemm_gated")
# Rows end in the first chunk of 16 bytes, in the middle of a tile, and in the last chunk of a tile.
COLUMNS = (1, 7, 65, 127, 777)
ROWS = ((3, 72), (13, 4168), (130, 264), (700, 72))  # with what is summed over


def arguments(torch: Any, kernel: str, m: int, n: int, k: int) -> dict[str, Any]:
    if kernel == "gemm_fp8":
        k = -(-k // 16) * 16  # a row is a multiple of 16 bytes
    dtype = {"gemm_f32": torch.float32, "gemm_fp8": torch.float8_e4m3fn}.get(kernel, torch.bfloat16)
    rows = 2 * n if kernel == "gemm_gated" else n
    made = {"a": torch.randn(m, k, device="cuda").to(dtype), "b": torch.randn(rows, k, device="cuda").to(dtype)}
    if kernel == "gemm_fp8":
        made |= {"a_scale": torch.rand(m, device="cuda") + 0.5, "b_scale": torch.rand(n, device="cuda") + 0.5}
    return made


@pytest.mark.parametrize("room", [0, 24])
@pytest.mark.parametrize("kernel", KERNELS)
def test_what_lies_between_the_rows_of_an_output_stays(
    torch: Any, bundle: aot_runtime.Bundle, kernel: str, room: int
) -> None:
    if kernel not in bundle.kernels:
        pytest.skip(f"the bundle has no `{kernel}`")
    capability = "{}.{}".format(*torch.cuda.get_device_capability())
    contract = load_contracts(bundle.path, bundle.manifest, [kernel])[kernel]
    ran = 0
    for n, (m, k) in ((n, rows) for n in COLUMNS for rows in ROWS):
        given = arguments(torch, kernel, m, n, k)
        dtype = torch.float32 if kernel == "gemm_f32" else torch.bfloat16
        whole = torch.empty(m + 1, -(-n // 8) * 8 + room, dtype=dtype, device="cuda")
        out, expected = whole[:m, :n], contract.reference(**given)
        for candidate in bundle.explain(kernel, capability, **given, out=out).candidates:
            if candidate.reason:
                continue
            whole.fill_(float("nan"))
            variant_function(bundle, kernel, candidate.variant)(**given, out=out)
            problem, _, _ = compare(out, expected)
            assert not problem, (candidate.variant, m, n, k, problem)
            beside = torch.cat((whole[:m, n:].flatten(), whole[m]))
            assert bool(beside.isnan().all()), (candidate.variant, m, n, k)
            ran += 1
    assert ran >= len(COLUMNS) * len(ROWS)


def test_no_tiling_spills_to_memory(bundle: aot_runtime.Bundle) -> None:
    """Of all that were built. The test without a GPU compiles the core tilings, and of exact f32 the widest."""
    variants = json.loads((Path(bundle.path) / "details" / "sm_90a.json").read_text())["variants"]
    points = ("gemm__silu__f16__matrix__a_rows__b_rows__", "gemm_f32__silu__exact__matrix__")
    spilled = {
        variant["name"]: [launch["local_memory"] for launch in variant["launches"]]
        for variant in variants
        if variant["name"].startswith(points) and any(launch["local_memory"] for launch in variant["launches"])
    }
    # The largest tile of exact f32 that needs no TMA takes all registers, and two more.
    assert set(spilled) <= {"gemm_f32__silu__exact__matrix__tile128x128_contiguous"}, spilled
