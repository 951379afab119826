"""Variants that are compiled from the same thing are compiled once, one after the other, by one worker.

An epilogue that dispatch passes as a number (an ``aot.Constant`` for a parameter without ``Constexpr``) makes variants
whose code is the same. Only their names and those numbers differ, and neither is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType, MethodType
from typing import Any, Generic, TypeVar

from ..declare.arguments import Argument, Fixed, Tensor, compiled_tensor
from ..declare.kernel import Variant
from ..declare.specs import CapturedSpec
from .messages import Options

__all__ = ["Code", "Last", "code_of"]

_T = TypeVar("_T")


@dataclass(frozen=True)
class Code:
    """What a variant is compiled from, noted before the compiler runs: kernels set attributes while it does."""

    function: Any  # the jit function, or the class of an object with a jit ``__call__``
    settings: frozenset[tuple[str, Any]]  # of that object
    arguments: tuple[tuple[str, Any], ...]
    options: str


def code_of(variant: Variant, options: Options) -> Code | None:
    """None if another variant cannot be known to be compiled from the same thing."""
    spec = variant.spec
    if isinstance(spec, CapturedSpec) or options.keep:  # what is kept is a by-product of a compile of its own
        return None
    function = spec.function
    owner = function.__self__ if isinstance(function, MethodType) else function
    kind = getattr(function, "__func__", function if isinstance(function, FunctionType) else type(function))
    settings = {} if isinstance(owner, FunctionType) else getattr(owner, "__dict__", None)
    if settings is None:
        return None
    try:
        named = frozenset({"": type(owner), **settings}.items())
        arguments = tuple((name, _compiled(argument)) for name, argument in spec.arguments.items())
        hash(arguments)
    except TypeError:  # something that cannot be hashed, such as an array, cannot be compared either
        return None
    return Code(kind, named, arguments, variant.kernel.options)


def _compiled(argument: Argument) -> Any:
    """Of a number that dispatch passes, only the type is compiled; of a single tensor, the batch."""
    if isinstance(argument, Tensor):
        return compiled_tensor(argument)
    return (Fixed, type(argument.value)) if isinstance(argument, Fixed) else argument


@dataclass
class Last(Generic[_T]):
    """The result of the last compile."""

    code: Code | None = None
    result: list[_T] = field(default_factory=list)

    def get(self, code: Code | None, compile: Callable[[], _T]) -> _T:
        """That result if it was compiled from the same, or else what ``compile`` returns."""
        if code is None or code != self.code:
            self.code, self.result = None, []
            self.result = [compile()]
            self.code = code
        return self.result[0]
