"""Load and call kernels that were compiled ahead of time, without CuTe DSL and without a compiler.

import aot_runtime
kernels = aot_runtime.load("dist/kernels")
kernels.add(x, y, out)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .arch import Arch, ArchError
from .errors import (
    AotError,
    ArgumentError,
    BundleError,
    CaptureError,
    CudaError,
    DeviceError,
    DigestError,
    DriverError,
    ManifestError,
    PublicKeyError,
    SignatureError,
)

if TYPE_CHECKING:
    from .bundle import Bundle, Candidate, Explanation, TensorInfo, load

__all__ = [
    "AotError",
    "Arch",
    "ArchError",
    "ArgumentError",
    "Bundle",
    "BundleError",
    "Candidate",
    "CaptureError",
    "CudaError",
    "DeviceError",
    "DigestError",
    "DriverError",
    "Explanation",
    "ManifestError",
    "PublicKeyError",
    "SignatureError",
    "TensorInfo",
    "load",
]

# Tools read manifests and name architectures without TVM-FFI, whose import brings torch in where it is
# installed; what needs it comes with the first use.
_FROM_BUNDLE = frozenset({"Bundle", "Candidate", "Explanation", "TensorInfo", "load"})


def __getattr__(name: str) -> Any:
    if name in _FROM_BUNDLE:
        return getattr(import_module(".bundle", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
