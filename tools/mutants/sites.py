"""Where a mistake can be put into a file, and what it looks like: the operators, for Python and for C.

Each mutation replaces one piece of text on its own: a comparison, a logical or an arithmetic operator, a small number,
the sense of a condition, a statement. Comments, strings and declarations are left alone.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

__all__ = ["Mutation", "draw", "mutations"]

_COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
_ARITHMETIC = {"+": "-", "-": "+", "*": "+", "%": "/", "<<": ">>", ">>": "<<", "&": "|", "|": "&"}
_LOGIC = {"&&": "||", "||": "&&"}
_PYTHON = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"),
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+"), ast.Mod: ("%", "//"), ast.FloorDiv: ("//", "*"),
    ast.BitAnd: ("&", "|"), ast.LShift: ("<<", ">>"), ast.RShift: (">>", "<<"), ast.And: ("and", "or"), ast.Or: ("or", "and"),
}  # fmt: skip


@dataclass(frozen=True)
class Mutation:
    path: str  # of the file, from the root of the project
    line: int
    kind: str
    start: int  # characters of the file's text that are replaced
    end: int
    old: str
    new: str
    code: str = ""  # the line, which says more than its number
    nth: int = 0  # of those in the file that look the same

    @property
    def id(self) -> str:
        """The same as long as the line is the same, wherever it is in the file."""
        words = (self.path, self.kind, self.code, self.old, self.new, str(self.nth))
        return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]

    def applied(self, text: str) -> str:
        assert text[self.start : self.end] == self.old, f"{self.path} is not the file that this mutation was made for"
        return text[: self.start] + self.new + text[self.end :]

    def data(self) -> dict[str, object]:
        words = {"code": self.code, "kind": self.kind, "old": self.old[:120], "new": self.new[:120]}
        return {"id": self.id, "file": self.path, **words}


def draw(root: Path, areas: dict[str, tuple[int, tuple[str, ...]]], seed: int) -> list[Mutation]:
    """As many mutations of each area as it says, spread over all places of its files.

    Each place draws its own lot. So a change of the code changes few of the mutations, and results can be kept.
    """
    drawn = []
    for count, patterns in areas.values():
        paths = sorted({path for pattern in patterns for path in root.glob(pattern) if path.is_file()})
        found = [one for path in paths for one in mutations(path.relative_to(root).as_posix(), path.read_text())]
        lots = {one: hashlib.sha256(f"{seed} {one.id}".encode()).digest() for one in found}
        drawn += sorted(found, key=lots.__getitem__)[:count]
    return drawn


def mutations(path: str, text: str) -> list[Mutation]:
    """All of one file, in the order of their places."""
    found = _of_python(path, text) if path.endswith(".py") else _of_c(path, text)
    lines = text.split("\n")
    named = [replace(one, code=lines[one.line - 1].strip()) for one in found]
    alike: Counter[str] = Counter()
    numbered = []
    for one in sorted(named, key=lambda one: (one.start, one.end, one.new)):
        numbered.append(replace(one, nth=alike[one.id]))
        alike[one.id] += 1
    return numbered


# Python


def _of_python(path: str, text: str) -> Iterator[Mutation]:
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line.encode()) + 1)
    raw = text.encode()

    def at(line: int, column: int) -> int:
        return len(raw[: starts[line - 1] + column].decode())

    def change(node: ast.AST, kind: str, new: str, start: int | None = None, end: int | None = None) -> Mutation:
        first = at(node.lineno, node.col_offset) if start is None else start  # type: ignore[attr-defined]
        last = at(node.end_lineno, node.end_col_offset) if end is None else end  # type: ignore[attr-defined]
        return Mutation(path, text.count("\n", 0, first) + 1, kind, first, last, text[first:last], new)

    for node in _code_of(ast.parse(text)):
        for kind, operator, left, right in _operators(node):
            old, new = _PYTHON[type(operator)]
            begin, end = at(left.end_lineno, left.end_col_offset), at(right.lineno, right.col_offset)
            found = re.search(rf"(?<!\w){re.escape(old)}(?!\w)", text[begin:end])
            if found:
                yield change(node, kind, new, begin + found.start(), begin + found.end())
        for kind, part, new in _replaced(node):
            yield change(part, kind, new)


def _code_of(tree: ast.AST) -> Iterator[ast.AST]:
    """What runs: annotations and what only type checkers see are left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from (inner for statement in node.body for inner in (statement, *_code_of(statement)))
        elif isinstance(node, ast.AnnAssign):
            yield from (() if node.value is None else (node.value, *_code_of(node.value)))
        elif not (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"):
            yield node
            yield from _code_of(node)


def _operators(node: ast.AST) -> Iterator[tuple[str, ast.AST, ast.expr, ast.expr]]:
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        for number, operator in enumerate(node.ops):
            yield "comparison", operator, sides[number], sides[number + 1]
    elif isinstance(node, ast.BoolOp):
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield "logic", node.op, left, right
    elif isinstance(node, ast.BinOp) and type(node.op) in _PYTHON:
        texts = (ast.Constant, ast.JoinedStr)
        is_text = any(isinstance(side, texts) and not _is_number(side) for side in (node.left, node.right))
        if not is_text:
            yield "arithmetic", node.op, node.left, node.right


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


def _replaced(node: ast.AST) -> Iterator[tuple[str, ast.AST, str]]:
    if isinstance(node, (ast.If, ast.While, ast.IfExp)):
        yield "condition", node.test, f"not ({ast.unparse(node.test)})"
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) <= 4096:
        yield "number", node, str(node.value + 1)
    if isinstance(node, ast.Constant) and type(node.value) is bool:
        yield "constant", node, str(not node.value)
    if isinstance(node, ast.Raise):
        yield "statement", node, "pass"
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "statement", node, "pass"


