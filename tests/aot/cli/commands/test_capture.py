"""``capture`` refuses what cannot work before anything runs, and a recorded program ends as it likes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cutlass_double import write_double
from places import PROJECT

from aot.cli.main import main
from aot.errors import UsageError
from aot.pipeline.capture import capture
from aot.pipeline.events import Progress
from aot.pipeline.recording import record
from aot.pipeline.settings import Settings

COMPILES = """
import sys
sys.path.insert(0, sys.argv[1])
from cutlass.base_dsl.compiler import CompileCallable
class Kernel:
    def __call__(self, x): pass
CompileCallable()(Kernel(), 1, options="--enable-tvm-ffi")
CompileCallable()(Kernel(), 1)
"""
FULL_DISK = """
import resource, sys
sys.dont_write_bytecode = True  # Python would write modules in part
resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
{compiles}
print("went on", flush=True)
"""
STOPPED = """
import os, signal, sys, time
def stop(number, frame):
    time.sleep(1)  # longer than Python waits for a child that it wants to end
    os.write(1, b"stopped in order\\n")  # `print` may be at work when the signal comes
    sys.exit(5)
signal.signal(signal.SIGINT, stop)
signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no exercise is named"),
        (["one.py"], "no architecture is named to run `one.py` for"),
        (["--record", "calls"], "no program is named"),
        (["--record", "calls", "--arch", "sm90", "--no-archives", "--", "true"], "`--arch`, `--no-archives` cannot be"),
    ],
)
def test_wrong_usage_is_named_for_what_it_is(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["capture", *words]) == 2
    assert f"error: {message}" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_folder_that_holds_something_else_or_cannot_be_made_is_refused_before_the_program_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "__init__.py").write_text("theirs = 1\n")
    program = [sys.executable, "-c", f"open({str(tmp_path / 'ran')!r}, 'w')"]
    assert main(["capture", "--record", str(tmp_path), "--", *program]) == 2
    assert "holds something that is not a recording" in capsys.readouterr().err
    assert main(["capture", "--record", str(tmp_path / "__init__.py"), "--", *program]) == 2
    assert "__init__.py`: File exists" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["__init__.py"]
    assert (tmp_path / "__init__.py").read_text() == "theirs = 1\n"


def test_calls_that_could_not_be_recorded_are_printed_with_the_reason_and_a_recording_may_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_double(tmp_path / "double")
    (tmp_path / "double" / "theirs.py").write_text("class Theirs:\n    def __call__(self, x): pass\n")
    own = 'CompileCallable()(Kernel(), 1, options="--enable-tvm-ffi")'
    importable = "from theirs import Theirs; CompileCallable()(Theirs(), 1)"
    assert own in COMPILES
    (tmp_path / "program.py").write_text(COMPILES.replace(own, importable))
    command = ["capture", "--record", str(tmp_path / "calls"), "--json", "--"]
    for _ in range(2):
        assert main([*command, sys.executable, str(tmp_path / "program.py"), str(tmp_path / "double")]) == 0
        out, err = capsys.readouterr()
        assert "failed: Kernel, compiled by __main__:8: it is defined in the program itself" in err
        assert "1 call recorded, 1 could not be" in err
        assert len(json.loads(out)["calls"]) == 2


def test_a_recording_without_a_call_that_can_be_built_has_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_double(tmp_path / "double")
    (tmp_path / "program.py").write_text(COMPILES)
    program = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "double")]
    assert main(["capture", "--record", str(tmp_path / "calls"), "--", *program]) == 1
    assert "0 calls recorded, 2 could not be" in capsys.readouterr().err


def test_a_program_that_a_signal_ends_has_the_exit_code_of_a_shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert main(["capture", "--record", str(tmp_path / "calls"), "--", sys.executable, "-c", code]) == 128 + 9
    assert "the program was ended by SIGKILL" in capsys.readouterr().err
    code = "import os; os.kill(os.getpid(), 40)"  # a real-time signal, for which Python has no name
    assert main(["capture", "--record", str(tmp_path / "calls"), "--", sys.executable, "-c", code]) == 128 + 40
    assert "the program was ended by signal 40" in capsys.readouterr().err


def test_a_recorded_program_that_compiles_nothing_fails_as_an_exercise_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["capture", "--record", str(tmp_path / "calls"), "--", sys.executable, "-c"]
    assert main([*command, "pass"]) == 2
    assert "error: no process of the program compiled" in capsys.readouterr().err
    assert main([*command, "raise SystemExit(3)"]) == 3  # a program that failed says why itself


def test_a_program_goes_on_if_its_calls_cannot_be_written_and_the_command_says_that_they_are_lost(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_double(tmp_path / "double")
    (tmp_path / "program.py").write_text(FULL_DISK.format(compiles=COMPILES))
    folder = tmp_path / "calls"
    command = ["capture", "--record", str(folder), "--", sys.executable, "-B", str(tmp_path / "program.py")]
    assert main([*command, str(tmp_path / "double")]) == 1
    out, err = capfd.readouterr()
    assert "went on" in out
    assert f"lost: `{folder / '__init__.py'}`: File too large" in err
    assert "warning: the recording is incomplete: 3 files could not be written" in err
    assert not list(folder.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_program_that_a_signal_stops_may_end_in_its_own_time(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "aot", "capture", "--record", str(tmp_path / "calls"), "--"]
    process = subprocess.Popen(
        [*command, sys.executable, "-c", STOPPED],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=PROJECT, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert out.splitlines() == ["stopped in order", str(tmp_path / "calls")], err
    assert process.returncode == 5 and "interrupted" not in err


def test_a_signal_that_comes_while_the_program_starts_reaches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(subprocess.Popen):
        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            os.kill(os.getpid(), signal.SIGTERM)

    def lost(number: int, frame: object) -> None:
        raise AssertionError("the signal did not reach the program")

    monkeypatch.setattr(subprocess, "Popen", Stopped)
    before = signal.signal(signal.SIGTERM, lost)
    try:
        recorded = record([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "calls", os.environ)
    finally:
        assert signal.signal(signal.SIGTERM, before) is lost
    assert recorded.ended_by == "SIGTERM"


def test_a_place_for_several_architectures_is_checked_before_any_is_built(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = Settings(kernels=str(tmp_path / "no.py"), archs=("sm90,sm100",), out=tmp_path / "file", hosts=())
    with pytest.raises(UsageError, match="is not a directory"):
        capture(settings, Progress())
