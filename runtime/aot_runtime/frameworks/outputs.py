"""Shapes and dtypes of outputs: the expressions of a declaration as Python source.

Frameworks allocate outputs for the caller. A declaration states their shapes as expressions over the inputs, such as
``(*a.shape[:-1], b.shape[-2])``. The text comes from a file, so everything but the few forms below is refused before
any of it is compiled.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Collection, Sequence
from typing import Any

from ..dtypes import ALLOCATED, find_dtype
from ..errors import ManifestError

__all__ = ["SHAPE_FUNCTIONS", "dtype_source", "first_dtype", "framework_dtype", "rank_of", "shape_source"]

_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)
# What the source of a shape calls. Parameters may be called `min` and `max`, but their names do not start with `_`.
SHAPE_FUNCTIONS = {"_min": min, "_max": max, "_prod": math.prod}


def shape_source(text: str, parameters: Collection[str]) -> str:
    """Python source of the tuple that a shape expression stands for, over parameters of those names.

    What it calls is in :data:`SHAPE_FUNCTIONS`.
    """
    try:
        return _tuple_source(ast.parse(text, mode="eval").body, text, parameters)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ManifestError(f"not the shape of an output: {text[:200]!r}") from None


def rank_of(text: str) -> int:
    """The extents that a shape expression lists; -1 if their number depends on its inputs."""
    tree = ast.parse(text, mode="eval").body
    if not isinstance(tree, ast.Tuple) or any(isinstance(one, ast.Starred) for one in tree.elts):
        return -1
    return len(tree.elts)


def _tuple_source(tree: ast.expr, text: str, parameters: Collection[str]) -> str:
    elements = (
        tree.elts if isinstance(tree, ast.Tuple) else [ast.Starred(tree, ast.Load()) if _is_shape(tree) else tree]
    )
    sources = []
    for element in elements:
        inner = element.value if isinstance(element, ast.Starred) else element
        if not (_is_extents(inner, parameters) if isinstance(element, ast.Starred) else _is_extent(inner, parameters)):
            raise ManifestError(f"`{ast.unparse(element)}` is not an extent in the shape of an output, {text!r}")
        for call in (node for node in ast.walk(element) if isinstance(node, ast.Call)):
            assert isinstance(call.func, ast.Name)
            call.func.id = f"_{call.func.id}"
        sources.append(ast.unparse(_Sizes().visit(element)))
    return f"({', '.join(sources)}{',' if len(sources) == 1 else ''})"


class _Sizes(ast.NodeTransformer):
    """``x.size`` becomes a product of extents: in torch it is a method."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if node.attr != "size":
            return node
        shape = ast.Attribute(node.value, "shape", ast.Load())
        return ast.Call(ast.Name("_prod", ast.Load()), [shape], [])


def dtype_source(text: str, parameters: Collection[str]) -> str | None:
    """``x.dtype`` if an output has the dtype of that parameter; None if ``text`` names a dtype itself."""
    name, dot, field = text.partition(".")
    if not dot:
        return None
    if field == "dtype" and name in parameters:
        return text
    raise ManifestError(f"not the dtype of an output: {text!r}")


def first_dtype(accepts: Sequence[str]) -> str | None:
    """Our name for the dtype of the first tensor that variants take, as in ``bfloat16[:, :]``; None if there is none."""
    wanted = accepts[0].partition("[")[0] if accepts else ""
    found = find_dtype(wanted)
    return found.name if found is not None and found.name in ALLOCATED else None


def framework_dtype(framework: Any, text: str) -> Any:
    """The dtype of that name in ``torch``, or in ``jax.numpy``, which shares the names but for bool."""
    found = find_dtype(text)
    if found is None or found.name not in ALLOCATED:
        raise ManifestError(f"not a dtype that frameworks can allocate: {text!r}")
    return getattr(framework, "bool_" if found.name == "bool" and hasattr(framework, "bool_") else found.torch)


def _is_shape(node: ast.expr) -> bool:
    node = node.value if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice) else node
    return isinstance(node, ast.Attribute) and node.attr != "size"


def _is_extents(node: ast.expr, parameters: Collection[str]) -> bool:
    """``x.shape``, ``x.shape[:-1]`` or ``x.shape[1:]``; ``x`` may be an element of a tuple, ``inputs[0]``."""
    if isinstance(node, ast.Subscript):
        bounds = node.slice
        if not isinstance(bounds, ast.Slice) or bounds.step or (bounds.lower is None) == (bounds.upper is None):
            return False
        if not _is_number(bounds.lower or bounds.upper):
            return False
        node = node.value
    if not isinstance(node, ast.Attribute) or node.attr != "shape":
        return False
    tensor = node.value
    tensor = tensor.value if isinstance(tensor, ast.Subscript) and _is_number(tensor.slice) else tensor
    return _is_parameter(tensor, parameters)


def _is_extent(node: ast.expr, parameters: Collection[str]) -> bool:
    """A number, a scalar parameter, ``x.shape[0]``, ``x.size``, or arithmetic over these."""
    if isinstance(node, ast.BinOp):
        operands = (node.left, node.right)
        return isinstance(node.op, _OPERATORS) and all(_is_extent(operand, parameters) for operand in operands)
    if isinstance(node, ast.Call):
        named = isinstance(node.func, ast.Name) and node.func.id in ("min", "max")
        return named and len(node.args) == 2 and not node.keywords and all(_is_extent(a, parameters) for a in node.args)
    if isinstance(node, ast.Subscript):
        whole = isinstance(node.value, ast.Attribute) and isinstance(node.value.value, ast.Name)
        return _is_number(node.slice) and whole and _is_extents(node.value, parameters)
    if isinstance(node, ast.Attribute):
        return node.attr == "size" and _is_parameter(node.value, parameters)
    return _is_number(node) or _is_parameter(node, parameters)


def _is_parameter(node: ast.expr, parameters: Collection[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in parameters


def _is_number(node: ast.expr | None) -> bool:
    node = node.operand if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else node
    return isinstance(node, ast.Constant) and type(node.value) is int
