"""Check a bundle against its manifest, without executing any of it."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from ...bundle.verify import verify
from ..options import add_bundle_argument, add_kernels_argument
from ..progress import make_progress
from ..report import print_json

__all__ = ["configure_parser", "execute"]


def configure_parser(parser: argparse.ArgumentParser) -> None:
    add_bundle_argument(parser)
    add_kernels_argument(parser)
    add = parser.add_argument
    add("--rebuild", action="store_true", help="also build it again from `--kernels`, and compare every byte")
    add("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="with --rebuild: compile workers")
    add("--wheelhouse", type=Path, metavar="DIR", help="with --rebuild: where the other host's NVIDIA wheels lie")


def execute(arguments: argparse.Namespace) -> int:
    problems = verify(arguments.bundle)
    if arguments.rebuild and not problems:
        problems = _rebuilt(arguments)
    if arguments.json:
        print_json({"bundle": str(arguments.bundle), "sound": not problems, "problems": problems})
        return 1 if problems else 0
    for problem in problems:
        print(problem)
    verdict = f"{len(problems)} problems" if problems else "sound"
    print(f"{arguments.bundle}: {verdict}", file=sys.stderr)
    return 1 if problems else 0


def _rebuilt(arguments: argparse.Namespace) -> list[str]:
    import platformdirs

    from ...pipeline.build import Settings
    from ...pipeline.rebuild import rebuild

    settings = Settings(
        kernels=arguments.kernels,
        archs=(),
        jobs=max(arguments.jobs, 1),
        cache=Path(platformdirs.user_cache_dir("cute-aot")),
        wheelhouse=arguments.wheelhouse,
    )
    with make_progress() as progress:
        return rebuild(arguments.bundle, settings, Path(tempfile.gettempdir()), progress)
