"""The page ``docs/reference/c.md``, from ``aot/aot.h``: codes, functions and macros with the comments above them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
PAGE = PROJECT / "docs" / "reference" / "c.md"
HEADER = PROJECT / "runtime" / "include" / "aot" / "aot.h"

HEAD = """# C

[Install](../guides/install.md): cute-aot is not on a package index yet.

`python tools/reference.py` writes this page from [`aot/aot.h`](../../runtime/include/aot/aot.h); a test compares the two. The
[guide](../guides/cpp.md) shows complete programs. The header `<NAME.h>` of a bundle adds one typed function per kernel.
C++ has the same in [`aot/aot.hpp`](../../runtime/include/aot/aot.hpp), with exceptions instead of codes.
"""

_CODE = re.compile(r"^  (AOT_\w+) = (\d+),? *(?:/\* (.*?) \*/)?$", re.MULTILINE)
_COMMENT = r"(?:/\* (?P<comment>(?:(?!\*/).)*?) ?\*/\n)?"
_FUNCTION = r"(?:static inline )?(?P<prototype>[\w* ]+?\b(?P<name>aot_\w+)\([^;{}]*?\))(?:;| \{)"
_MACRO = r"#define (?P<macro>(?P<macro_name>aot_\w+)\([\w, .]*\))"
_PART = re.compile(rf"^{_COMMENT}(?:{_FUNCTION}|{_MACRO})", re.MULTILINE | re.DOTALL)


def codes(text: str) -> str:
    listed = text.partition("enum {\n")[2].partition("};")[0]
    rows = [f"| `{name}` | {number} | {meaning} |\n" for name, number, meaning in _CODE.findall(listed)]
    return "| code | value | meaning |\n| --- | --- | --- |\n" + "".join(rows)


def functions(text: str) -> Iterator[tuple[str, str, str]]:
    """Name, prototype and comment of everything public that the header declares, in its order."""
    declared = text.partition("/* ---- declarations ---- */")[2].partition("/* ---- errors ---- */")[0]
    for part in _PART.finditer(declared):
        name = part["name"] or part["macro_name"]
        if not name.endswith("_"):
            yield name, " ".join((part["prototype"] or part["macro"]).split()), _plain(part["comment"] or "")


def _plain(comment: str) -> str:
    """The text of a comment; what is set apart in it is code."""
    lines = [re.sub(r"^ \* ?", "", line) for line in comment.splitlines()]
    paragraphs = re.split(r"\n\s*\n", "\n".join(lines))
    shown = [f"`{text.strip()}`" if text.startswith("    ") else " ".join(text.split()) for text in paragraphs]
    return "\n\n".join(re.sub(r"(`[^`]*`)|<", lambda match: match[1] or "&lt;", text) for text in shown)


def page() -> str:
    text = HEADER.read_text()
    entries = []
    for name, prototype, comment in functions(text):
        said = f"\n{comment}\n" if comment else ""
        entries.append(f"### `{name}`\n\n```c\n{prototype}\n```\n{said}")
    return f"{HEAD}\n## Codes\n\n{codes(text)}\n## Functions\n\n" + "\n".join(entries)
