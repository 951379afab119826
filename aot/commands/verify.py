"""Check a bundle against its manifest, without executing any of it."""

from __future__ import annotations

import argparse
import sys

from ..report import print_json
from ..verify import verify
from ._common import add_bundle_argument

__all__ = ["configure_parser", "execute"]


def configure_parser(parser: argparse.ArgumentParser) -> None:
    add_bundle_argument(parser)


def execute(arguments: argparse.Namespace) -> int:
    problems = verify(arguments.bundle)
    if arguments.json:
        print_json({"bundle": str(arguments.bundle), "sound": not problems, "problems": problems})
        return 1 if problems else 0
    for problem in problems:
        print(problem)
    verdict = f"{len(problems)} problems" if problems else "sound"
    print(f"{arguments.bundle}: {verdict}", file=sys.stderr)
    return 1 if problems else 0
