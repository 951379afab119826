"""Expressions over the arguments of a call: guards, and the shapes of outputs.

They use Python's syntax (``m * n >= 4096``, ``x.shape[0] + 1``) and are parsed once into the types below. Tools evaluate
them here, calls in C. Integers have 64 bits. A value that is missing, an overflow, or a division by zero makes a
condition false, here and in C.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import DeclarationError
from ..kinds import DTYPES, dtype_of

__all__ = [
    "Binary",
    "Compare",
    "Constant",
    "Element",
    "Expression",
    "Logic",
    "Name",
    "Negation",
    "Size",
    "names_in",
    "parse",
]

_INT64 = range(-(2**63) + 1, 2**63)  # -2**63 stands for "missing"


@dataclass(frozen=True)
class Constant:
    value: int | float


@dataclass(frozen=True)
class Name:
    """A symbolic extent, or a scalar parameter."""

    name: str


@dataclass(frozen=True)
class Element:
    """``x.shape[0]`` or ``x.strides[0]``."""

    parameter: str
    field: str
    dim: int


@dataclass(frozen=True)
class Size:
    """``x.size``: how many elements a tensor has, whatever its rank is."""

    parameter: str


@dataclass(frozen=True)
class Shape:
    """``x.shape``, ``x.shape[:stop]`` or ``x.shape[start:]``: several extents in the shape of an output.

    ``index`` is that of a tensor in a tuple: ``inputs[0].shape``.
    """

    parameter: str
    stop: int | None = None
    start: int | None = None
    index: int | None = None


@dataclass(frozen=True)
class Binary:
    operator: str  # + - * // % min max
    left: Expression
    right: Expression


@dataclass(frozen=True)
class Compare:
    operator: str  # < <= == !=
    left: Expression
    right: Expression


@dataclass(frozen=True)
class Logic:
    operator: str  # and or
    left: Expression
    right: Expression


@dataclass(frozen=True)
class Negation:
    operand: Expression


Expression = Constant | Name | Element | Size | Binary | Compare | Logic | Negation

_BINARY: dict[type, str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%"}
_COMPARE: dict[type, str] = {ast.Lt: "<", ast.LtE: "<=", ast.Eq: "==", ast.NotEq: "!="}
_MIRRORED: dict[type, str] = {ast.Gt: "<", ast.GtE: "<="}


def parse(text: str) -> Expression:
    """Parse an expression; :class:`DeclarationError` names the part that is not supported."""
    return _Parser(text).visit(_tree(text))


def _tree(text: str) -> ast.expr:
    if not isinstance(text, str):
        raise DeclarationError(
            f"not an expression: {text!r} (it is not a text)", hint='write one like "4 * x.shape[0]"'
        )
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise DeclarationError(f"not an expression: {text!r} ({error})") from None


def names_in(expression: Expression) -> set[str]:
    """The names and parameters in an expression."""
    if isinstance(expression, Name):
        return {expression.name}
    if isinstance(expression, (Element, Size)):
        return {expression.parameter}
    if isinstance(expression, Negation):
        return names_in(expression.operand)
    if isinstance(expression, Constant):
        return set()
    return names_in(expression.left) | names_in(expression.right)


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text

    def visit(self, node: ast.expr) -> Expression:
        try:
            return self._visit(node)
        except RecursionError:
            raise DeclarationError(f"nested too deeply: {self.text!r}") from None

    def _visit(self, node: ast.expr) -> Expression:
        if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
            return self._constant(int(node.value) if isinstance(node.value, bool) else node.value)
        if isinstance(node, ast.Name):
            return Name(node.id)
        if isinstance(node, ast.Subscript):
            return self._element(node)
        if isinstance(node, ast.Attribute) and node.attr == "size" and isinstance(node.value, ast.Name):
            return Size(node.value.id)
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            return Binary(_BINARY[type(node.op)], self.visit(node.left), self.visit(node.right))
        if isinstance(node, ast.Compare):
            return self._compare(node)
        if isinstance(node, ast.BoolOp):
            return self._logic(node)
        if isinstance(node, ast.UnaryOp):
            return self._unary(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        raise self._unknown(node)

    def _constant(self, value: int | float) -> Constant:
        if isinstance(value, float) and not math.isfinite(value):
            raise DeclarationError(f"a number in {self.text!r} is not finite")
        if isinstance(value, int) and value not in _INT64:
            raise DeclarationError(f"{value} in {self.text!r} does not fit in 64 bits")
        return Constant(value)

    def _element(self, node: ast.Subscript) -> Expression:
        value, index = node.value, self.visit(node.slice) if _is_number(node.slice) else None
        if (
            isinstance(value, ast.Attribute)
            and isinstance(value.value, ast.Name)
            and value.attr in ("shape", "strides")
            and isinstance(index, Constant)
            and isinstance(index.value, int)
        ):
            return Element(value.value.id, value.attr, index.value)
        raise self._unknown(node)

    def _compare(self, node: ast.Compare) -> Expression:
        operands = [self.visit(node.left), *(self.visit(item) for item in node.comparators)]
        parts = [self._one_comparison(op, operands[i], operands[i + 1]) for i, op in enumerate(node.ops)]
        return _chain("and", parts)

    def _one_comparison(self, op: ast.cmpop, left: Expression, right: Expression) -> Expression:
        if type(op) in _COMPARE:
            return Compare(_COMPARE[type(op)], left, right)
        if type(op) in _MIRRORED:
            return Compare(_MIRRORED[type(op)], right, left)
        raise DeclarationError(f"the comparison {type(op).__name__} is not supported in {self.text!r}")

    def _logic(self, node: ast.BoolOp) -> Expression:
        return _chain("and" if isinstance(node.op, ast.And) else "or", [self.visit(item) for item in node.values])

    def _unary(self, node: ast.UnaryOp) -> Expression:
        operand = self.visit(node.operand)
        if isinstance(node.op, ast.Not):
            return Negation(operand)
        if isinstance(node.op, ast.USub):
            return Constant(-operand.value) if isinstance(operand, Constant) else Binary("-", Constant(0), operand)
        raise self._unknown(node)

    def _call(self, node: ast.Call) -> Expression:
        if (
            isinstance(node.func, ast.Name)
            and node.func.id in ("min", "max")
            and len(node.args) == 2
            and not node.keywords
        ):
            return Binary(node.func.id, self.visit(node.args[0]), self.visit(node.args[1]))
        raise self._unknown(node)

    def _unknown(self, node: ast.expr) -> DeclarationError:
        return DeclarationError(
            f"{ast.unparse(node)!r} is not supported in {self.text!r}",
            hint="use names, x.shape[0], x.size, numbers, + - * // %, min, max, comparisons, and, or, not",
        )


def _is_number(node: ast.expr) -> bool:
    """Whether this is a literal like ``1`` or ``-1``."""
    node = node.operand if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else node
    return isinstance(node, ast.Constant) and not isinstance(node.value, bool)


def _chain(operator: str, parts: list[Expression]) -> Expression:
    result = parts[0]
    for part in parts[1:]:
        result = Logic(operator, result, part)
    return result


def shape_of(text: str, arguments: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape an output must have, given arrays and numbers by name.

    ``"x.shape"``, ``"(x.shape[0], 4)"``, or for any rank ``"(*x.shape[:-1], 4)"`` and ``"(4, *x.shape[1:])"``.
    """
    shape: list[int] = []
    for part in _extents(text):
        if isinstance(part, Shape):
            tensor = arguments[part.parameter] if part.index is None else arguments[part.parameter][part.index]
            shape.extend(tensor.shape[part.start : part.stop])
        else:
            shape.append(int(_evaluate(part, arguments)))
    return tuple(shape)


