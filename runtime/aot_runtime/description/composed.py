"""Gradients that are calls of other kernels: ``gemm(grad_out, b.mT)``.

The text comes from a file. It is parsed, never compiled: everything but names, calls of kernels, ``-x``, ``x.mT``, ``x.rows``,
``f(x)[0]``, numbers and texts is refused. ``x.mT`` swaps the last two dimensions, and ``x.rows`` is a matrix with the
rows of a batch of matrices, one below the other: neither moves data.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..errors import ManifestError

__all__ = ["Expression"]

_VIEWS: dict[str, Callable[[Any], Any]] = {
    "mT": lambda x: x.mT,
    "rows": lambda x: x.reshape(-1, x.shape[-1]),
}
_LONGEST = 1000  # characters
_DEEPEST = 50  # calls inside calls: what checks and evaluates them calls itself for each


class Expression:
    """A parsed expression. :class:`ManifestError` if it is none."""

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            if len(text) > _LONGEST:
                raise ValueError
            self._tree = ast.parse(text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise ManifestError(f"not an expression of kernels: {text[:200]!r}") from None
        self._check(self._tree)

    def _check(self, node: ast.expr, levels: int = _DEEPEST) -> None:
        if levels == 0:
            raise ManifestError(f"{self.text[:200]!r} is nested more than {_DEEPEST} deep")
        inner = list(_inner(node))
        if not inner and not _is_leaf(node):
            raise ManifestError(f"`{ast.get_source_segment(self.text, node)}` is not allowed in {self.text!r}")
        for part in inner:
            self._check(part, levels - 1)

    @property
    def names(self) -> frozenset[str]:
        """What it reads: inputs, outputs, gradients and choices."""
        called = {id(node.func) for node in ast.walk(self._tree) if isinstance(node, ast.Call)}
        found = (node for node in ast.walk(self._tree) if isinstance(node, ast.Name))
        return frozenset(node.id for node in found if id(node) not in called)

    @property
    def calls(self) -> tuple[tuple[str, int, tuple[str, ...]], ...]:
        """Each call: the kernel, how many arguments have no name, and the names of the others."""
        calls = (node for node in ast.walk(self._tree) if isinstance(node, ast.Call))
        return tuple((_kernel(call), len(call.args), tuple(str(word.arg) for word in call.keywords)) for call in calls)

    @property
    def kernels(self) -> frozenset[str]:
        return frozenset(kernel for kernel, _, _ in self.calls)

    @property
    def last(self) -> str:
        """The kernel whose result this is; "" if it is a view of one, or something else."""
        return _kernel(self._tree) if isinstance(self._tree, ast.Call) else ""

    def evaluate(
        self, values: Mapping[str, Any], kernel: Callable[[str], Callable[..., Any]], known: dict[str, Any]
    ) -> Any:
        """``known`` keeps results of calls by their text, for expressions with the same values that share them."""
        return _value(self._tree, values, kernel, known)


def _inner(node: ast.expr) -> Iterator[ast.expr]:
    """The parts of an expression that is allowed and has some."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if (node.args or node.keywords) and all(keyword.arg for keyword in node.keywords):
            yield from (*node.args, *(keyword.value for keyword in node.keywords))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield node.operand
    elif (isinstance(node, ast.Attribute) and node.attr in _VIEWS) or (
        isinstance(node, ast.Subscript) and isinstance(node.value, ast.Call) and _index(node) is not None
    ):
        yield node.value


def _is_leaf(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) or (isinstance(node, ast.Constant) and type(node.value) in (int, float, str))


def _index(node: ast.Subscript) -> int | None:
    value = node.slice.value if isinstance(node.slice, ast.Constant) else None
    return value if type(value) is int and value >= 0 else None


def _kernel(call: ast.Call) -> str:
    assert isinstance(call.func, ast.Name)
    return call.func.id


def _value(
    node: ast.expr, values: Mapping[str, Any], kernel: Callable[[str], Callable[..., Any]], known: dict[str, Any]
) -> Any:
    def value(part: ast.expr) -> Any:
        return _value(part, values, kernel, known)

    if isinstance(node, ast.Name):
        return values[node.id]
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.UnaryOp):
        return -value(node.operand)
    if isinstance(node, ast.Attribute):
        return _VIEWS[node.attr](value(node.value))
    if isinstance(node, ast.Subscript):
        return value(node.value)[_index(node)]
    assert isinstance(node, ast.Call)
    text = ast.unparse(node)
    if text not in known:
        named = {str(word.arg): value(word.value) for word in node.keywords}
        known[text] = kernel(_kernel(node))(*map(value, node.args), **named)
    return known[text]
