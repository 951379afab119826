"""Writes a package that has CuTe DSL's names and compiles nothing, for tests of what happens around it."""

from __future__ import annotations

from pathlib import Path

COMPILER = """
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
    (folder / "cutlass" / "base_dsl" / "compiler.py").write_text(COMPILER)
