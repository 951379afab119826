"""Importing this first keeps torch, JAX, CuPy and CuTe DSL out of the process.

Torch, JAX and CuPy look as if they were not installed. CuTe DSL can be found, as the builder does, but not imported.
``with_frameworks`` says why, and starts the process in which this module does nothing.
"""

import importlib.machinery
import os
import sys
from types import ModuleType
from typing import Any

FRAMEWORKS = ("torch", "jax", "cupy")
COMPILER = "cutlass"
RESULTS = "AOT_TESTS_WITH_FRAMEWORKS"  # set in the process that may import them: the file that takes its results
ALLOWED = RESULTS in os.environ


class _Refused:
    """Finds CuTe DSL, and refuses to import it."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        found = importlib.machinery.PathFinder.find_spec(name, path) if name == COMPILER else None
        if found is not None:
            found.loader = cls  # type: ignore[assignment]
        return found

    @staticmethod
    def create_module(spec: importlib.machinery.ModuleSpec) -> ModuleType:
        raise ImportError(f"tests that import {COMPILER} into their own process are marked `compiler`", name=spec.name)

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """The import system asks that this is there. It is never called."""


if not ALLOWED and COMPILER not in sys.modules:
    sys.meta_path.insert(0, _Refused)
if not ALLOWED:
    for _name in FRAMEWORKS:
        sys.modules.setdefault(_name, None)  # type: ignore[arg-type]  # a framework that is there already stays