# C

_NOT_CODE = re.compile(
    r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|^[ \t]*#(?:\\\n|[^\n])*', re.S | re.M
)
_C_OPERATOR = re.compile(r"(?<= )(<<|>>|<=|>=|==|!=|&&|\|\||[-+*%&|<>])(?= )")
_C_NUMBER = re.compile(r"(?<![\w.\[])(\d{1,4})(?![\w.])")
_C_CONDITION = re.compile(r"(?<!\w)(?:if|while) \(")
_C_STATEMENT = re.compile(r"(?<=[;{}]\n)([ \t]+)((?:[\w\[\]>.-]+ [-+|&]?= |\+\+|\w+\()[^;{}]*;)(?=\n)")


def _of_c(path: str, text: str) -> Iterator[Mutation]:
    code = _NOT_CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    spans = list(_bodies(code))

    def change(kind: str, start: int, end: int, new: str) -> Mutation:
        return Mutation(path, text.count("\n", 0, start) + 1, kind, start, end, text[start:end], new)

    for first, last in spans:
        body = code[first:last]
        for found in _C_OPERATOR.finditer(body):
            kind, table = next(
                (kind, table)
                for kind, table in (("comparison", _COMPARISONS), ("logic", _LOGIC), ("arithmetic", _ARITHMETIC))
                if found[1] in table
            )
            yield change(kind, first + found.start(), first + found.end(), table[found[1]])
        for found in _C_NUMBER.finditer(body):
            yield change("number", first + found.start(), first + found.end(), str(int(found[1]) + 1))
        for found in _C_CONDITION.finditer(body):
            start, end = first + found.end(), first + _closing(body, found.end())
            yield change("condition", start, end, f"!({text[start:end]})")
        for found in _C_STATEMENT.finditer(body):
            if not found[2].startswith("return"):
                yield change("statement", first + found.start(2), first + found.end(2), ";")


def _bodies(code: str) -> Iterator[tuple[int, int]]:
    """What lies between the braces of functions."""
    for found in re.finditer(r"\)\s*(?:const |noexcept )?\{", code):
        if _depth(code, found.start()) == 0:
            yield found.end(), _closing(code, found.end(), "{", "}")


def _depth(code: str, at: int) -> int:
    """How many functions are around a place; namespaces, classes and `extern "C"` do not count."""
    stack: list[bool] = []
    for found in re.finditer(r"[{}]", code[:at]):
        if found[0] == "{":
            stack.append(bool(re.search(r"\)\s*(?:const |noexcept )?$", code[: found.start()][-40:])))
        elif stack:
            stack.pop()
    return sum(stack)


def _closing(code: str, at: int, opening: str = "(", closing: str = ")") -> int:
    depth = 1
    while depth:
        depth += {opening: 1, closing: -1}.get(code[at], 0)
        at += 1
    return at - 1
