"""A call as text, and the variants that it does not reach: the nearest first."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aot_runtime.core.explain import Candidate, Device, Explanation, TensorInfo
from aot_runtime.description.kernel_records import Choice, KernelRecord, Parameter

from aot.bundle.details import LaunchDetails, RequirementDetails, VariantDetails
from aot.errors import UsageError
from aot.gpu import explaining
from aot.gpu.explaining import ask, parse_arguments
from aot.kinds import DTYPES

RECORD = KernelRecord(
    "gemm",
    "",
    (
        Parameter("a", type="tensor"),
        Parameter("bias", has_default=True, default=None, type="tensor?"),
        Parameter("alpha", has_default=True, default=1.0, type="float"),
        Parameter("out", output=True, shape="(*a.shape[:-1], 4)", dtype="f32", type="tensor"),
    ),
    (Choice("op", ("relu", "gelu"), "relu"),),
    ("gemm__relu", "gemm__gelu"),
    (),
    1,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a=f16[4,8,64]", TensorInfo("float16", (4, 8, 64))),
        ("a=bf16[ 4, 8 ]:(16,1)@16", TensorInfo("bfloat16", (4, 8), (16, 1), 16)),
        ("a=float32[]", TensorInfo("float32", ())),
        ("a=f8e4m3[2]", TensorInfo("float8_e4m3fn", (2,))),
        ("bias=none", None),
        ("alpha=3", 3),
        ("alpha=0.5", 0.5),
        ("alpha=true", True),
        ("a=(f32[8,2],(1,2.0),none)", (TensorInfo("float32", (8, 2)), (1, 2.0), None)),
    ],
)
def test_a_value_is_read_from_text(text: str, value: Any) -> None:
    name = text.partition("=")[0]
    assert parse_arguments([text, *([] if name == "a" else ["a=f32[2,2]"]), "out=f32[1]"], RECORD)[name] == value


def test_outputs_have_the_shape_that_is_declared_and_choices_are_words() -> None:
    call = parse_arguments(["a=f16[3,8]", "op=gelu"], RECORD)
    assert call == {"a": TensorInfo("float16", (3, 8)), "op": "gelu", "out": TensorInfo("float32", (3, 4))}


@pytest.mark.parametrize(
    ("texts", "said", "hint"),
    [
        (["a"], "not an argument: 'a'", "write it like x=f16[4,8,64]"),
        (["a=f16(4)"], "not an argument", "write it like"),
        (["a=q7[4]"], "there is no dtype 'q7'", "known: bool"),
        (["a=f16[4]:(1,2)"], "has 1 extents and 2 strides", ""),
        (["b=f16[4]"], "gemm has no parameter 'b'", "it takes: a (tensor), bias (tensor?), alpha (float)"),
        (["alpha=2"], "gemm needs a, out too", "op (relu|gelu)"),
        (["a=f16[4,8]", "a=f16[4,9]"], "'a' is given twice", "leave out one of them"),
        (["a=1"], "cannot tell the shape `(*a.shape[:-1], 4)` and the dtype `f32` of out", "it takes: a (tensor)"),
        (["a=nan"], "cannot tell the shape", "it takes: a (tensor)"),
        (["a=f16[4]@0"], "no address is a multiple of 0 bytes", "from 1 to 1073741824 bytes"),
        (["a=f16[\u0664]"], "not an argument", "write it like"),
    ],
)
def test_what_cannot_be_read_is_refused(texts: list[str], said: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_arguments(texts, RECORD)
    assert said in caught.value.message
    assert hint in (caught.value.hint or "")


def variant(name: str, *requirements: RequirementDetails) -> VariantDetails:
    launch = LaunchDetails("k", 8, 0, 0, None, None, 0)
    return VariantDetails(name, "gemm", "gemm", {}, name, (), 0, (launch,), requirements, True)


def dtype(name: str) -> RequirementDetails:
    packed = DTYPES[name].packed
    return RequirementDetails("a.dtype", "dtype", packed, packed, 0)


def test_the_variant_with_the_fewest_unmet_requirements_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank, rows = RequirementDetails("a.ndim", "ndim", 3, 3, 0), RequirementDetails("a.shape[0]", "extent", 0, 2, 0)
    steps = RequirementDetails("a.shape[1]", "extent_modulo", 0, 0, 16)
    beyond = RequirementDetails("a.shape[2]", "extent", 0, 9, 0)  # the call has no such extent
    guard = RequirementDetails("n * 2", "program", 1, 1, 0)
    made = [
        variant("far", dtype("f32"), rank, rows, steps, beyond, guard),
        variant("near", dtype("f16"), steps, guard),
        variant("middle", dtype("f32"), steps),
        variant("fits", dtype("f16")),
        variant("fits_too"),
    ]
    candidates = [Candidate("sm_100f", "near", "not on 9.0")]
    candidates += [Candidate("sm_90a", one.name, "" if "fits" in one.name else "x") for one in made]
    manifest = SimpleNamespace(files={})
    bundle = SimpleNamespace(
        path=tmp_path, manifest=manifest, explain=lambda *_, **__: Explanation(candidates[4], tuple(candidates))
    )
    (tmp_path / "details").mkdir()
    (tmp_path / "details" / "sm_90a.json").touch()
    monkeypatch.setattr(explaining, "read_details", lambda path, kernel, expected: made)
    answer = ask(bundle, "gemm", Device((9, 0), "", 0), {"a": TensorInfo("float16", (4, 8))})  # type: ignore[arg-type]
    assert [one.variant for one in answer.refused] == ["near", "middle", "far", "near"]
    assert answer.refused[-1].arch == "sm_100f"  # code for another chip comes last
    assert answer.chosen is candidates[4]
    assert [one.variant for one in answer.eligible] == ["fits_too"]
