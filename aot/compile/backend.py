"""Choosing CuTe DSL's backend before it is imported.

With the CUDA 12 and 13 flavours both installed, CuTe DSL chooses by the driver of the build machine,
which says nothing about where the code will run. Loading the wanted flavour first makes it stay.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from ..errors import ToolchainError

__all__ = ["select_backend"]

_MODULE = "cutlass._mlir._mlir_libs._cutlass_ir"


def select_backend(cuda: int | None) -> None:
    """Bind the CUDA 12 or 13 flavour; None leaves the choice to CuTe DSL. Call before importing cutlass."""
    if importlib.util.find_spec("cutlass") is None:
        raise ToolchainError("CuTe DSL is not installed", hint="`pip install cute-aot[build]`")
    if cuda is None:
        return
    flavour = _find_flavour(cuda)
    spec = importlib.util.spec_from_file_location(_MODULE, flavour)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module
    spec.loader.exec_module(module)
    import cutlass._mlir._mlir_libs as parent

    parent._cutlass_ir = module


def _find_flavour(cuda: int) -> Path:
    spec = importlib.util.find_spec("nvidia_cutlass_dsl")
    roots = [Path(root) for root in (spec.submodule_search_locations or [])] if spec else []
    for root in roots:
        for path in root.glob(f"dsl_packages/cutlass/_mlir/_mlir_libs/_cutlass_ir.cu{cuda}.*.so"):
            return path
    raise ToolchainError(
        f"CuTe DSL's CUDA {cuda} backend is not installed",
        hint="`pip install nvidia-cutlass-dsl`" if cuda == 12 else "`pip install 'nvidia-cutlass-dsl[cu13]'`",
    )
