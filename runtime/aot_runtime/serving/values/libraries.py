"""Whose a module is: a library's, whose functions count while a kernel is traced, or CuTe DSL's, Python's, a compiler's."""

from __future__ import annotations

import functools
import os
import sys
import types
from typing import Any, TypeGuard

__all__ = [
    "COMPILER", "MAIN", "is_of_cute_dsl", "is_of_library", "is_of_python", "module_of", "module_of_frame",
    "takes_part", "uses_cute_dsl",
]  # fmt: skip

MAIN = "__main__"
# What makes code or calls it. Its versions are no part of what tracing read.
COMPILER = frozenset({"cuda", "tvm_ffi", "aot", "aot_runtime"})
_FOREIGN = frozenset({*COMPILER, "numpy", "jax", "jaxlib", "triton", "builtins", "typing_extensions"})
_KERNELS_OF_TORCH = ("torch._native.", "torch._vendor.")
_LIBRARIES = ("cutlass.kernels.", "cutlass.operators.")  # of kernels, which NVIDIA installs into CuTe DSL's package
_FOLDER_OF_PYTHON = os.path.dirname(os.__file__) + os.sep
_INSTALLED = ("site-packages", "dist-packages")


def takes_part(module: str | None) -> bool:
    """Whether functions of a module count if they run while a kernel is traced.

    CuTe DSL's do not: what it makes is in the bundle. Torch's count only in modules that use CuTe DSL themselves.
    """
    name = str(module)  # functions that code has made may have none
    return not _is_foreign(name) and (not name.startswith("torch.") or uses_cute_dsl(name))


def is_of_library(value: Any) -> TypeGuard[types.FunctionType]:
    """Whether a value is a function that counts if it runs while a kernel is traced."""
    return isinstance(value, types.FunctionType) and takes_part(module_of(value))


def module_of(function: Any) -> str:
    """The module whose globals a function runs with. Decorators give it the ``__module__`` of another."""
    return str(function.__globals__.get("__name__"))


def module_of_frame(frame: types.FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


@functools.lru_cache(maxsize=16384)
def _is_foreign(module: str) -> bool:
    top = module.partition(".")[0]
    return top in _FOREIGN or is_of_cute_dsl(module) or module == "torch" or is_of_python(module)


def is_of_python(module: str) -> bool:
    """Whether a module is one of Python's own. A script may lie beside a file that is called as one of these."""
    top = module.partition(".")[0]
    if module == MAIN or top not in sys.stdlib_module_names:
        return False
    path = getattr(sys.modules.get(top), "__file__", None)
    if not isinstance(path, str):
        return True  # built in, frozen, or not loaded
    return path.startswith(_FOLDER_OF_PYTHON) and not path[len(_FOLDER_OF_PYTHON) :].startswith(_INSTALLED)


@functools.lru_cache(maxsize=4096)
def is_of_cute_dsl(module: str) -> bool:
    """Whether a module is CuTe DSL's own. Libraries of kernels may lie in its package."""
    return module.partition(".")[0] in ("cutlass", "nvidia_cutlass_dsl") and not f"{module}.".startswith(_LIBRARIES)


def uses_cute_dsl(module: str | None) -> bool:
    """Whether a loaded module has something of CuTe DSL among its globals: torch keeps kernels in some of its own.

    The packages in which torch keeps them count with all their modules: some hold nothing but the kernels' settings.
    """
    return module in sys.modules and (str(module).startswith(_KERNELS_OF_TORCH) or _uses_cute_dsl(str(module)))


@functools.lru_cache(maxsize=4096)
def _uses_cute_dsl(module: str) -> bool:
    values = list(vars(sys.modules[module]).values())
    names = (
        item.__name__ if isinstance(item, types.ModuleType) else getattr(item, "__module__", "") for item in values
    )
    return any(str(name).partition(".")[0] == "cutlass" for name in names)
