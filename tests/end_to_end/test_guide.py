"""The guide's code is that of tested files, and its commands are understood."""

from __future__ import annotations

import re
import shlex

import pytest
from places import EXAMPLE, PROJECT

from aot.cli.main import make_parser

TEXT = (PROJECT / "docs" / "guide.md").read_text()
BLOCKS = re.findall(r"(?:<!-- (\S+) -->\n)?```(\w*)\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = re.findall(r"^python -m aot (.*)$", TEXT, re.MULTILINE)


@pytest.mark.parametrize(("file", "language", "code"), [block for block in BLOCKS if block[1]])
def test_code_is_taken_from_a_tested_file(file: str, language: str, code: str) -> None:
    assert file, "a block of code says which file it is from"
    assert f"\n{code}" in f"\n{(PROJECT / file).read_text()}\n"


def test_the_guide_shows_all_of_its_kernel() -> None:
    shown = "".join(code for file, _, code in BLOCKS if file == "examples/kernel_package/kernels/scale.py")
    kernel = (EXAMPLE / "kernels" / "scale.py").read_text()
    assert re.sub(r"\s+", " ", shown) == re.sub(r"\s+", " ", kernel)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_understood(command: str) -> None:
    make_parser().parse_args(shlex.split(command))


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert links and all((PROJECT / "docs" / link).exists() for link in links)
