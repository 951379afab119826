"""Calls without memory are refused as calls on a GPU are: by dtype, rank and extent, with the same message.

Here the dispatcher's two answers are compared, on the stand-in. ``test_torch_fakes`` and ``test_jax`` trace with frameworks.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import aot_runtime
import pytest
from aot_runtime import ArgumentError, DeviceError
from aot_runtime.frameworks.fakes import UNKNOWN, make_check, tensor_facts
from standin import Standin


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(ArgumentError) as caught:
        call()
    return str(caught.value)


@pytest.fixture
def demo(cuda: Standin, demo_bundle_path: Path) -> aot_runtime.Bundle:
    return aot_runtime.load(demo_bundle_path)


@pytest.mark.parametrize(
    "given",
    [
        pytest.param([("float16", (8,)), ("float32", (8,)), ("float32", (8,))], id="dtype"),
        pytest.param([("float32", (8, 4)), ("float32", (8,)), ("float32", (8,))], id="rank"),
        pytest.param([("float32", (8,)), ("float32", (9,)), ("float32", (8,))], id="extent"),
    ],
)
@pytest.mark.parametrize("device", [0, -1])
def test_a_call_without_memory_is_refused_with_the_message_of_a_call(
    cuda: Standin, demo: aot_runtime.Bundle, given: list[tuple[str, tuple[int, ...]]], device: int
) -> None:
    said = refusal(lambda: demo.axpy(*(cuda.tensor(shape, dtype) for dtype, shape in given)))
    facts = [tensor_facts(dtype, shape) for dtype, shape in given]
    assert refusal(lambda: make_check(demo)("axpy", device, *facts, 1.0)) == said


def vector(extent: int | None, dtype: str = "f32", stride: int | None = 1) -> Any:
    return tensor_facts(dtype, (extent,), (stride,))


@pytest.mark.parametrize(
    "given",
    [
        pytest.param([vector(8), vector(8), vector(8), 1.0], id="all known"),
        pytest.param([vector(None), vector(8), vector(None), 1.0], id="extents"),
        pytest.param([vector(8, stride=None), vector(8), vector(8), 1.0], id="strides"),
        pytest.param([vector(8), vector(8), UNKNOWN, UNKNOWN], id="arguments"),
        pytest.param([vector(8), tensor_facts("quint8", (8,)), vector(8), 1], id="dtypes that no kernel can have"),
    ],
)
def test_what_is_not_known_is_not_refused(demo: aot_runtime.Bundle, given: list[Any]) -> None:
    make_check(demo)("axpy", -1, *given)


def test_what_is_known_is_compared_although_the_rest_is_not(demo: aot_runtime.Bundle) -> None:
    check = make_check(demo)
    assert "x.dtype is float16, must be float32" in refusal(
        lambda: check("axpy", -1, vector(None, "f16", None), vector(8), UNKNOWN, UNKNOWN)
    )
    said = refusal(lambda: check("axpy", -1, vector(None), vector(8), vector(8, "f16"), 1.0))
    assert "float32[?]" in said and "not there" not in said and "out.dtype is float16" in said


def test_without_a_device_every_architecture_counts(fresh_bundle: Callable[..., aot_runtime.Bundle]) -> None:
    bundle = fresh_bundle((8, 0))
    out, wrong = tensor_facts("f32", (8,)), tensor_facts("i8", (8,))
    make_check(bundle)("fill", -1, out, 1.0)
    assert "on compute capability 12.0" in refusal(lambda: make_check(bundle)("fill", -1, wrong, 1.0))
    assert "on compute capability 8.0" in refusal(lambda: make_check(bundle)("fill", 0, wrong, 1.0))


def test_a_device_without_code_is_refused_as_in_a_call(fresh_bundle: Callable[..., aot_runtime.Bundle]) -> None:
    bundle = fresh_bundle((7, 5))
    with pytest.raises(DeviceError):
        make_check(bundle)("fill", 0, tensor_facts("f32", (8,)), 1.0)


def test_bundles_of_an_earlier_protocol_are_not_asked() -> None:
    class Earlier:
        def _call(self, name: str) -> int:
            return 1005

    make_check(Earlier())("axpy", -1, UNKNOWN)  # type: ignore[arg-type]


def test_rows_follow_each_other_unless_strides_are_given() -> None:
    assert tensor_facts("f32", (2, 3, 0, 4)).strides == (12, 4, 4, 1)
    assert tensor_facts("f32", (2, None, 4)).strides == (None, 4, 1)
