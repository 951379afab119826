"""The command line: data on stdout, everything else on stderr.

Exit codes: 0 success; 1 some kernels failed, or a bundle does not verify; 2 wrong usage, or this machine cannot run
the command; 130 interrupted.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypedDict

from ..errors import AotError, BuildError, Failure, UsageError, error_lines, system_hint
from ..records import encode
from ..versions import install_extras
from .parser import COMMANDS, make_parser, parse
from .report import print_json, print_message
from .schema import Key

__all__ = ["COMMANDS", "ERROR_KEYS", "VERSION_KEYS", "main", "make_parser", "run"]


class ErrorData(TypedDict):
    """What went wrong."""

    kind: str  # a class of [errors](errors.md), or OSError, Interrupted, InternalError
    message: str  # what was seen
    hint: str | None  # the next step; null: none is known
    exit_code: int  # what the process ends with


ERROR_KEYS = (
    Key("error", ErrorData, "what went wrong"),
    Key("failures", tuple[Failure, ...], "the kernels that failed, if they are the reason"),
)
VERSION_KEYS = (Key("version", str, "the version of cute-aot"),)

_COMPILING = frozenset({"list", "build", "capture", "prune", "merge"})
# Packages that the command line imports and the loader does not need.
_TOOLS = frozenset({"capstone", "elftools", "packaging", "platformdirs", "pyproject_metadata", "rich"})

# The next step after an error of the system at a path that a command was given.
_PLACES = {
    errno.EISDIR: "name a file instead of a folder",
    errno.ENOTDIR: "a file lies where a folder must be; name another place",
    errno.EEXIST: "a file lies where a folder must be; name another place",
    errno.ENOENT: "name another place",
    errno.EACCES: "change its permissions, or name another place",
    errno.EPERM: "change its permissions, or name another place",
    errno.EROFS: "its disk is read-only; name another place",
}


@dataclass(frozen=True)
class _Trouble:
    """What went wrong, for people and for programs."""

    code: int
    kind: str
    message: str
    hint: str | None = None
    failures: tuple[Failure, ...] = ()

    def data(self) -> dict[str, object]:
        error: ErrorData = {
            "kind": self.kind,
            "message": self.message,
            "hint": self.hint,
            "exit_code": self.code,
        }
        return {"error": error, "failures": encode(self.failures)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    return run(parse, sys.argv[1:] if arguments is None else list(arguments))


def run(read: Callable[[Sequence[str]], argparse.Namespace], arguments: Sequence[str]) -> int:
    """Read the arguments, execute the command, and turn errors into messages and exit codes."""
    _open_streams()
    try:
        parsed = read(arguments)
        _check_folder()
        code: int = parsed.execute(parsed)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _print_nowhere()
        return 0
    except (Exception, KeyboardInterrupt) as error:
        return _report(error, arguments)


def _check_folder() -> None:
    """Most commands read or write something here, and name what they do not find instead of the reason."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UsageError("the current folder was removed", hint="change to one that is there: `cd`") from None


def _open_streams() -> None:
    """Open what the caller closed (`>&-`): the next file would take its place, and get what compilers print."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115  open as long as the process runs
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _print_nowhere() -> None:
    """Nobody reads stdout any more, and Python would complain about that when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report(error: BaseException, arguments: Sequence[str]) -> int:
    """Print what went wrong to stderr, and to stdout if JSON is expected there."""
    trouble = _trouble(error, arguments)
    with suppress(OSError):  # nobody reads it, or its disk is full: the exit code still says what happened
        _print_trouble(error, trouble, verbose=any(word in ("-v", "--verbose") for word in arguments))
    try:
        if "--json" in arguments:
            print_json(trouble.data())
        sys.stdout.flush()
    except OSError:  # nobody reads it, or the disk that it goes to is full
        _print_nowhere()
    return trouble.code


def _print_trouble(error: BaseException, trouble: _Trouble, *, verbose: bool) -> None:
    if verbose:
        traceback.print_exception(error)
    if isinstance(error, KeyboardInterrupt):
        print_message(f"interrupted: {trouble.message}")
        return
    for line in error_lines(trouble.message, trouble.hint, trouble.failures, verbose=verbose):
        print_message(line)


def _trouble(error: BaseException, arguments: Sequence[str]) -> _Trouble:
    kind = type(error).__name__
    if isinstance(error, KeyboardInterrupt):
        return _Trouble(130, "Interrupted", str(error) if error.args else "nothing was written")
    if isinstance(error, AotError):
        failures = error.failures if isinstance(error, BuildError) else ()
        return _Trouble(1 if isinstance(error, BuildError) else 2, kind, error.message, error.hint, failures)
    if isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] in _TOOLS:
        command = next((word for word in arguments if word in COMMANDS), "")
        extra = "sign" if command == "sign" else "build" if command in _COMPILING else "tools"
        return _Trouble(2, kind, f"`{error.name}` is not installed", install_extras(extra))
    if isinstance(error, OSError):
        place = f" (`{error.filename}`)" if error.filename else ""
        return _Trouble(
            1, "OSError", f"{error.strerror or error}{place}", system_hint(error) or _PLACES.get(error.errno or 0)
        )
    if isinstance(error, MemoryError):
        return _Trouble(1, kind, "memory ran out", "raise the limit (`ulimit -v`), or end other programs")
    return _Trouble(
        1,
        "InternalError",
        f"an error that cute-aot does not know: {kind}: {error}",
        "please report it, with what the same command prints with `-v`",
    )
