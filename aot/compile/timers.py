"""Timers that return: what they would time launches nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import ModuleType
from typing import Any
from unittest import mock

__all__ = ["MADE_UP", "Note", "timers_return"]

Note = Callable[[str], None]

_MICROSECONDS = 1.0
MADE_UP = "a timer returned a made-up time"


@contextmanager
def timers_return(note: Note) -> Iterator[None]:
    """Within the context, the timers of CuTe DSL call what they time once, for what it compiles."""
    timers = {"benchmark": _benchmark(note), "_benchmark_for_autotune": _tuned(note)}
    with ExitStack() as stack:
        for module in _modules():
            for name in timers.keys() & vars(module).keys():
                stack.enter_context(mock.patch.object(module, name, timers[name]))
        yield


def _modules() -> Iterator[ModuleType]:
    import cutlass.cute.testing

    yield cutlass.cute.testing
    with suppress(ImportError):  # since 4.7 the functions are there, and the first module imports them
        import cutlass.testing

        yield cutlass.testing


def _benchmark(note: Note) -> Callable[..., float]:
    def benchmark(
        callable: Any, *, kernel_arguments: Any = None, workspace_generator: Any = None, **settings: Any
    ) -> float:
        note(MADE_UP)
        given = workspace_generator() if workspace_generator is not None else kernel_arguments
        callable(*getattr(given, "args", ()), **getattr(given, "kwargs", {}))
        return _MICROSECONDS

    return benchmark


def _tuned(note: Note) -> Callable[..., float]:
    settings = ("warmup_iterations", "iterations", "use_cold_l2", "print_verbose", "current_stream")

    def benchmark(callable: Any, *args: Any, **kwargs: Any) -> float:
        note(MADE_UP)
        callable(*args, **{name: value for name, value in kwargs.items() if name not in settings})
        return _MICROSECONDS

    return benchmark