def value_of(text: str, arguments: Mapping[str, Any]) -> int:
    """The value of an expression of extents and numbers, given arrays and numbers by name."""
    return int(_evaluate(parse(text), arguments))


def array_value(text: str, extents: Mapping[str, Any]) -> Any:
    """The same of whole arrays of extents."""
    return _evaluate(parse(text), extents)


def check_shape(text: str) -> set[str]:
    """The names in a shape; raises unless :func:`shape_of` could evaluate it."""
    names: set[str] = set()
    for part in _extents(text):
        if not isinstance(part, Shape) and not _is_extent(part):
            raise DeclarationError(
                f"{render(part)!r} is not an extent in {text!r}",
                hint='write a shape like "x.shape", "(x.shape[0], 4)", "(*x.shape[:-1], 4)" or "(4, *x.shape[1:])"',
            )
        names |= {part.parameter} if isinstance(part, Shape) else names_in(part)
    return names


def check_size(text: str) -> set[str]:
    """The names in a number of bytes, ``"4 * x.shape[0]"``."""
    expression = parse(text)
    if not _is_extent(expression, sizes=True):
        raise DeclarationError(f"{text!r} is not a size", hint='write a size like "4 * x.shape[0]" or "4 * x.size"')
    return names_in(expression)


def check_dtype(text: str) -> set[str]:
    """The names in the dtype of an output, ``"x.dtype"`` or ``"f32"``."""
    name, dot, field = str(text).partition(".")
    if name.isidentifier() and (dot, field) == (".", "dtype"):
        return {name}
    if dtype_of(text) is not None:
        return set()
    raise DeclarationError(
        f"not the dtype of an output: {text!r}", hint=f"write x.dtype, or one of {', '.join(DTYPES)}"
    )


