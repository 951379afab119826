"""The tree that finds the variant for a call without trying one after the other.

The answer is the first variant, in the order of declaration, whose requirements and preferences all hold. If there is
none, it is the first variant whose requirements hold. The tree asks only what tells variants apart. A requirement that all
remaining variants share is left out: the compiled entry checks it, and no other variant would take over. Guards, which no
entry checks, are always asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..errors import DeclarationError
from .subjects import HIGHEST, Requirement, Subject, VariantTable

__all__ = ["Node", "Tree", "decide", "decide_plainly", "unreachable"]

MAX_NODES = 1 << 16
MAX_DEPTH = 200  # questions of one call


@dataclass(frozen=True)
class Node:
    """Asks for ``subject``; child i answers "i of the cuts are <= the value"."""

    subject: Subject
    cuts: tuple[int, ...]
    children: tuple[Tree, ...]


Tree = Node | int | None  # a question, the index of a variant, or "no variant"


@dataclass(frozen=True)
class _Candidate:
    index: int
    pending: frozenset[int]  # requirements not yet answered, by number


def decide(variants: Sequence[VariantTable]) -> Tree:
    """Arrange the requirements of the variants of one function into a tree.

    Functions of a kernel often have the same requirements, and a build asks twice: when it plans, and when it links.
    """
    # As text, because labels and whether an entry enforces a requirement belong to a tree, but not to comparisons.
    asked = repr([(variant.requirements, variant.preferences) for variant in variants])
    if asked not in _TREES:
        _TREES[asked] = _arranged(variants)
    return _TREES[asked]


_TREES: dict[str, Tree] = {}  # by what the variants ask


def decide_plainly(variants: Sequence[VariantTable]) -> Tree:
    """The tree that finds the first variant which takes a call, whatever it prefers: a table decides then."""
    return decide([replace(variant, preferences=()) for variant in variants])


def _arranged(variants: Sequence[VariantTable]) -> Tree:
    builder = _Builder(variants)
    preferred = [_Candidate(i, builder.numbers(variant, preferred=True)) for i, variant in enumerate(variants)]
    others = [_Candidate(i, builder.numbers(variant)) for i, variant in enumerate(variants) if variant.preferences]
    return builder.build((*preferred, *others))


def unreachable(tree: Tree, variants: Sequence[VariantTable]) -> list[str]:
    """Variants that no arguments lead to, because earlier ones take everything they take."""
    reached: set[int] = set()
    _collect(tree, reached, set())
    return [variant.name for i, variant in enumerate(variants) if i not in reached]


def _collect(tree: Tree, reached: set[int], seen: set[int]) -> None:
    if isinstance(tree, int):
        reached.add(tree)
    elif isinstance(tree, Node) and id(tree) not in seen:
        seen.add(id(tree))
        for child in tree.children:
            _collect(child, reached, seen)


class _Builder:
    """Works on numbered requirements, because candidates are compared and hashed often."""

    def __init__(self, variants: Sequence[VariantTable]) -> None:
        self.variants = variants
        self.number: dict[Requirement, int] = {}
        self.enforced: set[int] = set()
        self.known: dict[tuple[_Candidate, ...], Tree] = {}
        for variant in variants:
            for requirement in (*variant.requirements, *variant.preferences):
                number = self.number.setdefault(requirement, len(self.number))
                if requirement.enforced or requirement in variant.preferences:  # no entry knows of preferences
                    self.enforced.add(number)
        self.requirements = list(self.number)
        self.about: dict[Subject, list[int]] = {}
        for requirement, number in self.number.items():
            self.about.setdefault(requirement.subject, []).append(number)

    def numbers(self, variant: VariantTable, *, preferred: bool = False) -> frozenset[int]:
        asked = (*variant.requirements, *(variant.preferences if preferred else ()))
        return frozenset(self.number[requirement] for requirement in asked)

    def build(self, candidates: tuple[_Candidate, ...], depth: int = 0) -> Tree:
        if candidates not in self.known:
            if depth > MAX_DEPTH:
                raise DeclarationError(
                    f"to choose among {len(self.variants)} variants a call would ask more than {MAX_DEPTH} questions",
                    hint="compare the same expression with different numbers in the guards: one question then answers them all",
                )
            self.known[candidates] = self._build(candidates, depth)
            if len(self.known) > MAX_NODES:
                raise DeclarationError(f"the variants' guards make a decision tree of more than {MAX_NODES} nodes")
        return self.known[candidates]

    def _build(self, candidates: tuple[_Candidate, ...], depth: int) -> Tree:
        if not candidates:
            return None
        questions = self._questions(candidates)
        if not questions:
            return candidates[0].index
        # An expression takes longer than all that is only looked up. What is left then may not need it.
        subject = max(questions, key=lambda question: (not question.steps, len(self._wanted(question, candidates))))
        wanted = self._wanted(subject, candidates)
        cuts = _cuts([self.requirements[number] for number in wanted])
        # An interval below each cut, and one above the last.
        samples = [cut - 1 for cut in cuts] + [cuts[-1]]
        children = tuple(self.build(self._after(candidates, subject, sample), depth + 1) for sample in samples)
        return Node(subject, cuts, children)

    def _questions(self, candidates: tuple[_Candidate, ...]) -> list[Subject]:
        """What must be asked before the first candidate can be taken."""
        shared = frozenset.intersection(*(candidate.pending for candidate in candidates)) - self.enforced
        return [self.requirements[number].subject for number in sorted(candidates[0].pending - shared)]

    def _wanted(self, subject: Subject, candidates: tuple[_Candidate, ...]) -> set[int]:
        """The different answers that the candidates want. The more there are, the better the question separates them."""
        about = frozenset(self.about[subject])
        return set().union(*(candidate.pending & about for candidate in candidates))

    def _after(self, candidates: tuple[_Candidate, ...], subject: Subject, value: int) -> tuple[_Candidate, ...]:
        """The candidates that remain if the subject has this value."""
        about = frozenset(self.about[subject])
        met = {n for n in about if self.requirements[n].low <= value <= self.requirements[n].high}
        return tuple(
            _Candidate(candidate.index, candidate.pending - about)
            for candidate in candidates
            if candidate.pending & about <= met
        )


def _cuts(requirements: Sequence[Requirement]) -> tuple[int, ...]:
    cuts = {requirement.low for requirement in requirements}
    cuts |= {requirement.high + 1 for requirement in requirements if requirement.high < HIGHEST}
    return tuple(sorted(cuts))
