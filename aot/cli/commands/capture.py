"""Build a bundle of what a script makes other libraries compile."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

from ...compile.messages import EXERCISE
from ...errors import UsageError, counted
from ...pipeline.capture import capture
from ...pipeline.recording import record
from ...pipeline.settings import BuildResult
from ..build_options import OPTIONS, add_build_options
from ..progress import make_progress
from ..report import note, print_failures, print_json, print_message, table
from ..schema import Key
from ..settings import build_settings
from .build import KEYS as BUILD_KEYS
from .build import result_data, summary

__all__ = ["KEYS", "configure_parser", "execute"]


class CapturedCall(TypedDict):
    """The call of another library that a kernel answers."""

    callable: str  # the function that the library compiled
    called_from: str  # the function that compiled it
    archs: str  # the architectures that it was compiled for, a comma list


_BUILT = [key for key in BUILD_KEYS if key.only != "with --dry-run"]
KEYS = (
    *(replace(key, only="" if key.name == "path" else "without --record") for key in _BUILT),
    Key("captured", Mapping[str, CapturedCall], "what each kernel was captured from, by its name", "without --record"),
    Key("calls", tuple[str, ...], "what the folder holds, by key", "with --record"),
)


def configure_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "exercise",
        metavar="EXERCISE",
        nargs="?",
        help="Python file that calls the functions whose kernels are captured",
    )
    parser.add_argument(
        "--pytest",
        action="store_true",
        help="EXERCISE is a file of tests: pytest runs it, with the arguments that follow `--`",
    )
    parser.add_argument(
        "--record",
        type=Path,
        metavar="DIR",
        help="instead, run the program that follows `--` and write every call that it compiles into this folder, for "
        "`build --source DIR`",
    )
    parser.add_argument(
        "program",
        nargs="*",
        default=[],
        metavar="PROGRAM",
        help="after `--`: the arguments of the exercise; with `--record` the program and its arguments",
    )
    # An exercise names its kernels itself, and is run on this machine.
    not_offered = {"--source", "--kernel", "--family", "--tilings", "--executor", "--dask-security", "--trust"}
    add_build_options(parser, *(name for name in OPTIONS if name not in not_offered), keep_rest="--update")


def execute(arguments: argparse.Namespace) -> int:
    if arguments.record is not None:
        return _record(arguments)
    _check_usage(arguments)
    arguments.kernels = arguments.exercise
    settings = build_settings(arguments)
    exercise = {"source": EXERCISE, "arguments": tuple(arguments.program), "pytest": arguments.pytest}
    settings = replace(settings, options=replace(settings.options, **exercise))
    progress = make_progress(arguments)
    with progress:
        result = capture(settings, progress)
    progress.clock.enter("")
    print_failures(arguments, result.failures)
    captured = _captured(result)
    if arguments.json:
        print_json({**result_data(result, progress.clock), "captured": captured})
    else:
        rows = [(name, *call.values()) for name, call in captured.items()]
        note(arguments, table(("kernel", "callable", "compiled by", "architectures"), rows))
        note(arguments, summary(result, progress.clock))
        print(result.path)
    return 1 if result.failures else 0


def _check_usage(arguments: argparse.Namespace) -> None:
    if arguments.exercise is None:
        wrong = "no exercise is named"
    elif not arguments.arch:
        wrong = f"no architecture is named to run `{arguments.exercise}` for"
    else:
        return
    raise UsageError(wrong, hint=f"`python -m aot capture {arguments.exercise or 'exercise.py'} --arch sm90`")


_NOTHING = "a library's disk cache may have answered, or Python ran with -I, -E or -S"


def _record(arguments: argparse.Namespace) -> int:
    """Run a program whose compiles are recorded; its exit code is that of the command, unless only the recording failed."""
    program = [*filter(None, [arguments.exercise]), *arguments.program]
    if not program:
        raise UsageError("no program is named", hint="`python -m aot capture --record calls -- python program.py`")
    if given := _of_building(arguments):
        raise UsageError(
            f"{', '.join(given)} cannot be combined with `--record`, which builds nothing",
            hint=f"pass this to `python -m aot build --source {arguments.record}`",
        )
    recorded = record(program, arguments.record, os.environ)
    for reason in recorded.refused:
        print_message(f"failed: {reason}")
    for loss in recorded.lost:
        print_message(f"lost: {loss}")
    if recorded.ended_by:
        print_message(f"warning: the program was ended by {recorded.ended_by}")
    if recorded.lost:
        print_message(
            f"warning: the recording is incomplete: {counted(len(recorded.lost), 'file')} could not be written"
        )
    elif not recorded.calls and not recorded.exit_code:
        raise UsageError("no process of the program compiled", hint=_NOTHING)
    kept = len(recorded.calls) - len(recorded.refused)
    note(arguments, f"{counted(kept, 'call')} recorded, {len(recorded.refused)} could not be")
    path = str(arguments.record)
    print_json({"path": path, "calls": recorded.calls}) if arguments.json else print(path)
    return recorded.exit_code or (1 if recorded.lost or not kept else 0)


def _of_building(arguments: argparse.Namespace) -> list[str]:
    """The options that were given and say how to build, as they are written."""
    parser = argparse.ArgumentParser(add_help=False)
    configure_parser(parser)
    options = [action for action in parser._actions if action.option_strings and action.dest != "record"]
    return [f"`{action.option_strings[0]}`" for action in options if getattr(arguments, action.dest) != action.default]


def _captured(result: BuildResult) -> dict[str, CapturedCall]:
    return {
        name: {
            "callable": kernel.captured["call"]["callable"],
            "called_from": kernel.captured["called_from"],
            "archs": ", ".join(map(str, kernel.archs)),
        }
        for name, kernel in result.manifest.kernels.items()
        if kernel.captured
    }
