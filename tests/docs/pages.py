"""The pages of the documentation, cut into blocks of code, links and headings."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

from places import PROJECT

__all__ = ["Block", "anchors", "blocks", "links", "pages"]

_FENCE = re.compile(
    r"^(?:<!-- (?P<file>\S+) -->\n)? *```(?P<language>\w*)\n(?P<code>.*?)^ *```$", re.MULTILINE | re.DOTALL
)
_FOLDERS = ("docs", "examples", "cpp_demo", "benchmarks")


@dataclass(frozen=True)
class Block:
    """A fenced block, and the file that the comment above it names."""

    page: str
    line: int
    file: str
    language: str
    code: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    def is_excerpt(self) -> bool:
        """Whether these lines stand in the file, one after the other; they may be indented there."""
        wanted = textwrap.dedent(self.code).rstrip().splitlines()
        lines = (PROJECT / self.file).read_text().splitlines()
        return any(
            textwrap.dedent("\n".join(lines[start : start + len(wanted)])).rstrip().splitlines() == wanted
            for start in range(len(lines) - len(wanted) + 1)
        )


def pages() -> list[Path]:
    """Every page that people read."""
    nested = [path for folder in _FOLDERS for path in (PROJECT / folder).rglob("*.md")]
    return sorted([*PROJECT.glob("*.md"), *nested])


def blocks(page: Path) -> list[Block]:
    text, name = page.read_text(), page.relative_to(PROJECT).as_posix()
    return [
        Block(name, text.count("\n", 0, match.start()) + 1, match["file"] or "", match["language"], match["code"])
        for match in _FENCE.finditer(text)
    ]


def links(page: Path) -> list[str]:
    """Where the page leads inside this repository."""
    text = _FENCE.sub("", page.read_text())
    found = re.findall(r"\]\(([^)\s]+)\)", text)
    return [link for link in found if not re.match(r"[a-z]+:", link)]


def anchors(page: Path) -> set[str]:
    """The names of the headings, as GitHub makes them."""
    text = _FENCE.sub("", page.read_text())
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
