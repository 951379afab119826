"""Choosing CuTe DSL's backend before it is imported.

If the CUDA 12 and 13 backends are both installed, CuTe DSL chooses by the driver of the build machine,
which says nothing about the machine that the code will run on. The backend that is loaded first stays.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from ..errors import ToolchainError
from ..versions import install_extras
from . import dsl

__all__ = ["find_backend", "select_backend"]


def select_backend(cuda: int | None) -> None:
    """Bind the CUDA 12 or 13 backend; None leaves the choice to CuTe DSL. Call before importing cutlass."""
    if importlib.util.find_spec("cutlass") is None:
        raise ToolchainError("CuTe DSL is not installed", hint=install_extras("build"))
    module_name = dsl.installed().BACKEND_MODULE
    if cuda is None:
        return
    spec = importlib.util.spec_from_file_location(module_name, find_backend(cuda))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    parent, _, name = module_name.rpartition(".")
    setattr(importlib.import_module(parent), name, module)


def find_backend(cuda: int) -> Path:
    """The compiled module of a backend; :class:`ToolchainError` if it is not installed."""
    spec = importlib.util.find_spec("nvidia_cutlass_dsl")
    roots = [Path(root) for root in (spec.submodule_search_locations or [])] if spec else []
    for root in roots:
        for path in root.glob(dsl.installed().BACKEND_FILES.format(cuda=cuda)):
            return path
    raise ToolchainError(
        f"CuTe DSL's CUDA {cuda} backend is not installed",
        hint=install_extras("build" if cuda == 12 else "cu13"),
    )
