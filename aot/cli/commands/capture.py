"""Build a bundle of what a script makes other libraries compile."""

from __future__ import annotations

import argparse
from dataclasses import replace

from ...compile.messages import EXERCISE
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

KEYS = (
    *(replace(key, only="") for key in BUILD_KEYS if key.only != "with --dry-run"),
    Key("captured", "object", "`callable`, `called_from` and `archs` by kernel"),
)


def configure_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "exercise", metavar="EXERCISE", help="Python file that calls the functions whose kernels are captured"
    )
    add_target_arguments(parser)
    add_resource_arguments(parser)
    add_content_arguments(parser)
    parser.set_defaults(kernel=[], family=[], executor=None, dask_security=None, cache_read_only=False, replace=True)


def execute(arguments: argparse.Namespace) -> int:
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


def _captured(result: BuildResult) -> dict[str, dict[str, str]]:
    return {
        name: {
            "callable": kernel.captured["call"]["callable"],
            "called_from": kernel.captured["called_from"],
            "archs": ", ".join(map(str, kernel.archs)),
        }
        for name, kernel in result.manifest.kernels.items()
        if kernel.captured
    }
