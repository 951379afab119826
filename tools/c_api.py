"""The page ``docs/reference/c.md``, from ``aot/aot.h`` and ``aot/abi.h``: codes, types, functions and macros."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
PAGE = PROJECT / "docs" / "reference" / "c.md"
HEADER = PROJECT / "runtime" / "include" / "aot" / "aot.h"
PROTOCOL = HEADER.with_name("abi.h")

HEAD = """# C

`python tools/reference.py` writes this page from [`aot/aot.h`](../../runtime/include/aot/aot.h) and
[`aot/abi.h`](../../runtime/include/aot/abi.h); a test compares them. The [guide](../guides/cpp.md) shows complete programs.
The header `<NAME.h>` of a bundle adds one typed function per kernel. [C++](cpp.md) has the same, with exceptions instead of
codes.
"""

_CODE = re.compile(r"^  (AOT_\w+) = (\d+),? *(?:/\* (.*?) \*/)?$", re.MULTILINE)
_COMMENT = r"(?:/\* (?P<comment>(?:(?!\*/).)*?) ?\*/\n)?"
_FUNCTION = r"(?:static inline )?(?P<prototype>[\w* ]+?\b(?P<name>aot_\w+)\([^;{}]*?\))(?:;| \{)"
_MACRO = r"#define (?P<macro>(?P<macro_name>aot_\w+)\([\w, .]*\))"
_TYPE = re.compile(
    rf"^{_COMMENT}(?P<code>typedef (?:struct (?P<name>\w+) \{{.*?^\}} \w+|[\w ]+\(\*(?P<pointer>\w+)\)\([^;]*\));)",
    re.MULTILINE | re.DOTALL,
)
_CONSTANTS = re.compile(rf"^{_COMMENT}(?P<code>enum \{{.*?\}};)", re.MULTILINE | re.DOTALL)
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


def types(text: str) -> Iterator[tuple[str, str, str]]:
    """Name, code and comment of the structures and types of functions that a header defines, in its order."""
    for part in _TYPE.finditer(text):
        yield part["name"] or part["pointer"], part["code"], _plain(part["comment"] or "")


def constants(text: str) -> str:
    """The enumerations of a header as they are."""
    return "\n\n".join(part[0] for part in _CONSTANTS.finditer(text))


def _plain(comment: str) -> str:
    """The text of a comment; what is set apart in it is code."""
    lines = [re.sub(r"^ \* ?", "", line) for line in comment.splitlines()]
    paragraphs = re.split(r"\n\s*\n", "\n".join(lines))
    shown = [f"`{text.strip()}`" if text.startswith("    ") else " ".join(text.split()) for text in paragraphs]
    return "\n\n".join(re.sub(r"(`[^`]*`)|<", lambda match: match[1] or "&lt;", text) for text in shown)


def page() -> str:
    text, protocol = HEADER.read_text(), PROTOCOL.read_text()
    public = text.partition("/* ---- declarations ---- */")[0]
    parts = {
        "Codes": codes(text),
        "Functions": "\n".join(_entry(*part) for part in functions(text)),
        "Types": "\n".join(_entry(*part) for part in (*types(public), *types(protocol))),
        "Constants": f"```c\n{constants(protocol)}\n```\n",
    }
    return HEAD + "".join(f"\n## {title}\n\n{content}" for title, content in parts.items())


def _entry(name: str, code: str, comment: str) -> str:
    said = f"\n{comment}\n" if comment else ""
    return f"### `{name}`\n\n```c\n{code}\n```\n{said}"
