"""Every page: code comes from tested files, commands are understood, links lead somewhere."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from aot_runtime.__main__ import make_parser as make_runtime_parser
from places import EXAMPLE, PROJECT

from aot.cli.parser import parse
from tests.docs.pages import Block, anchors, blocks, links, pages
from tools.kit.__main__ import make_parser as make_kit_parser

PAGES = pages()
BLOCKS = [block for page in PAGES for block in blocks(page)]
# `tools/reference.py` writes these pages; `test_cli.py` compares them with the code.
WRITTEN = ("docs/reference/api.md", "docs/reference/c.md", "docs/reference/cpp.md")
EXCERPTS = [block for block in BLOCKS if block.language not in ("bash", "text") and block.page not in WRITTEN]
# Folders whose files the tests build, run or read.
TESTED = ("examples/", "kernels/", "cpp_demo/", "tests/", "aot/", "runtime/", "pyproject.toml")


def commands(block: Block) -> list[list[str]]:
    """The commands of a block, word by word: comments, `&&` and continued lines are taken apart."""
    lines = block.code.replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    found: list[list[str]] = []
    for line in filter(None, words):
        found.append([])
        for word in line:
            if word == "&&":
                found.append([])
            else:
                found[-1].append(word)
    return found


# Files of the examples that hold commands which no test runs: each is read as if a page showed it.
SCRIPTS = {"examples/ci/workflow.yml": r"^ +- run: (.*)$", "examples/container/Dockerfile": r"^RUN (.*)$"}
SHOWN = [
    Block(file, 1, file, "bash", "\n".join(re.findall(pattern, (PROJECT / file).read_text(), re.MULTILINE)))
    for file, pattern in SCRIPTS.items()
]
COMMANDS = [
    pytest.param(command, id=f"{block}: {' '.join(command)}")
    for block in (*BLOCKS, *SHOWN)
    if block.language == "bash"
    for command in commands(block)
]


@pytest.mark.parametrize("block", EXCERPTS, ids=str)
def test_code_is_an_excerpt_of_a_tested_file(block: Block) -> None:
    assert block.language, "a block says what it is: python, cpp, cmake, toml, bash or text"
    assert block.file, "a comment above the block names the file that it is taken from"
    assert block.file.startswith(TESTED)
    assert block.is_excerpt(), f"{block.file} does not have these lines, one after the other"


def check_aot(arguments: Sequence[str]) -> None:
    parse([_placeholder(argument) for argument in arguments])


def check_aot_runtime(arguments: Sequence[str]) -> None:
    make_runtime_parser().parse_args(arguments[: arguments.index("--")])


def check_kit(arguments: Sequence[str]) -> None:
    make_kit_parser().parse_args(arguments)


def check_pytest(arguments: Sequence[str]) -> None:
    known = {"-n", "--dist", "-q", "-x", "-k", "--bundle", "--cpu-times"}
    assert {argument for argument in arguments if argument.startswith("-")} <= known
    assert all((PROJECT / argument).exists() for argument in arguments if argument.startswith("tests/"))


def check_script(arguments: Sequence[str]) -> None:
    """A script of this repository: the options that are shown stand in its text."""
    path = PROJECT / arguments[0]
    # A package may share the reader of its options between its commands.
    files = sorted(path.parent.glob("*.py")) if path.name == "__main__.py" else [path]
    text = "".join(file.read_text() for file in files)
    for option in (argument for argument in arguments[1:] if argument.startswith("--")):
        assert f'"{option.partition("=")[0]}"' in text, f"{path} has no {option}"


def check_fuzz(arguments: Sequence[str]) -> None:
    """The options that all fuzzers share are in a file of their own."""
    text = "".join((PROJECT / "fuzz" / name).read_text() for name in ("__main__.py", "command.py", "forks.py"))
    assert all(f'"{option}"' in text for option in arguments if option.startswith("--"))


def check_anything(arguments: Sequence[str]) -> None:
    """A tool of somebody else's."""


def _placeholder(argument: str) -> str:
    return argument.replace("$PWD", "/here")


