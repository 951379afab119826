"""Writes a package that has CuTe DSL's names and compiles nothing, for tests of what happens around it."""

from __future__ import annotations

from pathlib import Path

MLIR = """
class Context:
    current = None
class InsertionPoint:
    current = None
"""
DSL = """
import cutlass._mlir.ir

class BaseDSL:
    def _func(self, func, *args, **kwargs):
        return "called"
"""
COMPILER = """
from .dsl import BaseDSL

class _Options:
    options = {}

class CompileCallable:
    _compile_options = _Options()
    def __getitem__(self, options):
        return CompileCallable()
    def __call__(self, *args, **kwargs):
        return self._compile(*args, **kwargs)
    def _compile(self, func, *args, **kwargs):
        return "compiled"
"""


def write_double(folder: Path) -> None:
    """``import cutlass.base_dsl.compiler`` finds it in the folder."""
    (folder / "cutlass" / "base_dsl").mkdir(parents=True)
    (folder / "cutlass" / "__init__.py").write_text("")
    (folder / "cutlass" / "base_dsl" / "__init__.py").write_text("")
    (folder / "cutlass" / "base_dsl" / "dsl.py").write_text(DSL)
    (folder / "cutlass" / "base_dsl" / "compiler.py").write_text(COMPILER)
    (folder / "cutlass" / "_mlir").mkdir()
    (folder / "cutlass" / "_mlir" / "__init__.py").write_text("")
    (folder / "cutlass" / "_mlir" / "ir.py").write_text(MLIR)
