"""The command line: data on stdout, everything else on stderr.

Exit codes: 0 success; 1 some kernels failed, or a bundle does not verify; 2 wrong usage, or this machine cannot run
the command; 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from ..errors import AotError, BuildError, error_lines, system_hint

__all__ = ["main", "make_parser", "run"]

COMMANDS = (
    "list", "build", "verify", "inspect", "check", "bench", "wheel", "config", "cache", "prune", "merge", "sign",
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    return run(lambda: make_parser(arguments[:1]), arguments)


def run(make: Callable[[], argparse.ArgumentParser], arguments: Sequence[str]) -> int:
    """Parse the arguments, execute the command, and turn errors into messages and exit codes."""
    try:
        parsed = make().parse_args(arguments)
        code: int = parsed.execute(parsed)
        sys.stdout.flush()
    except KeyboardInterrupt as error:
        print(f"interrupted: {error if error.args else 'nothing was written'}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except AotError as error:
        print_error(error)
        return 1 if isinstance(error, BuildError) else 2
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in _BUILD_EXTRA:
            raise
        print(f"error: `{error.name}` is not installed\n\nhint: `pip install cute-aot[build]`", file=sys.stderr)
        return 2
    except OSError as error:
        place = f" (`{error.filename}`)" if error.filename else ""
        hint = system_hint(error)
        print(f"error: {error.strerror or error}{place}" + (f"\n\nhint: {hint}" if hint else ""), file=sys.stderr)
        return 1
    return code


# Packages that the command line imports and the loader does not need.
_BUILD_EXTRA = frozenset({"capstone", "elftools", "platformdirs", "rich"})


def print_error(error: AotError) -> None:
    for line in error_lines(error):
        print(line, file=sys.stderr)


def make_parser(named: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser of the named command, or of all commands.

    Only the named command is imported: machines that check bundles do not have what ``build`` imports.
    """
    parser = argparse.ArgumentParser(
        prog="python -m aot",
        description="Compile CuTe DSL kernels ahead of time into a bundle of native libraries.",
        epilog="Exit codes: 0 success; 1 some kernels failed, or a bundle does not verify; 2 wrong usage.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name in named if named and named[0] in COMMANDS else COMMANDS:
        module = import_module(f".commands.{name}", __package__)
        summary = str(module.__doc__)
        command = commands.add_parser(name, help=summary, description=summary)
        module.configure_parser(command)
        command.add_argument("--json", action="store_true", help="print the result as JSON")
        command.set_defaults(execute=module.execute)
    return parser
