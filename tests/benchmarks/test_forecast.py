"""What a build prints is read as it is meant, and its times left are compared with what was left."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from aot_runtime.arch import Arch

from aot.compile.messages import Compiled
from aot.pipeline.events import LineProgress
from aot.pipeline.executing.executor import CompileJob

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def forecast(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import forecast

    return forecast


def test_the_lines_of_a_build_are_read(forecast: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    job = CompileJob(Arch.parse("sm_80"), "add", "add__f32", Path("a"), Path("b"), "")
    with LineProgress() as progress:
        progress.stage("reading declarations")
        progress.total(1)
        progress.compiled(job, Compiled("add__f32", (), (), 0, 0.5))
        progress.stage("linking for x86_64-linux-gnu")
    lines = forecast.read(capsys.readouterr().err + "bundle kernels: verified\n")
    assert [line.left is not None for line in lines] == [False, False, False, True, False, True]


def test_a_time_left_is_right_within_a_factor_of_two_or_some_seconds(forecast: ModuleType) -> None:
    told = [(2.0, None), (12.0, 200.0), (20.0, 170.0), (60.0, 30.0), (97.0, 1.0), (98.0, 50.0)]
    found = forecast.judged([forecast.Line(*one) for one in told], 100.0)
    assert (found["told"], found["right"]) == (5, 2)
    assert [one["at"] for one in found["wrong"]] == [12.0, 20.0, 98.0]
    assert (found["first_told_at"], found["longest_silence"]) == (12.0, 40.0)
