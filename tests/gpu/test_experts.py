"""Grouped products on a real GPU: one captured CUDA graph serves offsets that change between replays.

Needs a bundle with the family `experts`: ``pytest tests/gpu/test_experts.py --bundle dist/experts``.
"""

from __future__ import annotations

from typing import Any

import aot_runtime
import pytest

from aot.bundle.contracts import Contract, load_contracts
from aot.gpu.check import compare

pytestmark = pytest.mark.gpu
NEEDS = {"grouped_gemm": "experts"}

ROWS, EXPERTS, N, K = 700, 40, 264, 272
# Rows of the experts: even, all at one, none at most, and what reaches not all rows.
REPLAYS = (
    tuple(ROWS // EXPERTS for _ in range(EXPERTS)),
    (0,) * 39 + (ROWS,),
    (ROWS,) + (0,) * 39,
    tuple(5 * i % 31 for i in range(EXPERTS)),
    (0, 1, 0, 63, 64, 65, 128) + (0,) * 33,
)


@pytest.fixture(scope="module")
def contract(bundle: aot_runtime.Bundle) -> Contract:
    return load_contracts(bundle.path, bundle.manifest, ["grouped_gemm"])["grouped_gemm"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_a_graph_stays_right_when_offsets_change(
    torch: Any, bundle: aot_runtime.Bundle, contract: Contract, dtype: str
) -> None:
    a, b = (torch.randn(shape, device="cuda").to(getattr(torch, dtype)) for shape in ((ROWS, K), (EXPERTS, N, K)))
    offsets = torch.zeros(EXPERTS, dtype=torch.int32, device="cuda")
    call = {"a": a, "b": b, "offsets": offsets}
    if dtype != "bfloat16":
        call |= {
            "a_scale": torch.rand(ROWS, device="cuda") + 0.5,
            "b_scale": torch.rand(EXPERTS, N, device="cuda") + 0.5,
        }
    out = torch.empty(ROWS, N, dtype=torch.bfloat16, device="cuda")
    bundle["grouped_gemm"](**call, out=out)  # code is loaded
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        bundle["grouped_gemm"](**call, out=out)
    for rows in REPLAYS:
        offsets.copy_(torch.tensor(rows).cumsum(0))
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        used = sum(rows)
        problem, _, _ = compare(out[:used], contract.reference(**call)[:used])
        assert not problem, (rows, problem)
        assert bool(out[used:].isnan().all())
