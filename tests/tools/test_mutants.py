"""Mutations are drawn by a seed, fit the code as it is, and each has tests that exist."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from places import PROJECT

from tools.mutants.check import AREAS, Check, Result, is_prepared, named_tests
from tools.mutants.planted import FUZZED, known
from tools.mutants.report import why_it_survives
from tools.mutants.sites import Mutation, draw, mutations
from tools.mutants.trees import Stillborn, Tree

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


def test_a_line_that_is_added_leaves_the_mutations_of_other_lines_drawn(tmp_path: Path) -> None:
    areas = {"all": (4, ("*.py",))}
    (tmp_path / "x.py").write_text(PYTHON)
    before = draw(tmp_path, areas, 1)
    (tmp_path / "x.py").write_text("first = 0\n" + PYTHON)
    after = draw(tmp_path, areas, 1)
    assert len({one.id for one in before} & {one.id for one in after}) >= 3


def test_places_that_look_the_same_have_ids_of_their_own() -> None:
    found = mutations("x.py", "a = b + 1\na = b + 1\n")
    assert len({one.id for one in found}) == len(found) == 4


def test_code_for_other_machines_is_no_mutation_here(tmp_path: Path) -> None:
    (tmp_path / "x.c").write_text(
        "#if 1\nint f(int x) { return x + 1; }\n#else\nint f(int x) { return x - 1; }\n#endif\n"
    )
    here, elsewhere = (one for one in mutations("x.c", (tmp_path / "x.c").read_text()) if one.kind == "arithmetic")
    tree = Tree(tmp_path, tmp_path)
    with tree.mutated(here):
        assert "x - 1; }\n#else" in (tmp_path / "x.c").read_text()
    with pytest.raises(Stillborn), tree.mutated(elsewhere):
        pass
    assert (tmp_path / "x.c").read_text().count("x + 1") == 1, "it is as before"


def test_what_a_record_says_was_noticed_is_not_tried_again(tmp_path: Path) -> None:
    for name in ("shared/artifacts", "sources"):
        (tmp_path / "prepared" / name).mkdir(parents=True)
    (tmp_path / "prepared" / "failing.json").write_text("[]")
    assert is_prepared(tmp_path / "prepared") and not is_prepared(tmp_path)
    first, second = draw(PROJECT, {"selection": (2, AREAS["selection"][1])}, 1)
    noticed = Result(first, "selection", True, "a test", 1.0)
    known = {first.id: noticed.data(), second.id: Result(second, "selection", False, "", 1.0).data()}
    check = Check(tmp_path, tmp_path / "prepared", 0, 1e9, known)
    assert check._earlier("selection", first) == noticed
    assert check._earlier("selection", second) is None, "a survivor is tried again"
    check.until = 0.0
    assert check._earlier("selection", second) is not None, "if there is time"


def test_a_survivor_whose_reason_is_known_is_not_tried_again(tmp_path: Path) -> None:
    (tmp_path / "prepared").mkdir()
    (tmp_path / "prepared" / "failing.json").write_text("[]")
    every = draw(PROJECT, {"selection": (10_000, AREAS["selection"][1])}, 1)
    known = next(one for one in every if why_it_survives(one))
    survived = Result(known, "selection", False, "", 1.0)
    check = Check(tmp_path, tmp_path / "prepared", 0, 1e9, {known.id: survived.data()})
    assert check._earlier("selection", known) == survived


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
