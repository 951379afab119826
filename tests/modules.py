"""Modules of files that are in no package."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from places import PROJECT

__all__ = ["module_at"]


def module_at(name: str, *path: str) -> ModuleType:
    """The file at this place of the checkout, imported under this name."""
    spec = importlib.util.spec_from_file_location(name, PROJECT.joinpath(*path))
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    spec.loader.exec_module(made)
    return made
