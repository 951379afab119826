"""The tree gives what trying one variant after the other gives, and asks no more than it must."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aot import DeclarationError
from aot.selection import decision
from aot.selection.branching import branch_by_value
from aot.selection.decision import Node, Tree, decide, decide_plainly, unreachable
from aot.selection.subjects import HIGHEST, LOWEST, Requirement, Subject, VariantTable

MISSING = -(2**63)
SUBJECTS = [Subject("extent", (0,), dim) for dim in range(4)]
Values = Mapping[Subject, int]


def variant(index: int, *requirements: Requirement) -> VariantTable:
    return VariantTable(f"v{index}", "f", requirements, (), None, -1, 1, True)


def need(subject: int, low: int, high: int | None = None, *, enforced: bool = False) -> Requirement:
    return Requirement(SUBJECTS[subject], low, low if high is None else high, enforced)


def unmet(table: VariantTable, values: Values) -> list[Requirement]:
    return [r for r in table.requirements if not r.low <= values[r.subject] <= r.high]


def first_that_fits(variants: Sequence[VariantTable], values: Values) -> int | None:
    """The oracle: one after the other, the first whose every requirement holds."""
    return next((i for i, table in enumerate(variants) if not unmet(table, values)), None)


def walk(tree: Tree, values: Values) -> tuple[int | None, set[Subject]]:
    """What the C code does: follow the cuts down to a leaf."""
    asked = set()
    while isinstance(tree, Node):
        asked.add(tree.subject)
        tree = tree.children[sum(cut <= values[tree.subject] for cut in tree.cuts)]
    return tree, asked


_bounds = st.one_of(st.integers(-4, 4), st.sampled_from([LOWEST, LOWEST + 1, HIGHEST - 1, HIGHEST]))
_numbers = st.one_of(_bounds, st.integers(LOWEST, HIGHEST))


@st.composite
def _requirement(draw: st.DrawFn, subject: Subject) -> Requirement:
    low, high = sorted((draw(_numbers), draw(_numbers)))
    if draw(st.integers(0, 9)) == 0:
        low, high = high, low  # an empty interval: a guard that contradicts the arguments
    return Requirement(subject, low, high, draw(st.booleans()))


@st.composite
def _tables(draw: st.DrawFn) -> list[VariantTable]:
    pool = [draw(_requirement(subject)) for subject in SUBJECTS for _ in range(3)]
    variants = []
    for index in range(draw(st.integers(1, 7))):
        chosen = draw(st.lists(st.sampled_from(pool), max_size=5))
        by_subject = {requirement.subject: requirement for requirement in chosen}  # one interval per subject
        variants.append(variant(index, *by_subject.values()))
    return variants


_value = st.one_of(st.integers(-6, 6), st.sampled_from([MISSING, LOWEST, HIGHEST]), st.integers(LOWEST, HIGHEST))


@settings(max_examples=200)
@given(_tables(), st.lists(st.tuples(_value, _value, _value, _value), min_size=1, max_size=12))
def test_the_tree_agrees_with_trying_one_after_the_other(
    variants: list[VariantTable], rows: list[tuple[int, ...]]
) -> None:
    tree = decide(variants)
    enforced = {r for table in variants for r in table.requirements if r.enforced}
    bounds = [r.low for t in variants for r in t.requirements] + [r.high for t in variants for r in t.requirements]
    rows = [*rows, *((bound, bound, bound, bound) for bound in bounds)]
    for row in rows:
        values = dict(zip(SUBJECTS, row, strict=True))
        expected, (answer, _) = first_that_fits(variants, values), walk(tree, values)
        if expected is not None:
            assert answer == expected
        elif answer is not None:
            # Nothing fits, and the tree did not ask why: the entry of the variant it names will say so.
            left_out = unmet(variants[answer], values)
            assert not enforced & set(left_out)
            for index, table in enumerate(variants):
                others = set(unmet(table, values)) - set(left_out)
                assert others or set(left_out) <= set(table.requirements), f"v{index} could have taken over"


@settings(max_examples=60)
@given(_tables())
def test_what_is_left_out_is_shared_by_all_that_remain(variants: list[VariantTable]) -> None:
    """For every path of the tree: what the answer did not ask, each variant not ruled out requires as well."""
    _check_paths(decide(variants), variants, {})


def _check_paths(tree: Tree, variants: Sequence[VariantTable], asked: dict[Subject, int]) -> None:
    if isinstance(tree, Node):
        assert tree.subject not in asked, "asked twice"
        assert list(tree.cuts) == sorted(set(tree.cuts))
        assert len(tree.children) == len(tree.cuts) + 1
        for child, sample in zip(tree.children, [*(cut - 1 for cut in tree.cuts), tree.cuts[-1]], strict=True):
            _check_paths(child, variants, {**asked, tree.subject: sample})
    elif tree is not None:
        remaining = [table for table in variants if _possible(table, asked)]
        left_out = {r for r in variants[tree].requirements if r.subject not in asked}
        assert not any(r.enforced for r in left_out)
        assert all(left_out <= set(table.requirements) for table in remaining)


def _possible(table: VariantTable, asked: Mapping[Subject, int]) -> bool:
    return all(r.low <= asked[r.subject] <= r.high for r in table.requirements if r.subject in asked)


@given(_tables())
def test_a_variant_called_unreachable_takes_nothing(variants: list[VariantTable]) -> None:
    tree = decide(variants)
    lost = {int(name[1:]) for name in unreachable(tree, variants)}
    bounds = {edge for t in variants for r in t.requirements for edge in (r.low - 1, r.low, r.high, r.high + 1)}
    for bound in sorted(bounds | {0}):
        for other in (bound, 0, 1):
            values = dict(zip(SUBJECTS, (bound, other, bound, other), strict=True))
            assert first_that_fits(variants, values) not in lost


def test_a_variant_that_an_earlier_one_covers_is_found() -> None:
    general, special = variant(0, need(0, 0, 100)), variant(1, need(0, 8, 16))
    assert unreachable(decide([general, special]), [general, special]) == ["v1"]
    assert unreachable(decide([special, general]), [special, general]) == []


def test_a_variant_that_two_earlier_ones_cover_together_is_found() -> None:
    variants = [
        variant(0, need(0, LOWEST, 7, enforced=True)),
        variant(1, need(0, 8, HIGHEST, enforced=True)),
        variant(2, need(0, 5, 10)),
    ]
    assert unreachable(decide(variants), variants) == ["v2"]


def test_a_variant_with_an_impossible_guard_is_found() -> None:
    variants = [variant(0, need(0, 8, 4, enforced=True)), variant(1, need(0, 0, 9))]
    assert unreachable(decide(variants), variants) == ["v0"]


def test_one_variant_needs_no_question_but_its_guards() -> None:
    assert decide([variant(0, need(0, 1), need(1, 2))]) == 0
    tree = decide([variant(0, need(0, 1), need(1, 2, 5, enforced=True))])
    assert isinstance(tree, Node)
    assert tree == Node(SUBJECTS[1], (2, 6), (None, 0, None))


def test_no_variants_give_no_answer() -> None:
    assert decide([]) is None


def test_a_plain_tree_asks_for_no_preference() -> None:
    variants = [replace(variant(i, need(0, 1 + i, 9)), preferences=(need(1, i),)) for i in range(3)]
    for first in range(12):
        values = {SUBJECTS[0]: first, SUBJECTS[1]: 2}
        assert walk(decide_plainly(variants), values) == (first_that_fits(variants, values), {SUBJECTS[0]})
    assert walk(decide(variants), {SUBJECTS[0]: 5, SUBJECTS[1]: 2}) == (2, {SUBJECTS[0], SUBJECTS[1]})


def test_what_tells_most_variants_apart_is_asked_first() -> None:
    variants = [variant(i, need(0, i % 2), need(1, i)) for i in range(6)]
    tree = decide(variants)
    assert isinstance(tree, Node)
    assert tree.subject == SUBJECTS[1]
    for i in range(6):
        answer, asked = walk(tree, {SUBJECTS[0]: i % 2, SUBJECTS[1]: i})
        assert (answer, asked) == (i, {SUBJECTS[1]})


def test_the_depth_does_not_grow_with_variants_that_one_question_tells_apart() -> None:
    variants = [variant(i, need(0, i), need(1, 0, 9)) for i in range(256)]
    tree = decide(variants)
    for i in range(256):
        assert walk(tree, {SUBJECTS[0]: i, SUBJECTS[1]: 5}) == (i, {SUBJECTS[0]})


@pytest.mark.parametrize("count", [decision.MAX_DEPTH, decision.MAX_DEPTH + 1, 1500])
def test_a_chain_of_questions_is_arranged_up_to_a_limit(count: int) -> None:
    variants = [variant(i, Requirement(Subject("program", (), parameter=i), 0, 0, True)) for i in range(count)]
    if count > decision.MAX_DEPTH:
        with pytest.raises(DeclarationError, match=f"among {count} variants a call would ask more than"):
            decide(variants)
        return
    tree = decide(variants)
    assert unreachable(tree, variants) == []
    values = {table.requirements[0].subject: 1 for table in variants}
    assert walk(tree, {**values, variants[-1].requirements[0].subject: 0})[0] == count - 1


def test_a_tree_that_grows_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision, "MAX_NODES", 8)
    variants = [variant(i, need(i % 4, i, i + 3, enforced=True)) for i in range(16)]
    with pytest.raises(DeclarationError, match="a decision tree of more than 8 nodes"):
        decide(variants)


def test_single_values_are_looked_up_and_ranges_are_not() -> None:
    by_value = branch_by_value([3, 4, 8, 9], [0, 1, 0, 2, 0])
    assert by_value is not None and by_value.multiplier
    for value, child in ((3, 1), (8, 2), (4, 0), (0, 0)):
        found = by_value.branches[(value * by_value.multiplier & (1 << 64) - 1) >> by_value.shift]
        assert (found[1] if found[0] == value else by_value.otherwise) == child
    assert branch_by_value([3, 5], [0, 1, 0]) is None, "two values"
    assert branch_by_value([3], [0, 1]) is None, "all values from 3 on"
