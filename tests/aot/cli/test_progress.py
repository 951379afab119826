"""Progress on a terminal: a line for each phase with its own clock."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest
from aot_runtime.arch import Arch

from aot.cli.progress import QuietProgress, TerminalProgress, make_progress
from aot.compile.messages import Compiled
from aot.pipeline.events import LineProgress
from aot.pipeline.executing.executor import CompileJob


def test_each_phase_has_a_line_and_the_one_before_is_finished() -> None:
    job = CompileJob(Arch.parse("sm_80"), "add", "add__f32", Path("a"), Path("b"), "")
    progress = TerminalProgress()
    with progress:
        progress.stage("reading declarations")
        progress.total(2)
        progress.begins(job)
        assert progress.bar.tasks[-1].description == "compiling sm_80 add__f32"
        progress.compiled(job, Compiled("add__f32", (), (), 0, 0.5))
        progress.stage("linking for x86_64-linux-gnu")
        progress.linked("sm_80 add for x86_64", 1, 2)
    shown = [(task.description, task.finished, task.fields["counted"]) for task in progress.bar.tasks]
    assert shown == [
        ("starting", True, ""),
        ("reading declarations", True, ""),
        ("compiling sm_80 add__f32", True, "1/2"),
        ("linking for x86_64-linux-gnu", False, "1/2"),
    ]
    assert str(progress.bar.tasks[-1].fields["left"]) == progress.left != ""
    assert set(progress.clock.took) == {"reading declarations", "compiling"}


@pytest.mark.parametrize(
    ("terminal", "quiet", "verbose", "kind"),
    [
        (True, False, False, TerminalProgress),
        (True, False, True, LineProgress),
        (False, False, False, LineProgress),
        (True, True, False, QuietProgress),
    ],
)
def test_what_is_shown_depends_on_where_and_what_is_asked(
    terminal: bool, quiet: bool, verbose: bool, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    assert type(make_progress(Namespace(quiet=quiet, verbose=verbose))) is kind


def test_quiet_progress_still_warns(capsys: pytest.CaptureFixture[str]) -> None:
    with QuietProgress() as progress:
        progress.stage("linking")
        progress.note("in the cache")
        progress.warn("the cache cannot be written")
    assert capsys.readouterr().err == "warning: the cache cannot be written\n"
