"""The page ``docs/reference/json.md``: every record that ``--json`` prints, from the types of the command line."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from aot.cli.main import COMMANDS, ERROR_KEYS, VERSION_KEYS
from aot.cli.schema import Key
from tools.json_types import fields, records, type_text

PROJECT = Path(__file__).resolve().parents[1]
PAGE = PROJECT / "docs" / "reference" / "json.md"

HEAD = """# JSON

`python tools/reference.py` writes this page from the types of the command line; a test compares the two. Other tests run
every command, with every class of error, and compare what it prints with these types.

With `--json` a command prints exactly one object. [The command line](cli.md) lists the keys of each command. If a command
could not do what it was asked, the object has the keys `error` and `failures` instead. Their types, and those of all
values inside them, are on this page. New keys may be added in any release, so readers should ignore keys that they do not
know.

| type | in JSON |
| --- | --- |
| string, boolean, null | as JSON has them |
| integer | a number without a fraction |
| number | a finite number |
| list of X | an array, each item of which is an X |
| list of 2 (X, Y) | an array of exactly these items |
| object of X | an object whose keys are names, each value of which is an X |
| any value | whatever the author or the caller wrote |
| a record | an object with exactly the keys that are listed here |
"""


def keys_by_user() -> Iterator[tuple[str, tuple[Key, ...]]]:
    """The keys of each command, and of what is printed without one."""
    yield "a command that fails", ERROR_KEYS
    yield "--version", VERSION_KEYS
    for name in COMMANDS:
        yield name, import_module(f"aot.cli.commands.{name}").KEYS


def entry(kind: Any, users: list[str]) -> str:
    rows = [
        f"| `{field.name}` | {type_text(field.kind)} | {_meaning(field.meaning, field.required)} |\n"
        for field in fields(kind)
    ]
    text = " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())
    text = text.replace("``", "`").replace("None", "null")
    used = ", ".join(f"`{user}`" if " " not in user else user for user in users)
    return f"## `{kind.__name__}`\n\n{text} Printed by {used}.\n\n| key | type | meaning |\n| --- | --- | --- |\n{''.join(rows)}"


def _meaning(text: str, required: bool) -> str:
    """``None`` in Python is ``null`` in JSON."""
    said = text.replace("None", "null").replace("``", "`").replace("<", "&lt;").replace("|", "\\|")
    return said if required else f"{said} (may be absent)"


def page() -> str:
    users: dict[str, list[str]] = {}
    found: dict[str, Any] = {}
    for user, keys in keys_by_user():
        for name, kind in records([key.kind for key in keys]).items():
            users.setdefault(name, []).append(user)
            found[name] = kind
    return HEAD + "\n" + "\n".join(entry(found[name], users[name]) for name in sorted(found))
