"""Arguments that several subcommands share."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

import platformdirs

from ..build import Problem
from ..worker.messages import Failure

__all__ = [
    "add_bundle_argument",
    "add_cache_argument",
    "add_kernels_argument",
    "artifacts_folder",
    "failures_as_problems",
]


def add_kernels_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kernels",
        default="kernels",
        metavar="PATH_OR_MODULE",
        help="folder, Python file, or importable module that declares the kernels (default: `kernels`)",
    )


def add_bundle_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="directory that `build` printed")


def add_cache_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cache",
        metavar="DIR",
        help="where compiled code is kept from build to build, or `none` (default: AOT_CACHE, else the user's cache)",
    )


def artifacts_folder(text: str | None) -> Path | None:
    """What ``--cache`` says; the environment where it says nothing."""
    text = text or os.environ.get("AOT_CACHE")
    if text == "none":
        return None
    return Path(text) if text else Path(platformdirs.user_cache_dir("cute-aot")) / "artifacts"


def failures_as_problems(failures: Sequence[Failure]) -> list[Problem]:
    return [Problem("", "", failure.variant, failure.message, failure.log) for failure in failures]
