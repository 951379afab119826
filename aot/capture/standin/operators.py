"""The bodies of torch's custom operators, which do not run on tensors without memory.

Torch runs the fake implementation of an operator on such tensors, so that a compile in its body would not be seen. While
an exercise runs, the body runs too, for what it compiles. The result of the call is that of the fake implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

__all__ = ["Report", "operator_bodies"]

_FOR_A_GPU = ("CUDA", "CompositeExplicitAutograd")  # in the order in which torch prefers them

Report = Callable[[str, Exception], None]


@contextmanager
def operator_bodies(report: Report) -> Iterator[None]:
    """Within the context, operators that Python code registers run their bodies for a GPU too.

    A body that raises is reported with the name of its operator: it may look at the contents of tensors.
    """
    import torch

    bodies = _Bodies(report)
    with ExitStack() as stack:
        library = torch.library.Library
        stack.enter_context(mock.patch.object(library, "impl", bodies.remembered(library.impl)))
        for kind in (torch._ops.OpOverload, torch._ops.OpOverloadPacket):
            stack.enter_context(mock.patch.object(kind, "__call__", bodies.run_before(kind.__call__)))
        yield


class _Bodies:
    """The bodies of operators, as they are registered."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._bodies: dict[tuple[str, str], Callable[..., Any]] = {}  # by the operator's name and the dispatcher's key
        self._running: set[str] = set()  # a fake implementation leads to the operator again

    def remembered(self, register: Callable[..., Any]) -> Callable[..., Any]:
        """What takes the place of ``Library.impl``."""

        def impl(library: Any, name: Any, function: Any, dispatch_key: str = "", **options: Any) -> Any:
            if not options.get("with_keyset"):
                self._bodies[_full_name(library, name), dispatch_key or library.dispatch_key] = function
            return register(library, name, function, dispatch_key, **options)

        return impl

    def run_before(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """What takes the place of calling an operator."""

        def run(operator: Any, /, *args: Any, **kwargs: Any) -> Any:
            if not self._bodies:
                return call(operator, *args, **kwargs)
            overload = _overload(operator)
            name = overload.name()
            body = next((self._bodies[name, key] for key in _FOR_A_GPU if (name, key) in self._bodies), None)
            if body is None or name in self._running or _is_traced():
                return call(operator, *args, **kwargs)
            self._run(body, overload, args, kwargs)
            self._running.add(name)
            try:
                return call(operator, *args, **kwargs)
            finally:
                self._running.discard(name)

        return run

    def _run(self, body: Callable[..., Any], overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        import torch

        positional, named = _all_arguments(overload._schema, args, kwargs)
        try:
            with torch.no_grad():
                body(*positional, **named)
        except Exception as error:
            self._report(overload.name(), error)


def _full_name(library: Any, name: Any) -> str:
    text = name if isinstance(name, str) else name.name()
    return text if "::" in text else f"{library.ns}::{text}"


def _overload(operator: Any) -> Any:
    """``torch.ops.library.name`` stands for its first overload."""
    return getattr(operator, operator.overloads()[0]) if hasattr(operator, "overloads") else operator


def _is_traced() -> bool:
    """Whether torch's compiler asks, which runs nothing yet."""
    import torch

    return torch._guards.TracingContext.try_get() is not None


def _all_arguments(schema: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Every argument of an operator, in the order that its body takes, with the defaults of the schema."""
    rest = schema.arguments[len(args) :]
    values = {argument.name: kwargs.get(argument.name, argument.default_value) for argument in rest}
    positional = [values[argument.name] for argument in rest if not argument.kwarg_only]
    return [*args, *positional], {argument.name: values[argument.name] for argument in rest if argument.kwarg_only}
