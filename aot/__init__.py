"""Compile kernels written in CuTe DSL ahead of time: ``python -m aot build --arch sm90``.

This module holds what a kernel's declaration needs; it imports no compiler. See ``kernels/`` for
declarations to copy.
"""

TYPE_CHECKING = False  # type checkers take it for true; `typing` takes a hundredth of a second to import

if TYPE_CHECKING:
    from typing import Any

    from aot_runtime import __version__ as __version__

    from .declare.arguments import (
        ActiveClusters,
        Constant,
        Dim,
        Multiprocessors,
        Pointer,
        Scalar,
        Stream,
        Tensor,
        Tuple,
    )
    from .declare.backward import Backward, Composed
    from .declare.declaration import In, Out, kernel
    from .declare.specs import Cost, Spec, Work
    from .declare.workspace import Workspace
    from .errors import AotError, BuildError, DeclarationError, ToolchainError, UsageError
    from .targets import Target

__all__ = [
    "ActiveClusters",
    "AotError",
    "Backward",
    "BuildError",
    "Composed",
    "Constant",
    "Cost",
    "DeclarationError",
    "Dim",
    "In",
    "Multiprocessors",
    "Out",
    "Pointer",
    "Scalar",
    "Spec",
    "Stream",
    "Target",
    "Tensor",
    "ToolchainError",
    "Tuple",
    "UsageError",
    "Work",
    "Workspace",
    "kernel",
]

# Everything comes with its first use. The command line looks at bundles without declaring anything; and `python -m aot`
# imports this module before it can decide what an interrupt does.
_ARGUMENTS = ("ActiveClusters", "Constant", "Dim", "Multiprocessors", "Pointer", "Scalar", "Stream", "Tensor", "Tuple")
_MODULES = {
    **dict.fromkeys(_ARGUMENTS, ".declare.arguments"),
    **dict.fromkeys(("In", "Out", "kernel"), ".declare.declaration"),
    **dict.fromkeys(("Cost", "Spec", "Work"), ".declare.specs"),
    **dict.fromkeys(("Backward", "Composed"), ".declare.backward"),
    **dict.fromkeys(("AotError", "BuildError", "DeclarationError", "ToolchainError", "UsageError"), ".errors"),
    "Target": ".targets",
    "Workspace": ".declare.workspace",
    "__version__": "aot_runtime",
}


def __getattr__(name: str) -> "Any":
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in (*globals(), *_MODULES) if name.startswith("__"))})
