"""The pages show what the files in ``benchmarks/results`` say, and every file says what was measured."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from places import PROJECT

RESULTS = sorted((PROJECT / "benchmarks" / "results").iterdir())
LARGEST = 100_000  # bytes; raw times belong to whoever measures


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tables", PROJECT / "benchmarks" / "tables.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_table_is_made_from_the_files(tables: ModuleType) -> None:
    for page in tables.PAGES:
        assert tables.rewritten(page.read_text(), page) == page.read_text(), "run `python benchmarks/tables.py`"


def test_every_table_is_on_a_page(tables: ModuleType) -> None:
    shown = {name for page in tables.PAGES for name in re.findall(r"<!-- table: (\w+) -->", page.read_text())}
    assert shown == {*tables.TABLES, *tables.FACTS}


def test_a_changed_number_is_noticed(tables: ModuleType) -> None:
    page = tables.PAGES[0]
    text = page.read_text()
    changed = re.sub(r"\| \d\.\d\d \|", "| 9.99 |", text, count=1)
    assert changed != text
    assert tables.rewritten(changed, page) == text


def test_numbers_of_the_performance_page_are_in_its_tables(tables: ModuleType) -> None:
    """Prose has no ratio, no time and no percentage, which nothing would keep true."""
    prose = re.sub(r"<!-- table.*?<!-- end -->", "", tables.PAGES[0].read_text(), flags=re.DOTALL)
    assert re.findall(r"\d+(?:\.\d+)?(?: ?%| times| us| ms| TB/s| TFLOP/s)", prose) == []


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_a_result_is_small_and_is_shown_on_a_page(path: Path) -> None:
    assert path.stat().st_size <= LARGEST
    assert path.name in (PROJECT / "benchmarks" / "tables.py").read_text()


def git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(PROJECT), *words], capture_output=True, text=True)


def commits(path: Path) -> set[str]:
    """The commits that a result names as measured."""
    listed = re.findall(r'"commits": \[([^\]]*)\]', path.read_text())
    alone = re.findall(r'"commit": "(\w+)"', path.read_text())
    return {*alone, *(commit for text in listed for commit in re.findall(r"\w{40}", text))}


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_a_result_is_of_a_commit_of_the_history(path: Path) -> None:
    assert re.fullmatch("[0-9a-f]{40}", json.loads(path.read_text())["machine"]["commit"])
    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("the history is not here: this is no clone, or a shallow one")
    assert [one for one in commits(path) if git("merge-base", "--is-ancestor", one, "HEAD").returncode] == []


def test_every_benchmark_is_described() -> None:
    text = (PROJECT / "benchmarks" / "README.md").read_text()
    files = {path.name for path in (PROJECT / "benchmarks").glob("[!_]*.py")}
    assert {name for name in files if f"| `{name}` |" not in text} == set()


def test_a_benchmark_that_is_said_to_measure_nothing_has_no_result() -> None:
    rest = (PROJECT / "benchmarks" / "README.md").read_text().partition("measure nothing that a page shows")[2]
    measured = {name for path in RESULTS for name in json.loads(path.read_text())["benchmark"].split(", ")}
    assert rest and set(re.findall(r"\| `(\w+)\.py` \|", rest)) & measured == set()
