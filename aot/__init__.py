"""Compile kernels written in CuTe DSL ahead of time: ``python -m aot build --arch sm90``.

This module holds what a kernel's declaration needs; it imports no compiler. See ``kernels/`` for
declarations to copy.
"""

from .arguments import ActiveClusters, Constant, Dim, Multiprocessors, Pointer, Scalar, Stream, Tensor, Tuple
from .declare import Cost, In, Kernel, Out, Spec, Variant, kernel
from .errors import AotError, BuildError, DeclarationError, ToolchainError, UsageError
from .targets import Target

__all__ = [
    "ActiveClusters",
    "AotError",
    "BuildError",
    "Constant",
    "Cost",
    "DeclarationError",
    "Dim",
    "In",
    "Kernel",
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
    "Variant",
    "kernel",
]
