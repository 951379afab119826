"""Guards of a declaration, such as ``m * n >= 4096``, as intervals or as small stack programs for C."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ..declare import expressions
from ..declare.arguments import Scalar, Tensor
from ..declare.expressions import Compare, Element, Expression, Logic, Name, Negation, Size
from ..errors import DeclarationError
from .subjects import HIGHEST, LOWEST, Path, Place, Requirement, Step, Subject, ordered_float

__all__ = ["Guards"]

MAX_PROGRAM_DEPTH = 16


@dataclass(frozen=True)
class Guards:
    """Compiles the guards of one kernel, given the names and places of its arguments."""

    kernel: str  # for messages: where it is declared, and its name
    places: Mapping[str, Place]
    tensors: Mapping[str, tuple[Path, Tensor]]
    scalars: Mapping[str, tuple[Path, Scalar]]
    role: str = "guard"  # for messages: what the expressions are declared as

    def requirements(self, guard: str) -> Iterator[Requirement]:
        yield from self._guard(self._parsed(guard))

    def subject(self, expression: str) -> Subject:
        """The value of an expression that is an integer."""
        parsed = self._parsed(expression)
        if isinstance(parsed, Name):
            self._leaf(parsed)  # a float alone is refused, too
        return self._subject(parsed)

    def of_call(self, expression: str) -> str:
        """The same expression of nothing but public arguments: ``m * 2`` as ``a.shape[0] * 2``."""
        return expressions.render(self._of_call(self._parsed(expression)))

    def _of_call(self, expression: Expression) -> Expression:
        if isinstance(expression, expressions.Binary):
            return replace(expression, left=self._of_call(expression.left), right=self._of_call(expression.right))
        if isinstance(expression, Name) and expression.name in self.places:
            expression = self._parsed(self.places[expression.name].label)
        is_stride = isinstance(expression, Element) and expression.field != "shape"
        if is_stride or not isinstance(expression, (Name, Element, expressions.Constant)):
            raise self._error(
                f"{expressions.render(expression)!r} cannot tell calls apart for a table",
                hint="use extents, integer arguments, + - * // %, min and max",
            )
        return expression

    def _parsed(self, guard: str) -> Expression:
        if not isinstance(guard, str):
            raise self._error(f"{guard!r} is not a text")
        try:
            return expressions.parse(guard)
        except DeclarationError as error:
            raise self._error(error.message, hint=error.hint) from None

    def _guard(self, guard: Expression) -> Iterator[Requirement]:
        if isinstance(guard, Logic) and guard.operator == "and":
            yield from self._guard(guard.left)
            yield from self._guard(guard.right)
        elif isinstance(guard, Compare) and (interval := self._interval(guard)) is not None:
            yield interval
        else:
            yield Requirement(self._program("condition", guard), 1, 1, enforced=True)

    def _interval(self, guard: Compare) -> Requirement | None:
        """``m <= 64`` as an interval of ``m``; None if neither side is a number."""
        left, right = guard.left, guard.right
        if isinstance(right, expressions.Constant):
            subject, bound = self._subject(left), self._bound(left, right)
            bounds = {"<": (LOWEST, bound - 1), "<=": (LOWEST, bound), "==": (bound, bound)}
        elif isinstance(left, expressions.Constant):
            subject, bound = self._subject(right), self._bound(right, left)
            bounds = {"<": (bound + 1, HIGHEST), "<=": (bound, HIGHEST), "==": (bound, bound)}
        else:
            return None
        if guard.operator not in bounds:
            return None
        low, high = bounds[guard.operator]
        return Requirement(subject, low, high, enforced=True)

    def _bound(self, side: Expression, constant: expressions.Constant) -> int:
        if isinstance(side, Name) and self._is_float(side.name):
            return ordered_float(float(constant.value))
        if isinstance(constant.value, float):
            raise self._error(f"{constant.value} is compared with an integer: {expressions.render(side)}")
        return constant.value

    def _is_float(self, name: str) -> bool:
        return name in self.scalars and "f" in self.scalars[name][1].dtype

    def _subject(self, expression: Expression) -> Subject:
        label = expressions.render(expression)
        if isinstance(expression, Name) and self._is_float(expression.name):
            return Subject("float", self.scalars[expression.name][0], label=label)
        if isinstance(expression, (Name, Element)):
            step = self._leaf(expression)
            return Subject(step.operation, step.path, step.dim, label=label)
        return self._program("program", expression)

    def _leaf(self, expression: Name | Element) -> Step:
        if isinstance(expression, Element):
            path, tensor = self._tensor_named(expression)
            return Step("extent" if expression.field == "shape" else "stride", path, expression.dim % len(tensor.shape))
        if expression.name in self.places:
            place = self.places[expression.name]
            return Step("stride" if place.is_stride else "extent", place.path, place.dim)
        if expression.name in self.scalars and not self._is_float(expression.name):
            return Step("integer", self.scalars[expression.name][0])
        known = [*self.places, *(name for name in self.scalars if not self._is_float(name))]
        raise self._error(
            f"{expression.name!r} is neither an extent nor an integer argument",
            hint=f"known: {', '.join(known) or 'none'}",
        )

    def _tensor_named(self, element: Element) -> tuple[Path, Tensor]:
        if element.parameter not in self.tensors:
            raise self._error(f"{element.parameter!r} is not a tensor")
        path, tensor = self.tensors[element.parameter]
        if not -len(tensor.shape) <= element.dim < len(tensor.shape):
            raise self._error(f"{element.parameter} has rank {len(tensor.shape)}, no dimension {element.dim}")
        return path, tensor

    def _program(self, operation: str, expression: Expression) -> Subject:
        steps = tuple(self._steps(expression))
        if _depth(steps) > MAX_PROGRAM_DEPTH:
            raise self._error(f"{expressions.render(expression)!r} is nested too deeply")
        return Subject(operation, (), steps=steps, label=expressions.render(expression))

    def _steps(self, expression: Expression) -> Iterator[Step]:
        if isinstance(expression, expressions.Constant):
            if isinstance(expression.value, float):
                raise self._error(
                    f"{expression.value}: floats can only be compared, with a float argument on the other side"
                )
            yield Step("constant", value=expression.value)
        elif isinstance(expression, (Name, Element)):
            yield self._leaf(expression)
        elif isinstance(expression, Size):
            yield from self._size(expression)
        elif isinstance(expression, Negation):
            yield from self._steps(expression.operand)
            yield Step("not")
        else:
            yield from self._steps(expression.left)
            yield from self._steps(expression.right)
            yield Step(_OPERATIONS[expression.operator])

    def _size(self, expression: Size) -> Iterator[Step]:
        """The product of all extents: the rank is known when a variant is built."""
        if expression.parameter not in self.tensors:
            raise self._error(f"{expression.parameter!r} is not a tensor")
        path, tensor = self.tensors[expression.parameter]
        yield Step("constant", value=1)
        for dim in range(len(tensor.shape)):
            yield Step("extent", path, dim)
            yield Step("multiply")

    def _error(self, message: str, hint: str | None = None) -> DeclarationError:
        return DeclarationError(f"{self.kernel}: {self.role}: {message}", hint=hint)


_OPERATIONS = {
    "+": "add", "-": "subtract", "*": "multiply", "//": "floor_divide", "%": "modulo", "min": "minimum",
    "max": "maximum", "<": "less", "<=": "less_equal", "==": "equal", "!=": "not_equal", "and": "and", "or": "or",
}  # fmt: skip
_PUSHES = ("constant", "extent", "stride", "integer")


def _depth(steps: tuple[Step, ...]) -> int:
    depth = highest = 0
    for step in steps:
        depth += 1 if step.operation in _PUSHES else 0 if step.operation == "not" else -1
        highest = max(highest, depth)
    return highest
