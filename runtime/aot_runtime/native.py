"""Where the C sources and headers of the runtime lie: they travel inside this package."""

from __future__ import annotations

from pathlib import Path

__all__ = ["cmake_directory", "include_directory", "pkgconfig_directory", "source_directory"]

_PACKAGE = Path(__file__).resolve().parent


def cmake_directory() -> Path:
    return _installed_or_checkout("cmake")


def include_directory() -> Path:
    return _installed_or_checkout("include")


def pkgconfig_directory() -> Path:
    return _installed_or_checkout("pkgconfig")


def source_directory() -> Path:
    return _installed_or_checkout("src")


def _installed_or_checkout(name: str) -> Path:
    # A wheel holds them beside this file; a checkout, one folder up.
    installed = _PACKAGE / name
    return installed if installed.is_dir() else _PACKAGE.parent / name
