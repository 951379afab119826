"""Every dtype that can be declared can be compiled, chosen and named."""

from __future__ import annotations

from collections.abc import Callable

import aot_runtime
import pytest
from aot_runtime import TensorInfo
from aot_runtime.dtypes import DTYPES, TABLE

from aot.pipeline.settings import BuildResult

SOURCE = """
import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream

import aot


@cute.kernel
def write(out: cute.Tensor):
    out[0] = cutlass.Float32(1.0)


@cute.jit
def take(x: cute.Tensor, out: cute.Tensor, stream: CUstream):
    write(out).launch(grid=[1, 1, 1], block=[1, 1, 1], stream=stream)


@aot.kernel(
    parameters=(aot.In("x"), aot.Out("out", shape="(1,)", dtype="float32")), archs=("sm_90a",), axes={"dtype": DTYPES}
)
def took(target, dtype):
    out = aot.Tensor("f32", ("one",))
    return aot.Spec(take, {"x": aot.Tensor(dtype, ("n",)), "out": out, "stream": aot.Stream()})
"""


@pytest.fixture(scope="module")
def took(build_bundle: Callable[..., BuildResult], tmp_path_factory: pytest.TempPathFactory) -> aot_runtime.Bundle:
    path = tmp_path_factory.mktemp("dtypes") / "took.py"
    path.write_text(SOURCE.replace("DTYPES", repr(tuple(DTYPES))))
    return aot_runtime.load(build_bundle(path, ("sm_90a",)).path)


@pytest.mark.parametrize("name", DTYPES)
def test_a_tensor_is_taken_by_any_name_of_its_dtype(took: aot_runtime.Bundle, name: str) -> None:
    for alias in DTYPES[name].names:
        chosen = took.explain("took", "9.0", TensorInfo(alias, (8,)), TensorInfo("f32", (1,))).chosen
        assert chosen is not None and chosen.variant == f"took__{name}"


@pytest.mark.parametrize("dtype", TABLE, ids=lambda dtype: dtype.name)
def test_a_refusal_has_the_name_of_torch(took: aot_runtime.Bundle, dtype: aot_runtime.dtypes.Dtype) -> None:
    wrong = TensorInfo(dtype.torch, (8,))
    candidates = took.explain("took", "9.0", wrong, TensorInfo("f32", (1,))).candidates
    other = "took__i8" if dtype.name != "i8" else "took__u8"
    (reason,) = [one.reason for one in candidates if one.variant == other]
    assert f"x.dtype is {dtype.torch}," in reason
