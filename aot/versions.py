"""What is installed beside us: versions, and the files of Apache TVM-FFI.

The import of TVM-FFI imports torch if that is installed, which takes seconds. Finding a path takes no import at all.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import ToolchainError

__all__ = ["LOWEST_TVM_FFI", "TVM_FFI_ABI", "installed_version", "tvm_ffi_headers", "tvm_ffi_library", "without_torch"]

LOWEST_TVM_FFI = "0.1.0"  # the oldest apache-tvm-ffi that runs a bundle
TVM_FFI_ABI = 0  # the major version of apache-tvm-ffi, which it raises when its binary interface changes


def installed_version(distribution: str) -> str | None:
    """The version of an installed distribution; None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def tvm_ffi_headers() -> Path:
    """The folder of its C headers."""
    return _part("include")


def tvm_ffi_library() -> Path:
    return _part("lib/libtvm_ffi.so")


def _part(name: str) -> Path:
    spec = importlib.util.find_spec("tvm_ffi")
    if spec is None or spec.origin is None:
        raise ToolchainError("apache-tvm-ffi is not installed", hint="`pip install apache-tvm-ffi`")
    path = Path(spec.origin).parent / name
    if not path.exists():
        raise ToolchainError(
            f"apache-tvm-ffi has no `{path}`", hint="`pip install --force-reinstall --no-deps apache-tvm-ffi`"
        )
    return path


@contextmanager
def without_torch() -> Iterator[None]:
    """For an import of TVM-FFI: it then takes torch for missing. Only for processes that pass no tensors of torch to it."""
    if "torch" in sys.modules:
        yield
        return
    modules: dict[str, Any] = sys.modules
    modules["torch"] = None  # so that Python says that there is none
    try:
        yield
    finally:
        del modules["torch"]
