"""Running a program whose compiles are recorded, and reading what the folder of a recording holds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from aot_runtime.serving.environment import recording_variables

from ..errors import UsageError

__all__ = ["Recorded", "record"]

_PIPE_BYTES = 1 << 20  # more than a pipe holds
_READS = "recorded_kernels"  # in the `__init__.py` that a recording writes


@dataclass(frozen=True)
class Recorded:
    """What a program ended with, and what the folder holds: of this run and of earlier ones."""

    exit_code: int  # as shells have it: 128 and the number of the signal that ended the program
    ended_by: str  # the name of that signal; empty if there was none
    calls: tuple[str, ...]  # the names of their files
    refused: tuple[str, ...]  # a sentence for each call that could not be recorded
    lost: tuple[str, ...]  # files that could not be written, each with the reason


def record(program: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Recorded:
    """Run a program and write every call that it compiles into a folder."""
    _check_folder(folder)
    with _losses() as (pipe, lost):
        code = _run(program, {**environment, **recording_variables(str(folder), environment, pipe)})
        losses = lost()
    calls = sorted(path.stem for path in folder.glob("*.json"))
    refused = [json.loads((folder / f"{name}.json").read_text()) for name in calls if name.startswith("refused-")]
    return Recorded(
        code if code >= 0 else 128 - code,
        _signal_name(-code) if code < 0 else "",
        tuple(calls),
        tuple(f"{one['callable']}, compiled by {one['called_from']}: {one['refused']}" for one in refused),
        losses,
    )


def _run(program: Sequence[str], environment: Mapping[str, str]) -> int:
    """The exit code of a program, negative if a signal ended it."""
    with _signals_left_to_program() as started:
        try:
            process = subprocess.Popen(program, env=environment)
        except OSError as error:
            hint = "put the program that is to be recorded after `--`"
            raise UsageError(f"`{program[0]}` cannot be run: {error.strerror}", hint=hint) from None
        started(process)
        return process.wait()


def _signal_name(number: int) -> str:
    """``SIGKILL``; real-time signals between the first and the last have no name in Python."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@contextmanager
def _losses() -> Iterator[tuple[str, Callable[[], tuple[str, ...]]]]:
    """A named pipe for what processes could not write, and what was written to it. It needs no room on a disk."""
    with tempfile.TemporaryDirectory() as scratch:
        path = os.path.join(scratch, "losses")
        os.mkfifo(path)
        end = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            yield path, lambda: tuple(dict.fromkeys(_content(end).decode(errors="replace").splitlines()))
        finally:
            os.close(end)


def _content(pipe: int) -> bytes:
    try:
        return os.read(pipe, _PIPE_BYTES)
    except BlockingIOError:  # a process that outlives the program has the pipe open, and has written nothing
        return b""


def _check_folder(folder: Path) -> None:
    """Make the folder of a recording. Nothing that something else keeps there may be replaced."""
    hint = "pass another folder to `--record`"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()) and not _is_recording(folder):
            raise UsageError(f"`{folder}` holds something that is not a recording", hint=hint)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"cannot write to `{folder}`: {error.strerror}", hint=hint) from None


def _is_recording(folder: Path) -> bool:
    package = folder / "__init__.py"
    return package.is_file() and _READS in package.read_text(errors="replace")


@contextmanager
def _signals_left_to_program() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Until the program ends, signals are its own affair: many programs, such as servers, are only ever ended by one.

    A terminal sends Ctrl-C to the program as well. SIGTERM is passed on, and whatever comes before the program has started.
    """
    programs: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        if not programs:
            early.append(number)
        elif number != signal.SIGINT:
            programs[0].send_signal(number)

    def started(program: subprocess.Popen[bytes]) -> None:
        programs.append(program)
        for number in early:
            program.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield started
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
