"""Build a bundle of what a script makes other libraries compile."""

from __future__ import annotations

import argparse
import os
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

from aot_runtime.serving.environment import recording_variables

from ...compile.messages import EXERCISE
from ...errors import UsageError
from ...pipeline.capture import capture
from ...pipeline.settings import BuildResult
from ..progress import make_progress
from ..report import note, print_failures, print_json, table
from ..schema import Key
from ..settings import build_settings
from .build import KEYS as BUILD_KEYS
from .build import (
    add_content_arguments,
    add_resource_arguments,
    add_target_arguments,
    result_data,
    summary,
)

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
        "--record",
        type=Path,
        metavar="DIR",
        help="instead, run the program that follows `--` and write every call that it compiles into this folder, for "
        "`build --kernels DIR`",
    )
    parser.add_argument("program", nargs="*", metavar="PROGRAM", help="with `--record`: the program and its arguments")
    add_target_arguments(parser)
    add_resource_arguments(parser)
    add_content_arguments(parser)
    parser.set_defaults(kernel=[], family=[], executor=None, dask_security=None, cache_read_only=False, replace=True)


def execute(arguments: argparse.Namespace) -> int:
    if arguments.record is not None:
        return _record(arguments)
    if arguments.exercise is None or arguments.program or not arguments.arch:
        raise UsageError(
            "an exercise and its architectures are needed", hint="`python -m aot capture exercise.py --arch sm90`"
        )
    arguments.kernels = arguments.exercise
    settings = build_settings(arguments)
    settings = replace(settings, options=replace(settings.options, source=EXERCISE))
    progress = make_progress(arguments)
    with progress:
        result = capture(settings, progress)
    progress.clock.enter("")
    print_failures(result.failures)
    captured = _captured(result)
    if arguments.json:
        print_json({**result_data(result, progress.clock), "captured": captured})
    else:
        rows = [(name, *call.values()) for name, call in captured.items()]
        note(arguments, table(("kernel", "callable", "compiled by", "architectures"), rows))
        note(arguments, summary(result, progress.clock))
        print(result.path)
    return 1 if result.failures else 0


_NOTHING = """
hint: no process of the program compiled; a library's disk cache may have answered, or Python ran with -I, -E or -S"""


def _record(arguments: argparse.Namespace) -> int:
    """Run a program whose compiles are recorded; its exit code is that of the command."""
    program = [*filter(None, [arguments.exercise]), *arguments.program]
    if not program:
        raise UsageError("no program is named", hint="`python -m aot capture --record calls -- python program.py`")
    environment = {**os.environ, **recording_variables(str(arguments.record), os.environ)}
    try:
        code = subprocess.call(program, env=environment)
    except OSError as error:
        hint = "put the program that is to be recorded after `--`"
        raise UsageError(f"`{program[0]}` cannot be run: {error.strerror}", hint=hint) from None
    calls = sorted(path.stem for path in arguments.record.glob("*.json"))
    refused = [name for name in calls if name.startswith("refused-")]
    note(
        arguments, f"{len(calls) - len(refused)} calls recorded, {len(refused)} could not be{'' if calls else _NOTHING}"
    )
    print_json({"path": str(arguments.record), "calls": calls}) if arguments.json else print(arguments.record)
    return code


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
