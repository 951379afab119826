"""Versions of what is installed beside us."""

from __future__ import annotations

import importlib.metadata

__all__ = ["LOWEST_TVM_FFI", "TVM_FFI_ABI", "installed_version"]

LOWEST_TVM_FFI = "0.1.0"  # the oldest apache-tvm-ffi that runs a bundle
TVM_FFI_ABI = 0  # the major version of apache-tvm-ffi, which it raises when its binary interface changes


def installed_version(distribution: str) -> str | None:
    """The version of an installed distribution; None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
