"""What the benchmark of training makes of its measurements."""

from __future__ import annotations

import importlib
import sys
from itertools import count
from types import ModuleType

import pytest
from places import PROJECT


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(PROJECT / "benchmarks"))
    for module in ("_common", "_timers", "gemm_shapes", "training"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return importlib.import_module("training")


def test_the_first_step_of_a_turn_does_not_count(training: ModuleType) -> None:
    order: list[str] = []

    def engine(name: str, speed: float) -> object:
        numbers = count()

        def step() -> float:
            order.append(name)
            return 1e9 if next(numbers) % training.TURN == 0 else speed

        return step

    found = training.in_turns({"one": engine("one", 5.0), "other": engine("other", 7.0)})
    assert found == {"one": 5, "other": 7}
    assert order[: 2 * training.TURN] == ["one"] * training.TURN + ["other"] * training.TURN


def test_curves_are_as_far_apart_as_their_losses(training: ModuleType) -> None:
    one, other = [1.0] * 10, [1.0] * 8 + [1.5, 0.7]
    assert training.distance(one, other) == {"mean": 0.08, "last fifth": 0.4, "largest": 0.5}
