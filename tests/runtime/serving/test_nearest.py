"""A miss names the captured call that is nearest, and what differs."""

from __future__ import annotations

from typing import Any

from aot_runtime.serving.nearest import _LETTERS, differences, explain_miss
from aot_runtime.serving.values.forms import Forms

CALL = {"callable": "lib.Norm", "attributes": {"n": 64, "causal": False}, "arguments": {"x": "tensor f16 (?0, 64)"}}


def test_the_nearest_call_and_each_difference_are_named() -> None:
    near = {**CALL, "attributes": {"n": 64, "causal": True}}
    far = {**CALL, "attributes": {"n": 32, "causal": True}, "arguments": {"x": "tensor f32 (?0, 32)"}}
    text = explain_miss(CALL, {"norm_a": far, "norm_b": near})
    assert "the nearest captured call is norm_b" in text
    assert "attributes.causal: captured true, this call false" in text
    assert "norm_a" not in text


def test_calls_of_other_callables_are_only_listed() -> None:
    assert "those of lib.Other were" in explain_miss(CALL, {"other": {"callable": "lib.Other"}})
    assert "those of none were" in explain_miss(CALL, {})


def test_parts_inside_objects_are_named_by_their_path() -> None:
    one, other = ({"arguments": {"extra": ["lib.Extra", {"bias": bias}]}} for bias in ("None", "tensor f32 (?0)"))
    assert differences(one, other) == ["arguments.extra.bias: captured None, this call tensor f32 (?0)"]


def test_what_a_generated_class_holds_is_named_part_by_part() -> None:
    one, other = (
        {"class": ["class", "lib.Made", [["class", "lib.Base"]], {"act": act, "n": 1}]} for act in ("relu", "silu")
    )
    assert differences(one, other) == ["class.act: captured relu, this call silu"]


def test_what_a_function_encloses_and_the_items_of_a_dict_are_named() -> None:
    def call(bias: float, tile: int) -> dict[str, Any]:
        def activate(value: float) -> float:
            return value + bias

        forms = Forms()
        epilogue, table = forms.of(activate, "activate"), forms.of({"tile": tile}, "table")
        return {"arguments": {"epilogue": ["constant", epilogue], "table": ["constant", table]}}

    assert differences(call(1.0, 8), call(2.0, 16)) == [
        'arguments.epilogue.bias: captured ["float", "1.0"], this call ["float", "2.0"]',
        "arguments.table.tile: captured 8, this call 16",
    ]


def test_a_value_is_cut_only_if_it_is_too_long() -> None:
    (whole,) = differences({"x": "a" * _LETTERS}, {"x": "b"})
    (cut,) = differences({"x": "a" * (_LETTERS + 1)}, {"x": "b"})
    assert whole == f"x: captured {'a' * _LETTERS}, this call b"
    assert cut == f"x: captured {'a' * _LETTERS}..., this call b"


def test_long_lists_are_cut() -> None:
    other = {**CALL, "attributes": {f"a{number}": number for number in range(20)}}
    assert "more" in explain_miss(CALL, {"norm": other}).splitlines()[-1]


def test_generated_code_of_another_python_is_named_first() -> None:
    captured, call = (
        {**CALL, "class": f"Gemm_{digest}" * 40, "python": python} for digest, python in (("a", "3.11"), ("b", "3.12"))
    )
    lines = explain_miss(call, {"gemm": captured}).splitlines()
    assert "capture it with Python 3.12" in lines[0]
    assert lines[2].strip() == "python: captured 3.11, this call 3.12"
    assert max(map(len, lines)) < 400
    assert "capture it with" not in explain_miss({**CALL, "python": "3.12"}, {"norm": CALL})
