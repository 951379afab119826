"""The benchmark that measures tables: what is stored once counts once."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from aot_runtime.arch import Arch
from places import PROJECT

from aot.bundle.tables.tuning import TunedDevice, TunedKernel, TunedSet, Tuning


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(PROJECT / "benchmarks"))
    return importlib.import_module("table_sizes")


def tuning(device: str, *cells: tuple[int, ...]) -> Tuning:
    sets = [TunedSet("gemm", {"dtype": str(i)}, ("a", "b"), ((64,),), own) for i, own in enumerate(cells)]
    kernel = TunedKernel("gemm", Arch.parse("sm_90a"), ("m",), tuple(sets))
    return Tuning(TunedDevice(device, 132, "9.0"), (kernel,))


def test_equal_tables_count_once(script: Any) -> None:
    found = script.sizes([tuning("one", (0, 1), (0, 1), (1, 1)), tuning("two", (0, 1))])
    assert found == {"bytes": {"one": 24, "two": 12}, "all": 24}
