"""Arguments that several subcommands share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the builder is not needed to check a bundle
    from ..build import Problem
    from ..worker.messages import Failure

__all__ = ["add_bundle_argument", "add_kernels_argument", "failures_as_problems"]


def add_kernels_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kernels",
        default="kernels",
        metavar="PATH_OR_MODULE",
        help="folder, Python file, or importable module that declares the kernels (default: `kernels`)",
    )


def add_bundle_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="directory that `build` printed")


def failures_as_problems(failures: Sequence[Failure]) -> list[Problem]:
    from ..build import Problem

    return [Problem("", "", failure.variant, failure.message, failure.log) for failure in failures]
