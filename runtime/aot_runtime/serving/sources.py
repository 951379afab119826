"""The source of modules, by digest: served code must come from the very text that was captured.

A file is read once per process.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import sys
import types
from collections.abc import Iterable

__all__ = ["class_statements", "locate_source", "source_digest", "uses_cute_dsl"]

_LETTERS = 16  # enough against edits by accident, and a library of a hundred modules is named in every record
_CLASS = re.compile(rb"class (\w+)[(:]")
_files: dict[str, _Source | None] = {}  # by path; a library is not edited while a process runs it
_NOTHING: frozenset[bytes] = frozenset()


def uses_cute_dsl(module: str | None) -> bool:
    """Whether a loaded module has something of CuTe DSL among its globals: torch keeps kernels in some of its own."""
    return module in sys.modules and _uses_cute_dsl(str(module))


@functools.lru_cache(maxsize=4096)
def _uses_cute_dsl(module: str) -> bool:
    values = list(vars(sys.modules[module]).values())
    names = (
        item.__name__ if isinstance(item, types.ModuleType) else getattr(item, "__module__", "") for item in values
    )
    return any(str(name).partition(".")[0] == "cutlass" for name in names)


def source_digest(module: str) -> str | None:
    """How the SHA-256 of a module's source begins; None if there is none. Imports nothing."""
    path = locate_source(module)
    source = _read(path) if path is not None else None
    return source.digest if source is not None else None


def class_statements(path: str) -> frozenset[bytes]:
    """The names that follow the word ``class`` in a file."""
    source = _read(path)
    return source.classes if source is not None else _NOTHING


class _Source:
    """What is kept of a file."""

    __slots__ = ("classes", "digest")

    def __init__(self, content: bytes) -> None:
        self.digest = hashlib.sha256(content).hexdigest()[:_LETTERS]
        self.classes = frozenset(_CLASS.findall(content))


def _read(path: str) -> _Source | None:
    if path not in _files:
        try:
            with open(path, "rb") as file:
                _files[path] = _Source(file.read())
        except OSError:
            _files[path] = None
    return _files[path]


def locate_source(module: str) -> str | None:
    """The file of a module, whether it is loaded or not. Imports nothing."""
    path = getattr(sys.modules.get(module), "__file__", None)
    if isinstance(path, str):
        return path if path.endswith(".py") else None
    top, *rest = module.split(".")
    for folder in _folders(top):
        base = os.path.join(folder, *rest)
        for candidate in (os.path.join(base, "__init__.py"), f"{base}.py"):
            if os.path.isfile(candidate):
                return candidate
    return None


def _folders(package: str) -> Iterable[str]:
    loaded = sys.modules.get(package)
    if loaded is not None:
        return list(getattr(loaded, "__path__", ()))
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return []
    return list(spec.submodule_search_locations or ()) if spec is not None else []
