"""Write the reference from the code: options and keys of JSON in ``cli.md``; ``api.md``, ``c.md``, ``cpp.md``, ``json.md``
and ``kernels.md`` whole, and the gallery of kernels with its plots.

    python tools/reference.py            # after a change of the command line, a docstring or a kernel: rewrite the pages
    python tools/reference.py --check    # exit code 1 if a page differs

In ``cli.md``, what is said of a command stands between ``<!-- command: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

# Started as a script, Python finds what lies beside it and not the folder of the project.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from aot.cli.main import COMMANDS, ERROR_KEYS, VERSION_KEYS, make_parser
from aot.cli.schema import Key
from tools import api, c_api, cpp_api, json_page, kernel_page
from tools.gallery import page as gallery
from tools.json_types import type_text

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "cli.md"

SHARED = ("json", "quiet", "verbose")  # every command has these: the page says so once
_WITHOUT_COMMAND = {"errors": ERROR_KEYS, "version": VERSION_KEYS}
_SECTION = re.compile(r"(<!-- command: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def options(name: str) -> str:
    """The summary of a command, a table of its arguments, and a table of what ``--json`` prints."""
    if name in _WITHOUT_COMMAND:
        return keys(_WITHOUT_COMMAND[name])
    (commands,) = (action for action in make_parser([name])._actions if isinstance(action.choices, dict))
    assert commands.choices is not None
    parser = commands.choices[name]
    rows = [
        f"| {_spelling(action)} | {_meaning(action)} |\n"
        for action in parser._actions
        if action.help != argparse.SUPPRESS
        and not isinstance(action, argparse._HelpAction)
        and action.dest not in SHARED
    ]
    module = import_module(f"aot.cli.commands.{name}")
    table = "| argument | meaning |\n| --- | --- |\n" + "".join(rows)
    return f"{parser.description}\n\n{table}\n{keys(module.KEYS)}"


def keys(listed: Sequence[Key]) -> str:
    rows = [
        f"| `{key.name}` | {type_text(key.kind, json_page.PAGE.name)} | {_escaped(key.meaning)}{_only(key)} |\n"
        for key in listed
    ]
    return "| key of `--json` | type | meaning |\n| --- | --- | --- |\n" + "".join(rows)


def _only(key: Key) -> str:
    return f" ({key.only})" if key.only else ""


def _spelling(action: argparse.Action) -> str:
    value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    takes_value = action.nargs != 0
    words = [*action.option_strings[-1:], *([str(value)] if takes_value else [])]
    return f"`{' '.join(words)}`".replace("|", "\\|")


def _meaning(action: argparse.Action) -> str:
    # Without what depends on this machine: the number of its cores.
    return _escaped(" ".join(str(action.help or "").split()))


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;")


def rewritten(text: str) -> str:
    return _SECTION.sub(lambda match: match[1] + options(match[2]) + match[3], text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if a page differs")
    check = parser.parse_args().check
    before = PAGE.read_text()
    missing = [name for name in COMMANDS if f"<!-- command: {name} -->" not in before]
    if missing:
        print(f"error: `{PAGE}` has no section for {', '.join(missing)}", file=sys.stderr)
        return 1
    pages = {
        PAGE: rewritten(before),
        api.PAGE: api.page(),
        c_api.PAGE: c_api.page(),
        cpp_api.PAGE: cpp_api.page(),
        json_page.PAGE: json_page.page(),
        kernel_page.PAGE: kernel_page.page(),
        **gallery.pages(),
    }
    if check:
        return 0 if all(page.is_file() and page.read_text() == text for page, text in pages.items()) else 1
    for page, text in pages.items():
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
