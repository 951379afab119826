"""Reading the command line: wrong usage is an error with a hint, like every other error."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from ..errors import UsageError
from ..versions import installed_version
from .report import print_json

__all__ = ["COMMANDS", "GROUPS", "SHELLS", "Parser", "make_parser", "parse"]

# The commands, by what one wants to do.
GROUPS = {
    "make a bundle": ("new", "list", "build", "tune", "cache"),
    "look at it": ("inspect", "explain", "diff", "report"),
    "check it": ("verify", "doctor", "check", "bench"),
    "ship it": ("wheel", "config", "sign", "prune", "merge"),
    "kernels of other libraries": ("capture",),
}
COMMANDS = tuple(name for names in GROUPS.values() for name in names)
SHELLS = ("bash", "zsh", "tcsh")
EPILOG = "Exit codes: 0 success; 1 some kernels failed, or a bundle does not verify; 2 wrong usage."
_PROGRAM = "python -m aot"
_DESCRIPTION = "Compile CuTe DSL kernels ahead of time into a bundle of native libraries."
# What people look for here that is no command.
_ELSEWHERE = {"serve": "`python -m aot_runtime serve BUNDLE -- PROGRAM` serves the calls that were captured; "}
_SHARED = ("-v", "--verbose", "-q", "--quiet", "--json")  # may stand before the command too


class Parser(argparse.ArgumentParser):
    """A parser that raises :class:`UsageError` instead of printing its usage, which hides the error, and ending the process."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=self._hint(message))

    def _hint(self, message: str) -> str:
        missing = re.fullmatch(r"unrecognized arguments: (.*)", message)
        words = missing[1].split() if missing else []
        known = [option for action in self._actions for option in action.option_strings]
        for word in words:
            close = get_close_matches(word.partition("=")[0], known, n=1, cutoff=0.7)
            if close and word.startswith("-"):
                return f"did you mean `{close[0]}`?"
        if words and not words[0].startswith("-") and {"--source", "--arch"} <= set(known):
            return "`--source PATH` names the kernels, and `--arch sm80,sm90` the architectures, in a comma list"
        return f"`{self.prog} --help` lists its arguments"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The arguments of the command that they name."""
    leading = next((at for at, word in enumerate(arguments) if word not in _SHARED), len(arguments))
    shared, rest = list(arguments[:leading]), list(arguments[leading:])
    if not rest:
        _overview().print_help(sys.stderr)
        raise UsageError("no command was given", hint="pass one of the commands")
    if rest[0] == "--version":
        return argparse.Namespace(execute=_print_version, json="--json" in arguments)
    if rest[0].startswith("-"):
        parsed = _overview().parse_args(rest)
        if parsed.print_completion is None:
            raise UsageError("no command was given", hint="name one first")
        parsed.execute = _print_completion
        return parsed
    if rest[0] not in COMMANDS:
        close = get_close_matches(rest[0], COMMANDS, n=1, cutoff=0.65)
        start = f"did you mean `{close[0]}`? " if close else ""
        start = _ELSEWHERE.get(rest[0], start)
        raise UsageError(f"there is no command {rest[0]!r}", hint=f"{start}commands: {', '.join(COMMANDS)}")
    # Not through the parser of all commands, which would not know the options of this one to suggest from.
    command = _command(make_parser(rest[:1]), rest[0])
    words, program = rest[1:], None
    if "--" in words and any(action.dest == "program" for action in command._actions):
        end = words.index("--")  # what follows belongs to the program, options such as `-m` too
        words, program = words[:end], words[end + 1 :]
    _refuse_slips(words)
    # Intermixed: options may stand between a bundle and the arguments of a call.
    parsed = command.parse_intermixed_args([*shared, *words])
    if program is not None:
        parsed.program = program
    return parsed


def _refuse_slips(words: Sequence[str]) -> None:
    """An empty word is a variable of a script that is not set: as a path it would be the present folder.

    A `~` that a shell has left alone, as in `--out=~/kernels`, would be a folder of that name.
    """
    for before, word in zip(("", *words), words, strict=False):
        option, equals, value = word.partition("=")
        if not word or (option.startswith("--") and equals and not value):
            place = option or before
            seen = f"`{place}` is followed by nothing" if place else "the first argument is empty"
            raise UsageError(seen, hint="set the variable that it comes from, or leave it out")
        path = value if option.startswith("--") and equals else word
        if path == "~" or path.startswith("~/"):
            raise UsageError(
                f"`{word}`: your shell has not replaced `~` by your home",
                hint=f'write "$HOME{path[1:]}" instead of `{path}`',
            )


def _overview() -> argparse.ArgumentParser:
    """The parser that prints what commands there are. It imports none of them: some need packages of the builder."""
    parser = _program()
    parser.usage = "%(prog)s [-h] [--version] COMMAND ..."
    parser.add_argument("--version", action="store_true", help="print the version")
    parser.add_argument(
        "--print-completion",
        choices=SHELLS,
        metavar="SHELL",
        help=f"print completions of `aot` for {', '.join(SHELLS)}",
    )
    for title, names in GROUPS.items():
        group = parser.add_argument_group(title)
        for name in names:
            group.add_argument(name, nargs="?", help=_summary(name))
    return parser


def make_parser(named: Sequence[str] = (), program: str = _PROGRAM) -> argparse.ArgumentParser:
    """The parser of the named command, or of all commands.

    Only the named command is imported: machines that check bundles do not have what ``build`` imports.
    """
    parser = _program(program)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name in named if named and named[0] in COMMANDS else COMMANDS:
        module = import_module(f".commands.{name}", __package__)
        summary = module.__doc__ or _summary(name)  # `python -OO` drops what modules say
        command = commands.add_parser(name, help=summary, description=summary)
        module.configure_parser(command)
        add = command.add_argument
        add("--json", action="store_true", help="print the result as JSON, failures and wrong usage too")
        add("-q", "--quiet", action="store_true", help="print results, warnings and errors alone")
        add("-v", "--verbose", action="store_true", help="print every step, and where an error was raised")
        command.set_defaults(execute=module.execute)
    return parser


def _print_version(arguments: argparse.Namespace) -> int:
    version = installed_version("cute-aot")
    if arguments.json:
        print_json({"version": version})
    else:
        print(f"cute-aot {version}")
    return 0


def _print_completion(arguments: argparse.Namespace) -> int:
    try:
        import shtab
    except ModuleNotFoundError:
        raise UsageError("completions need shtab, which is not installed", hint="`pip install shtab`") from None
    parser = make_parser(program="aot")  # a shell completes the program, not an argument of `python`
    for name in COMMANDS:
        for action in _command(parser, name)._actions:
            if action.type is Path:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parser, arguments.print_completion))
    return 0


def _program(name: str = _PROGRAM) -> argparse.ArgumentParser:
    return Parser(prog=name, description=_DESCRIPTION, epilog=EPILOG)


def _command(parser: argparse.ArgumentParser, name: str) -> argparse.ArgumentParser:
    (commands,) = (action for action in parser._actions if isinstance(action.choices, dict))
    choices: Any = commands.choices
    found: argparse.ArgumentParser = choices[name]
    return found


def _summary(name: str) -> str:
    """The first line of a command's module, read without importing it."""
    spec = importlib.util.find_spec(f".commands.{name}", __package__)
    assert spec is not None and spec.origin is not None
    source = Path(spec.origin).read_bytes()
    # Without `optimize`, `python -OO` of 3.14 parses no documentation.
    tree = compile(source, spec.origin, "exec", ast.PyCF_ONLY_AST, optimize=0)
    assert isinstance(tree, ast.Module)
    text = ast.get_docstring(tree)
    return str(text).splitlines()[0]
