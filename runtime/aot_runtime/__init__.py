"""Load and call kernels that were compiled ahead of time, without CuTe DSL and without a compiler.

import aot_runtime
kernels = aot_runtime.load("dist/kernels")
kernels.add(x, y, out)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .arch import Arch, ArchError
    from .core.bundle import Bundle, load
    from .core.explain import Candidate, Device, Explanation, TensorInfo
    from .core.streams import use_stream
    from .errors import (
        AotError,
        ArgumentError,
        BundleError,
        CaptureError,
        CudaError,
        DeviceError,
        DigestError,
        DriverError,
        HostError,
        IncompleteBundleWarning,
        ManifestError,
        MissError,
        NotFoundError,
        PublicKeyError,
        ServingWarning,
        SignatureError,
        TvmFfiError,
        UsageError,
        VersionError,
    )
    from .serving.server import Serving, serve

__version__ = "0.1.0"

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
    "Device",
    "DeviceError",
    "DigestError",
    "DriverError",
    "Explanation",
    "HostError",
    "IncompleteBundleWarning",
    "ManifestError",
    "MissError",
    "NotFoundError",
    "PublicKeyError",
    "Serving",
    "ServingWarning",
    "SignatureError",
    "TensorInfo",
    "TvmFfiError",
    "UsageError",
    "VersionError",
    "load",
    "serve",
    "use_stream",
]

# Each name is imported with its first use. Tools read manifests and name architectures without TVM-FFI, whose import
# brings torch with it.
_MODULES = {
    "Arch": "arch",
    "ArchError": "arch",
    "Bundle": "core.bundle",
    "load": "core.bundle",
    "use_stream": "core.streams",
}
_MODULES |= dict.fromkeys(("Candidate", "Device", "Explanation", "TensorInfo"), "core.explain")
_MODULES |= dict.fromkeys(("Serving", "serve"), "serving.server")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        module = import_module(f".{_MODULES.get(name, 'errors')}", __name__)
    except ModuleNotFoundError as error:
        if error.name != "tvm_ffi":
            raise
        from .errors import TvmFfiError

        raise TvmFfiError("apache-tvm-ffi is not installed", hint="`pip install apache-tvm-ffi`") from None
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
