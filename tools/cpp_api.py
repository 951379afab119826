"""The page ``docs/reference/cpp.md``, from ``aot/aot.hpp``: what is public, with the comments above it, without bodies."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
PAGE = PROJECT / "docs" / "reference" / "cpp.md"
HEADER = PROJECT / "runtime" / "include" / "aot" / "aot.hpp"

HEAD = """# C++

`python tools/reference.py` writes this page from [`aot/aot.hpp`](../../runtime/include/aot/aot.hpp); a test compares the
two. The [guide](../guides/cpp.md) shows complete programs. The header `<NAME.hpp>` of a bundle adds one typed function per
kernel, in a namespace with the name of the bundle. [C](c.md) has the same without exceptions. Everything below is in the
namespace `aot`.
"""

_SECTION = re.compile(r"^// ---- (\w[\w ]*).*? ----$", re.MULTILINE)
_NAMED = re.compile(r"(?:class|struct|using) (\w+)|(\w+)\(|DType (\w+)")
_RAISED = re.compile(r"case (AOT_ERROR_\w+): throw (\w+)\(")


@dataclass(frozen=True)
class Declaration:
    """A class, function or constant: its code without bodies and without what is private, and the comment above it."""

    name: str
    code: str
    comment: str


def declarations(text: str) -> Iterator[Declaration]:
    """What a piece of the header declares, in order. What has no comment and is no class belongs to what is above it."""
    last: Declaration | None = None
    for comment, statement in _statements(text):
        code = _interface(statement)
        if last is not None and not comment and not re.match(r"(template <.*>\s)?(class|struct) ", code):
            last = replace(last, code=f"{last.code}\n{code}")
            continue
        if last is not None:
            yield last
        last = Declaration(_name(code), code, comment)
    if last is not None:
        yield last


def _statements(text: str) -> Iterator[tuple[str, str]]:
    """Each statement at the outermost level, and the comment above it."""
    comment: list[str] = []
    statement = ""
    for line in text.splitlines():
        if not statement and line.lstrip().startswith("//"):
            comment.append(line.strip().removeprefix("//").strip())
        elif line.strip():
            statement += line.strip() + "\n" if line.strip() not in ("public:", "private:") else f" {line.strip()}\n"
            if _is_whole(statement):
                yield " ".join(comment), statement
                statement, comment = "", []


def _is_whole(statement: str) -> bool:
    """Whether a statement has ended: its braces and parentheses are closed, and the last is a semicolon or a body."""
    balanced = all(statement.count(a) == statement.count(b) for a, b in ("{}", "()"))
    last = re.sub(r"//[^\n]*", "", statement).rstrip()[-1:]
    is_body = last == "}" and not re.match(r"\s*(template <.*>\s*)?(class|struct) ", statement)
    return balanced and (last == ";" or is_body)


def _name(code: str) -> str:
    found = _NAMED.search(re.sub(r"template <[^\n]*>\n", "", code))
    assert found is not None, code
    return next(filter(None, found.groups()))


def _interface(statement: str) -> str:
    """A statement as its users see it."""
    opened = re.match(r"(?s)(.*?(?:class|struct) [^;{]*)\{\n(.*)\n\};\s*$", statement)
    if opened is None:
        return _prototype(statement)
    inside = opened[2].partition(" private:")[0]
    is_class = " public:\n" in inside
    members = inside.partition(" public:\n")[2] if is_class else inside
    lines = []
    for comment, member in _statements(members):
        lines += [f"  // {comment}"] if comment else []
        lines += [f"  {line}" for line in _prototype(member).splitlines()]
    return f"{opened[1].rstrip()} {{\n" + "\n".join(lines) + "\n};"


def _prototype(statement: str) -> str:
    """A function without its body and initializers, constants without their values; a comment beside it is kept."""
    code, beside = statement.strip(), ""
    if match := re.fullmatch(r"(?s)(.*;|.*\}) +(// [^\n]*)", code):
        code, beside = match[1], f"  {match[2]}"
    if re.match(r"(template <[^>]*>\n)?inline constexpr", code):
        code = re.sub(r" = (?s:.*);", ";", re.sub(r"\{[^{}]*\}", "", code))
    elif "(" in code and not code.startswith("using "):
        code = code[: _end_of_head(code)].rstrip().removesuffix(";") + ";"
    else:
        code = re.sub(r" \{ using [^}]*\}", "", code)
    joined = re.sub(r"\n\s*", " ", code)
    return re.sub(r"^(template <.*?>) (?=inline|explicit|static|void|std|Tensor|Tuple)", r"\1\n", joined) + beside


def _end_of_head(code: str) -> int:
    """Where the body or the initializers of a function begin, outside parentheses."""
    depth = 0
    for at, letter in enumerate(code):
        depth += (letter == "(") - (letter == ")")
        is_initializer = code[at - 1 : at + 2] in (" : ", "\n: ")
        if depth == 0 and ((letter == "{" and at > 0) or is_initializer):
            return at
    return len(code)


def _public(text: str) -> str:
    """The namespace ``aot`` without ``detail``."""
    inside = text.partition("namespace aot {\n")[2].partition("}  // namespace aot")[0]
    return re.sub(r"(?s)namespace detail \{.*?\}  // namespace detail\n", "", inside)


def errors(text: str) -> str:
    """The class that is thrown for each code; classes that derive from it are caught with it."""
    bases = dict(re.findall(r"^class (\w+) : public ([\w:]+)", text, re.MULTILINE))
    rows = [f"| `{code}` | `{name}` | `{bases[name]}` |\n" for code, name in _RAISED.findall(text)]
    return "| code | class | derives from |\n| --- | --- | --- |\n" + "".join(rows)


def sections(text: str) -> Iterator[tuple[str, str]]:
    """The titles of the header's parts, and what they declare."""
    parts = _SECTION.split(_public(text))[1:]
    yield from zip(parts[::2], parts[1::2], strict=True)


def page() -> str:
    text = re.sub(r"^ */\* (?:dtypes: |end of dtypes).*\n", "", HEADER.read_text(), flags=re.MULTILINE)
    written = [HEAD]
    for title, content in sections(text):
        written.append(f"## {title.capitalize()}\n")
        if title == "errors":
            written.append(errors(text))
        for declared in declarations(content):
            if title == "errors" and declared.name != "Error":
                continue
            said = f"{declared.comment}\n\n" if declared.comment else ""
            written.append(f"### `{declared.name}`\n\n{_escaped(said)}```cpp\n{declared.code}\n```\n")
    return "\n".join(written)


def _escaped(text: str) -> str:
    return re.sub(r"(`[^`]*`)|<", lambda match: match[1] or "&lt;", text)
