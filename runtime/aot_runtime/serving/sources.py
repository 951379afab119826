"""The source of modules, by digest: served code must come from the very text that was captured."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterable

__all__ = ["changed_sources", "locate_source", "source_digest"]

_LETTERS = 16  # enough against edits by accident, and a library of a hundred modules is named in every record
_digests: dict[str, str | None] = {}  # by path; a library is not edited while a process runs it


def changed_sources(expected: dict[str, str]) -> list[str]:
    """The modules whose source is not what it was, or is not there."""
    return [name for name, digest in expected.items() if source_digest(name) != digest]


def source_digest(module: str) -> str | None:
    """How the SHA-256 of a module's source begins; None if there is none. Imports nothing."""
    path = locate_source(module)
    if path is None:
        return None
    if path not in _digests:
        try:
            with open(path, "rb") as file:
                _digests[path] = hashlib.sha256(file.read()).hexdigest()[:_LETTERS]
        except OSError:
            _digests[path] = None
    return _digests[path]


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
