"""Every feature of a tile serves operands of every dtype: combinations that no shipped product has are compiled."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from aot.pipeline.settings import BuildResult


def test_tilings_that_no_product_has_compile_and_spill_nothing(build_bundle: Callable[..., BuildResult]) -> None:
    result = build_bundle(Path(__file__).parent / "tilings", ("sm_90a",), name="tilings", shared_cudart=True)
    assert not result.failures
    variants = json.loads((result.path / "details" / "sm_90a.json").read_text())["variants"]
    assert {variant["kernel"] for variant in variants} == {"gemm_tilings", "gemm_fp8_tilings", "gemm_tf32_tilings"}
    for variant in variants:
        assert [launch["local_memory"] for launch in variant["launches"]] == [0], variant["name"]
