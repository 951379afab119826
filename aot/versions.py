"""Versions of what is installed beside us."""

from __future__ import annotations

import importlib.metadata

__all__ = ["LOWEST_TVM_FFI", "installed_version"]

LOWEST_TVM_FFI = "0.1.0"  # the oldest apache-tvm-ffi that runs a bundle


def installed_version(distribution: str) -> str | None:
    """The version of an installed distribution; None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
