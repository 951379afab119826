"""``python -m aot_runtime serve BUNDLE ... -- PROGRAM``: run a program whose compiles bundles answer."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from .core.signature import public_keys
from .errors import AotError, UsageError
from .serving.environment import variables
from .serving.server import MISS, check_servable

__all__ = ["main", "make_parser"]

_USAGE = "`python -m aot_runtime serve BUNDLE -- python program.py`"


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    end = words.index("--") if "--" in words else len(words)
    program = words[end + 1 :]
    try:
        parsed = make_parser().parse_args(words[:end])
        keys = public_keys(parsed.key) if parsed.key else ()
        for bundle in parsed.bundle:
            check_servable(bundle, keys or None)  # a wrong path is reported now, not by the first compile
        if not program:
            raise UsageError("no program is named")
        environment = {**os.environ, **variables(parsed.bundle, parsed.miss, parsed.report, os.environ, keys)}
        os.execvpe(program[0], program, environment)
    except OSError as error:
        _print(f"`{program[0]}` cannot be run: {error.strerror}", "put the program that is to be served after `--`")
    except AotError as error:
        _print(error.message, error.hint if program else _USAGE)  # a program without `--` was read as a bundle
    return 2


def _print(message: str, hint: str | None) -> None:
    print(f"error: {message}" + (f"\n\nhint: {hint}" if hint else ""), file=sys.stderr)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=_USAGE)


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m aot_runtime", description="Use bundles of compiled kernels.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    summary = "Run a program, with its child processes, whose calls of cute.compile bundles answer."
    usage = "python -m aot_runtime serve BUNDLE ... [--key PUB] [--miss raise|compile|warn] [--report] -- PROGRAM ..."
    serve = commands.add_parser("serve", help=summary, description=summary, usage=usage)
    serve.add_argument("bundle", nargs="+", metavar="BUNDLE", help="directory that `python -m aot capture` printed")
    trusted = "the bundles must be signed by this public key, a PEM file; repeatable: by one of them"
    serve.add_argument("--key", action="append", default=[], metavar="PUB", help=trusted)
    serve.add_argument("--miss", choices=MISS, default="raise", help="what becomes of other calls (default: raise)")
    serve.add_argument("--report", action="store_true", help="print what was served when a process ends")
    return parser


if __name__ == "__main__":
    sys.exit(main())
