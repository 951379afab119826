"""Progress keeps the time of each phase, in pipes too."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from aot_runtime.arch import Arch

from aot.compile.messages import Compiled
from aot.errors import Failure
from aot.pipeline import events
from aot.pipeline.events import Clock, LineProgress
from aot.pipeline.executing.executor import CompileJob


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by a second whenever progress looks at it. Other threads of this process keep theirs."""
    seconds = iter(range(1000))
    monkeypatch.setattr(events, "time", SimpleNamespace(monotonic=lambda: float(next(seconds))))


@pytest.mark.usefixtures("ticking")
def test_a_phase_ends_when_the_next_begins() -> None:
    clock = Clock()
    for phase in ("planning", "compiling", "planning", ""):
        clock.enter(phase)
    assert clock.took == {"planning": 2.0, "compiling": 1.0}


@pytest.mark.usefixtures("ticking")
def test_each_phase_is_printed_with_its_own_time(capsys: pytest.CaptureFixture[str]) -> None:
    job = CompileJob(Arch.parse("sm_80"), "add", "add__f32", Path("a"), Path("b"), "")
    with LineProgress() as progress:
        progress.stage("reading declarations")
        progress.note("1 of 2 variants are in the cache")
        progress.total(1)
        progress.compiled(job, Compiled("add__f32", (), (), 0, 0.5))
        progress.compiled(job, Failure("add__f32", "wrong"))
        progress.stage("linking for x86_64-linux-gnu")
        progress.linked("sm_80 add for x86_64", 1, 1)
        progress.stage("verifying")
    lines = [re.sub(r"^ *[\d.]+ s  ", "", line) for line in capsys.readouterr().err.splitlines()]
    assert [re.sub(r"\d+(\.\d)? s", "N s", line) for line in lines] == [
        "reading declarations",
        "1 of 2 variants are in the cache",
        "reading declarations: done in N s",
        "compiling 1 variant",
        "[1/1] sm_80 add__f32: N s, about N s left",
        "[2/1] sm_80 add__f32: FAILED, about N s left",
        "compiling: done in N s",
        "linking for x86_64-linux-gnu, about N s left",
        "[1/1] library of sm_80 add for x86_64, about N s left",
        "linking: done in N s",
        "verifying, about N s left",
    ]
    assert set(progress.clock.took) == {"reading declarations", "compiling", "linking"}  # type: ignore[attr-defined]
