"""Commands that install cute-aot name a file. Its bare name on an index could be anybody's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import PROJECT

# What people read, or what prints what people read.
FOLDERS = (".ci", ".github", "aot", "benchmarks", "cpp_demo", "docs", "examples", "fuzz", "kernels", "runtime", "tools")
TEXTS = {".c", ".cmake", ".h", ".hpp", ".html", ".in", ".json", ".md", ".py", ".sh", ".toml", ".txt", ".yml", ""}
VERSION = re.search(r'^version = "(.*)"', (PROJECT / "pyproject.toml").read_text(), re.MULTILINE)

_INSTALLS = re.compile(r"\b(?:pip3?|pipx|uv|poetry|pdm|conda)\s(?:.*\s)?(?:install|download|wheel|add|sync)\b(.*)")
_BARE = re.compile(r"(?<![\w./-])cute[-_.]aot(?![\w/-]|\.\w| )", re.IGNORECASE)


def bare_names(text: str) -> Iterator[str]:
    """The commands of a text that install cute-aot by its name."""
    for line in text.splitlines():
        command = _INSTALLS.search(line)
        if command and _BARE.search(re.split(r"[`#]|&&", command[1])[0]):
            yield line.strip()


def files() -> Iterator[Path]:
    yield from PROJECT.glob("*.md")
    for folder in FOLDERS:
        yield from (path for path in (PROJECT / folder).rglob("*") if path.is_file() and path.suffix in TEXTS)


@pytest.mark.parametrize(
    "command",
    [
        "pip install 'cute-aot[build]'",
        "pip install -U cute-aot",
        "uv pip install --find-links wheels cute_aot==0.1.0",
        "hint=\"`pip install 'cute-aot[{extra}]'`\"",
        "RUN pip download Cute-AOT[tools] --dest wheels",
    ],
)
def test_the_bare_name_is_seen(command: str) -> None:
    assert list(bare_names(command)) == [command]


@pytest.mark.parametrize(
    "command",
    [
        "pip install './wheels/cute_aot-0.1.0-py3-none-any.whl[build]'",
        "pip install -e '/home/me/cute-aot[build]'",
        "pip wheel . --no-deps  # for cute-aot",
        "`pip install torch`, then cute-aot works",
    ],
)
def test_a_path_is_allowed(command: str) -> None:
    assert list(bare_names(command)) == []


def test_no_documented_or_printed_command_installs_the_bare_name() -> None:
    found = {path: list(bare_names(path.read_text(errors="replace"))) for path in files()}
    assert len(found) > 300
    assert {path: commands for path, commands in found.items() if commands} == {}


def test_the_wheel_in_the_documentation_has_the_version_of_the_project() -> None:
    named = {
        name for path in files() for name in re.findall(r"cute_aot-(\d[\w.]*)-py3", path.read_text(errors="replace"))
    }
    assert VERSION is not None and named == {VERSION[1]}