def _extents(text: str) -> Iterator[Expression | Shape]:
    tree = _tree(text)
    parser = _Parser(text)
    for part in tree.elts if isinstance(tree, ast.Tuple) else [tree]:
        shape = _shape(part.value if isinstance(part, ast.Starred) else part)
        # Several extents stand alone, or with a star in a tuple.
        starred_or_alone = isinstance(part, ast.Starred) or not isinstance(tree, ast.Tuple)
        yield shape if shape is not None and starred_or_alone else parser.visit(part)


def _shape(node: ast.expr) -> Shape | None:
    """``x.shape``, or a part of it: ``x.shape[:-1]``, ``x.shape[1:]``. ``x`` may be an element of a tuple."""
    start = stop = index = None
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        bounds, node = node.slice, node.value
        given = [bound for bound in (bounds.lower, bounds.upper) if bound is not None]
        if bounds.step or len(given) != 1 or not _is_number(given[0]):
            return None
        start, stop = (None if bound is None else ast.literal_eval(bound) for bound in (bounds.lower, bounds.upper))
    if not isinstance(node, ast.Attribute) or node.attr != "shape":
        return None
    tensor = node.value
    if isinstance(tensor, ast.Subscript) and _is_number(tensor.slice):
        index, tensor = ast.literal_eval(tensor.slice), tensor.value
    return Shape(tensor.id, stop, start, index) if isinstance(tensor, ast.Name) else None


def _is_extent(expression: Expression, sizes: bool = False) -> bool:
    """Whether this is an integer of extents and integers, and perhaps of the ``sizes`` of whole tensors."""
    if isinstance(expression, Binary):
        return _is_extent(expression.left, sizes) and _is_extent(expression.right, sizes)
    if isinstance(expression, Constant):
        return isinstance(expression.value, int)
    if isinstance(expression, Size):
        return sizes
    return isinstance(expression, Name) or (isinstance(expression, Element) and expression.field == "shape")


def _evaluate(expression: Expression, arguments: Mapping[str, Any]) -> Any:
    if isinstance(expression, Constant):
        return expression.value
    if isinstance(expression, Name):
        return arguments[expression.name]
    if isinstance(expression, Element):
        return arguments[expression.parameter].shape[expression.dim]
    if isinstance(expression, Size):
        return math.prod(arguments[expression.parameter].shape)
    if isinstance(expression, Binary):
        left, right = _evaluate(expression.left, arguments), _evaluate(expression.right, arguments)
        return _ARITHMETIC[expression.operator](left, right)
    raise AssertionError("refused when it was declared")


_ARITHMETIC: dict[str, Any] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "//": lambda left, right: left // right,
    "%": lambda left, right: left % right,
    "min": min,
    "max": max,
}


def render(expression: Expression) -> str:
    """The text of an expression, for messages."""
    if isinstance(expression, Constant):
        return str(expression.value)
    if isinstance(expression, Name):
        return expression.name
    if isinstance(expression, Element):
        return f"{expression.parameter}.{expression.field}[{expression.dim}]"
    if isinstance(expression, Size):
        return f"{expression.parameter}.size"
    if isinstance(expression, Negation):
        return f"not {_operand(expression.operand)}"
    if expression.operator in ("min", "max"):
        return f"{expression.operator}({render(expression.left)}, {render(expression.right)})"
    return f"{_operand(expression.left)} {expression.operator} {_operand(expression.right)}"


def _operand(expression: Expression) -> str:
    simple = isinstance(expression, (Constant, Name, Element, Size)) or getattr(expression, "operator", "") in (
        "min",
        "max",
    )
    return render(expression) if simple else f"({render(expression)})"
