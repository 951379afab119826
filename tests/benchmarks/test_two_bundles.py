"""The benchmark that compares two bundles: what counts as slower."""

from __future__ import annotations

import importlib
from typing import Any

import aot_runtime
import pytest
from places import PROJECT

from aot.gpu import bench


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(PROJECT / "benchmarks"))
    return importlib.import_module("two_bundles")


@pytest.mark.parametrize(
    ("times", "expected"),
    [([1.01], 1.01), ([0.97, 0.99], 0.99), ([0.97, 0.95], 0.97)],
    ids=["faster", "slower once", "slower twice"],
)
def test_a_call_that_seems_slower_is_measured_once_more(
    script: Any, monkeypatch: pytest.MonkeyPatch, times: list[float], expected: float
) -> None:
    measured = iter(times)
    monkeypatch.setattr(bench, "graph_timer", lambda run, sets, calls: run)
    monkeypatch.setattr(bench, "shuffled_medians", lambda timers, rounds: {"before": next(measured), "after": 1.0})
    assert script.ratio("old", "new", ("call", lambda bundle: bundle, 1, 1)) == expected
    assert next(measured, None) is None


def test_calls_that_one_bundle_does_not_take_are_named_and_the_others_measured(
    script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timer(run: Any, sets: int, calls: int) -> Any:
        if run == "old packed":
            raise aot_runtime.ArgumentError("no variant takes these arguments")
        return run

    monkeypatch.setattr(bench, "graph_timer", timer)
    monkeypatch.setattr(bench, "shuffled_medians", lambda timers, rounds: {"before": 2.0, "after": 1.0})
    calls = [(name, lambda bundle, name=name: f"{bundle} {name}", 1, 1) for name in ("packed", "plain")]
    assert script.ratios_of("old", "new", iter(calls), float("inf")) == ({"plain": 2.0}, ["packed"])
    assert script.ratios_of("old", "new", iter(calls), 0.0) == ({}, [])  # its time is over


def test_slower_calls_are_named(script: Any) -> None:
    found = script.summary({"a": 1.1, "b": 0.97, "c": 0.9})
    assert (found["calls"], found["worst"], found["slower"]) == (3, 0.9, [(0.9, "c"), (0.97, "b")])
