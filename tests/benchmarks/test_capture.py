"""What the benchmark of captured libraries makes of its processes, and that every script is a recipe."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from places import PROJECT


@pytest.fixture
def benchmark_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(PROJECT / "benchmarks")
    before = set(sys.modules)

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, PROJECT / "benchmarks" / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    yield load
    for name in set(sys.modules) - before:
        if name in ("_common",):
            del sys.modules[name]


def test_figures_are_medians_and_an_operation_that_failed_says_why(benchmark_module: Any) -> None:
    capture = benchmark_module("capture")
    served = [
        {"operations": {"x": {"first_ms": ms, "look_up_ms": 1.0, "later_us": 5.0}}, "hits": 1, "misses": 0, "opening_ms": 2.0}
        for ms in (4.0, 8.0, 5.0)
    ]  # fmt: skip
    library = {"tensors": 0.3, "all": 9.0, "operations": {"x": {"first_ms": 3000.0, "later_us": 60.0}}}
    runs = {
        ("fa4", "served"): served,
        ("fa4", "library"): [library],
        ("fa4", "compiled"): [library],
        ("fa4", "both"): [{"operations": {"y": {"failed": "MissError: y"}}}],
    }
    found = capture.summary({"fa4": "dist/fa4"}, runs)
    assert found["fa4"]["operations"]["x"]["first result, served_ms"] == 5.0
    assert found["fa4"]["operations"]["x"]["first result, compiled_ms"] == 3000.0
    assert found["fa4"]["operations"]["y"] == {"failed, both": "MissError: y"}
    assert found["fa4"]["hits and misses"] == [(1, 0)] * 3 and found["start_s"] == {
        "library": {"tensors": 0.3, "all": 9.0}
    }


def test_every_script_that_captures_is_a_recipe(benchmark_module: Any) -> None:
    recipes = benchmark_module("recipes")
    assert set(recipes.RECIPES) == {path.stem for path in (PROJECT / "examples" / "capture").glob("*.py")}
    counts = dict.fromkeys(("calls", "captured", "built", "found again"), 3)
    assert recipes.is_complete(counts)
    assert not recipes.is_complete({**counts, "found again": 2})
    assert not recipes.is_complete(dict.fromkeys(counts, 0))
