"""The author's part in what goes wrong: the line that a compiler's error is about, and functions without a decorator."""

from __future__ import annotations

import inspect
import linecache
import re
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import DeclarationError, plain_text

__all__ = ["check_decorated", "compile_message", "is_authors", "is_raised_by_author"]

_OURS = str(Path(__file__).resolve().parents[1])
_PYTHON = sysconfig.get_paths()["stdlib"]
_INSTALLED = ("/site-packages/", "/dist-packages/")
_ARROW = re.compile(r"^\s*--> (.+?):(\d+)(?::\d+)?$", re.MULTILINE)  # how CuTe DSL's diagnostics name a line
_MARKS = ("_dsl_cls", "_dsl_object")  # what CuTe DSL's decorators leave on a function; the first until it is first used


def compile_message(error: BaseException, origin: str) -> str:
    """What a compiler raised, with the innermost line of the author's code first. ``origin`` is the declaration's."""
    text = f"{type(error).__name__}: {plain_text(str(error)).strip()}"
    place = _in_diagnostic(text, origin) or _in_traceback(error, origin)
    if place is None:
        return text
    path, line = place
    source = linecache.getline(path, line).strip()
    return f"{path}:{line}: {text}" + (f"\n    {source}" if source and source not in text else "")


def is_raised_by_author(error: BaseException, origin: str) -> bool:
    """Whether the author's code raised an error, while it was traced. Else the compiler did, after that."""
    return _in_traceback(error, origin) is not None


def _in_diagnostic(text: str, origin: str) -> tuple[str, int] | None:
    found = [(path, int(line)) for path, line in _ARROW.findall(text) if is_authors(path, origin)]
    return found[0] if found else None


def _in_traceback(error: BaseException, origin: str) -> tuple[str, int] | None:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_authors(frame.filename, origin)]
    return (frames[-1].filename, frames[-1].lineno or 0) if frames else None


def is_authors(path: str, origin: str) -> bool:
    """Whether a file is the author's: beside the declaration, or neither ours, Python's nor an installed package's."""
    if path.startswith((_OURS, "<")):
        return False
    if Path(path).parent == Path(origin.rpartition(":")[0]).parent:
        return True
    return not path.startswith(_PYTHON) and not any(part in path for part in _INSTALLED)


def check_decorated(function: Callable[..., Any], where: str) -> None:
    """Raise unless a function is one of ``@cute.jit``. Asked of CuTe DSL's own marks, if it still leaves them."""
    import cutlass.cute as cute

    if not _is_marked(cute.jit(_undecorated)):
        return
    plain = _plain(function)
    name = getattr(plain, "__qualname__", repr(function))
    if not _is_marked(function):
        raise DeclarationError(
            f"{where}: `{name}` has no @cute.jit", hint=f"write @cute.jit above `def {plain.__name__}`"
        )
    if getattr(plain, "_decorator_kind", "jit") == "kernel":
        raise DeclarationError(
            f"{where}: `{name}` is a @cute.kernel, which is launched and not called",
            hint=f"pass the @cute.jit function that launches it: `{name}(...).launch(grid=..., block=..., stream=...)`",
        )


def _undecorated() -> None:
    """Looked at after it was decorated, never called."""


def _is_marked(function: Any) -> bool:
    return any(hasattr(_plain(function), mark) for mark in _MARKS)


def _plain(function: Any) -> Any:
    """The function that the author wrote: of a method, of an object that is called, of what was decorated."""
    if not inspect.isfunction(function) and not inspect.ismethod(function):
        function = type(function).__call__  # a spec is callable: its declaration was checked
    return inspect.unwrap(getattr(function, "__func__", function))
