"""A call that brings no scratch memory runs a variant that needs none: what the table names nearby."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import aot_runtime
import pytest
from observing import only_block
from places import SAMPLES
from standin import Standin

LABELS = ("t32", "t64", "t96", "t128", "t256")
# By lengths from 0, 10, 100, 1000 and 10000 on.
CELLS = ("t32", "t64", "t96", "t256", "t128")


@pytest.fixture
def bundle(shared_bundle: Callable[..., Path], cuda: Standin, tmp_path: Path) -> aot_runtime.Bundle:
    device = {"name": "Stand-in 9.0", "multiprocessors": 132, "capability": "9.0", "bandwidth": 4000}
    cells = [LABELS.index(label) for label in CELLS]
    one = {"function": "fill_scratch", "point": {}, "bins": [[10, 100, 1000, 10000]], "cells": cells}
    one["variants"] = [f"fill_scratch__{label}" for label in LABELS]
    kernel = {"kernel": "fill_scratch", "arch": "sm_90a", "by": ["n"], "sets": [one]}
    table = tmp_path / "table.json"
    table.write_text(json.dumps({"schema": 1, "device": device, "kernels": [kernel]}))
    settings = {"shared_cudart": True, "tuning": (table,), "name": "scratch"}
    path = shared_bundle("scratch", SAMPLES / "scratch.py", ("sm_90a",), **settings)
    cuda.reset(capabilities=[(9, 0)])
    return aot_runtime.load(path)


def test_the_nearest_variant_that_needs_none_runs(bundle: aot_runtime.Bundle, cuda: Standin) -> None:
    found = {}
    for length in (5, 50, 500, 1000, 5000, 20000):
        bundle.fill_scratch(cuda.tensor((length,), "float32"))
        found[length] = only_block(cuda)
    # 96 threads take no more than 1000 elements, so 5000 get what is named for longer ones.
    assert found == {5: 32, 50: 96, 500: 96, 1000: 128, 5000: 128, 20000: 128}


def test_what_is_asked_for_its_scratch_memory_is_the_best_variant(bundle: aot_runtime.Bundle, cuda: Standin) -> None:
    given = cuda.tensor((64,), "uint8")
    bundle.fill_scratch(cuda.tensor((50,), "float32"), given)
    assert only_block(cuda) == 64
