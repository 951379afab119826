"""The table of element types agrees with CuTe DSL and torch, which name and size the same types."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from aot_runtime.dtypes import TABLE, find_dtype

import aot
from aot.cli.parser import make_parser
from aot.gpu.inputs import dtype_name
from aot.kinds import DTYPES
from tools import dtypes
from tools.generated import rewritten

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


def test_tvm_ffi_has_every_type_by_its_long_name() -> None:
    import tvm_ffi

    for dtype in TABLE:
        if not dtype.torch.startswith("complex"):  # of which TVM-FFI knows nothing
            found = tvm_ffi.dtype(dtype.torch.replace("_x", "x"))
            assert (int(found.type_code), found.bits, found.lanes) == (dtype.code, dtype.bits, dtype.lanes), dtype.name


def test_a_name_stands_for_one_dtype() -> None:
    names = [name for dtype in TABLE for name in dict.fromkeys(dtype.names)]
    assert len(set(names)) == len(names)
    assert all(find_dtype(name) is dtype for dtype in TABLE for name in dtype.names)


@pytest.mark.parametrize("alias", ["f8e4m3", "float8_e4m3fn", "fp8", "torch.float8_e4m3fn", "FP8"])
def test_any_name_will_do_and_one_is_kept(alias: str) -> None:
    tensor = aot.Tensor(alias, ("n",))
    assert tensor.dtype == aot.Pointer(alias).dtype == "f8e4m3"
    assert aot.Out("out", shape="x.shape", dtype=alias).dtype == "f8e4m3"
    assert dtype_name(alias) == "f8e4m3"
    parameters = make_parser(["check"]).parse_args(["check", "bundle", "--dtype", alias])
    assert parameters.dtype == ["f8e4m3"]


def test_what_is_no_dtype_is_refused_with_those_that_are() -> None:
    with pytest.raises(aot.DeclarationError, match="unknown dtype: 'float8'") as caught:
        aot.Tensor("float8", ("n",))
    assert "f8e4m3" in (caught.value.hint or "")
    with pytest.raises(aot.DeclarationError, match="unknown dtype: 'float8_e4m3'"):  # messages name it, code cannot
        aot.Tensor("float8_e4m3", ("n",))


def test_the_tables_of_the_c_sources_are_this_one() -> None:
    for path, regions in dtypes.regions().items():
        assert rewritten(path.read_text(), regions) == path.read_text(), f"run `python tools/dtypes.py`: {path}"


@pytest.mark.torch
def test_torch_has_every_type_with_these_bits() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    found = bits(TORCH, *(dtype.torch for dtype in DTYPES.values()))
    for size, dtype in zip(found, DTYPES.values(), strict=True):
        whole = 8 if dtype.name == "i4" else dtype.bits * dtype.lanes  # torch has a byte for each integer of 4 bits
        assert size in (whole, None)  # older versions lack some
    assert sum(size is not None for size in found) >= 12
