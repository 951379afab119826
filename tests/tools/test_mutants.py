"""Mutations are drawn by a seed, fit the code as it is, and each has tests that exist."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from places import PROJECT

from tools.mutants.check import AREAS, named_tests
from tools.mutants.planted import FUZZED, known
from tools.mutants.sites import Mutation, draw, mutations

PYTHON = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import nothing
__all__ = ["a" + "b"]

def f(x: int = 1 + 1) -> int | None:
    \"\"\"A text with 1 < 2.\"\"\"
    if x < 3 and x not in (4, True):
        raise ValueError("1 + 1")
    return x * 2
"""
C = """
#define LIMIT 4 /* 1 < 2 */
static int f(int x) {
  int y = 0;
  y = x;
  if (y < LIMIT && x != 5) {
    note("1 + 1");
  }
  return y + 1; // 3 + 4
}
"""


def changes(path: str, text: str) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for one in mutations(path, text):
        found.setdefault(one.kind, []).append((one.old, one.new))
    return found


def test_operators_of_python_leave_texts_and_annotations_alone() -> None:
    found = changes("x.py", PYTHON)
    assert found == {
        "comparison": [("<", "<="), ("not in", "in")],
        "logic": [("and", "or")],
        "condition": [("x < 3 and x not in (4, True)", "not (x < 3 and x not in (4, True))")],
        "number": [("3", "4"), ("4", "5"), ("2", "3")],
        "constant": [("True", "False")],
        "statement": [('raise ValueError("1 + 1")', "pass")],
        "arithmetic": [("*", "+")],
    }


def test_operators_of_c_leave_texts_and_macros_alone() -> None:
    found = changes("x.c", C)
    assert found == {
        "comparison": [("<", "<="), ("!=", "==")],
        "logic": [("&&", "||")],
        "condition": [("y < LIMIT && x != 5", "!(y < LIMIT && x != 5)")],
        "number": [("0", "1"), ("5", "6"), ("1", "2")],
        "statement": [("y = x;", ";"), ('note("1 + 1");', ";")],
        "arithmetic": [("+", "-")],
    }


def test_a_mutation_is_refused_by_another_text() -> None:
    one = Mutation("x.py", 1, "number", 0, 1, "1", "2")
    assert one.applied("1 + x") == "2 + x"
    with pytest.raises(AssertionError):
        one.applied("3 + x")


def test_a_seed_draws_the_same_mutations_and_another_seed_others() -> None:
    areas = {"selection": (5, ("aot/selection/*.py",))}
    assert draw(PROJECT, areas, 1) == draw(PROJECT, areas, 1) != draw(PROJECT, areas, 2)
    for one in draw(PROJECT, areas, 1):
        compile(one.applied((PROJECT / one.path).read_text()), one.path, "exec")


def test_every_file_of_an_area_has_tests_that_exist() -> None:
    assert sum(count for count, _ in AREAS.values()) == 200
    for _, patterns in AREAS.values():
        paths = [path for pattern in patterns for path in PROJECT.glob(pattern)]
        assert paths
        for path in paths:
            tests = named_tests(path.relative_to(PROJECT).as_posix())
            assert tests and all((PROJECT / test.partition("::")[0]).exists() for test in tests)


def test_the_planted_bugs_fit_the_code_as_it_is() -> None:
    assert len(known()) == 11
    assert all(list(PROJECT.glob(pattern)) for pattern in FUZZED)


@pytest.mark.parametrize("name", ["mutants", "planted", "forks"])
def test_results_name_no_path_of_a_machine(name: str) -> None:
    for path in (PROJECT / "benchmarks" / "results").glob(f"*-{name}.json"):
        text = json.dumps(json.loads(path.read_text()))
        assert str(Path.home()) not in text and "/tmp/" not in text