PYTHON = r"(?:(?:\.venv|release)/bin/)?python3?"
CHECKS: dict[str, Callable[[Sequence[str]], None]] = {
    rf"{PYTHON} -m aot ": check_aot,
    rf"{PYTHON} -m aot_runtime ": check_aot_runtime,
    rf"{PYTHON} -m tools\.kit ": check_kit,
    rf"{PYTHON} -m fuzz(?:\.flips|\.forks|\.races|\.reach)? ": check_fuzz,
    rf"{PYTHON} -m tools\.mutants ": lambda arguments: check_script(["tools/mutants/__main__.py", *arguments]),
    rf"{PYTHON} -m tools\.mutants\.planted ": lambda arguments: check_script(["tools/mutants/planted.py", *arguments]),
    rf"{PYTHON} -m pytest ?": check_pytest,
    rf"{PYTHON} -m (?:venv|build|ruff|mypy|mkdocs|http\.server) ?": check_anything,
    rf"{PYTHON} (?=benchmarks/|tools/|examples/)": check_script,
    r"python3 kit/run\.py ": lambda arguments: check_script(["tools/kit/run.py", *arguments]),
    r"(?:(?:\.venv|release)/bin/)?pip (?:install|wheel|download) ": check_anything,
    r"(?:cmake|ctest|cc|c\+\+|cp|dask|compute-sanitizer|git|openssl|pkg-config|mkdir|chgrp|chmod|export|echo|docker|uv|cd) ": check_anything,
    r"(?=\.ci/run|cpp_demo/run_all\.sh)": check_script,
    r"build/first_program ": check_anything,
}


@pytest.mark.parametrize("command", COMMANDS)
def test_command_is_understood(command: list[str]) -> None:
    text = " ".join(command)
    for pattern, check in CHECKS.items():
        match = re.match(pattern, text + " ")
        if match is not None:
            check(command[len(match[0].split()) :])
            # A shell puts the output of one command into another; what is inside must be understood too.
            for inner in re.findall(r"\$\(python -m aot ([^)]*)\)", text):
                check_aot(shlex.split(inner))
            return
    pytest.fail(f"no check knows `{text}`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(PROJECT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} leads nowhere"
        assert target.is_relative_to(PROJECT), f"{link} leaves the repository"
        assert not anchor or anchor in anchors(target), f"{target} has no heading {anchor!r}"


def test_every_page_of_the_documentation_can_be_found() -> None:
    index = PROJECT / "docs" / "README.md"
    listed = {(index.parent / link.partition("#")[0]).resolve() for link in links(index)}
    assert {page for page in PAGES if page.is_relative_to(PROJECT / "docs")} - listed == {index}


# The README: short, and its first two commands are what CI runs.


def test_readme_is_short_and_starts_with_building_and_testing() -> None:
    readme = PROJECT / "README.md"
    assert len(readme.read_text().splitlines()) <= 130
    first, second = [block.code for block in blocks(readme) if block.language == "bash"][:2]
    assert "'.[build]'" in first and first.rstrip().endswith("-m aot build --arch sm90")
    assert "'.[test]'" in second and "-m pytest" in second


def test_the_image_copies_what_the_project_has() -> None:
    text = (PROJECT / "examples" / "container" / "Dockerfile").read_text()
    copied = [words.split()[:-1] for words in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE)]
    made_first = {"wheels"}  # as the comment at its head says
    for name in {name for names in copied for name in names} - made_first:
        assert (EXAMPLE / name).exists(), f"{name} is not in {EXAMPLE}"


# The guide: it shows its kernel whole.


def test_the_guide_shows_all_of_its_kernel() -> None:
    file = "examples/kernel_package/kernels/scale.py"
    guide = blocks(PROJECT / "docs" / "guides" / "first-kernel.md")
    shown = "".join(block.code for block in guide if block.file == file)
    kernel = (EXAMPLE / "kernels" / "scale.py").read_text()
    assert re.sub(r"\s+", " ", shown) == re.sub(r"\s+", " ", kernel)
