"""The table of element types agrees with CuTe DSL and torch, which name and size the same types."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from aot.kinds import DTYPES

# In a process of their own: both take long to import, and torch must not be there beside the stand-in for CUDA.
CUTLASS = "import cutlass, json, sys; print(json.dumps([getattr(cutlass, name).width for name in sys.argv[1:]]))"
TORCH = """
import json, sys, torch
print(json.dumps([getattr(torch, name).itemsize * 8 if hasattr(torch, name) else None for name in sys.argv[1:]]))
"""


def bits(program: str, *names: str) -> list[int | None]:
    done = subprocess.run([sys.executable, "-c", program, *names], capture_output=True, text=True, check=True)
    answer: list[int | None] = json.loads(done.stdout)
    return answer


def test_cute_dsl_has_every_type_with_these_bits() -> None:
    found = dict(zip(DTYPES, bits(CUTLASS, *(dtype.cutlass for dtype in DTYPES.values())), strict=True))
    assert found.pop("bool") == 1  # as a scalar; a tensor of booleans has a byte for each
    assert found == {name: dtype.bits * dtype.lanes for name, dtype in DTYPES.items() if name != "bool"}


def test_explain_takes_every_type_by_its_short_name() -> None:
    import tvm_ffi
    from aot_runtime.explain import DTYPE_ALIASES

    for name, dtype in DTYPES.items():
        found = tvm_ffi.dtype(DTYPE_ALIASES.get(name, name))
        assert (int(found.type_code), found.bits, found.lanes) == (dtype.code, dtype.bits, dtype.lanes), name


@pytest.mark.torch
def test_torch_has_every_type_with_these_bits() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    found = bits(TORCH, *(dtype.torch for dtype in DTYPES.values()))
    for size, dtype in zip(found, DTYPES.values(), strict=True):
        assert size in (dtype.bits * dtype.lanes, None)  # older versions lack some
    assert sum(size is not None for size in found) >= 12
