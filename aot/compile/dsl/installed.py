"""The version of CuTe DSL that is installed, and the module that serves it."""

from __future__ import annotations

import importlib.metadata
import operator
import re
from functools import cache
from importlib import import_module

from ...errors import ToolchainError
from ...versions import install_cute_dsl, install_extras
from . import v4_6, v4_7, v4_8
from .interface import CuteDsl

__all__ = ["SUPPORTED", "check", "choose", "installed", "missing", "version", "warning"]

_DISTRIBUTION = "nvidia-cutlass-dsl"
SUPPORTED: dict[tuple[int, int], CuteDsl] = {(4, 6): v4_6, (4, 7): v4_7, (4, 8): v4_8}


def version() -> str:
    """The version of CuTe DSL that is installed."""
    try:
        return importlib.metadata.version(_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        raise ToolchainError("CuTe DSL is not installed", hint=install_cute_dsl()) from None


@cache
def installed() -> CuteDsl:
    """The module for the version that is installed; :class:`ToolchainError` if that version is too old."""
    return choose(version())


def choose(seen: str) -> CuteDsl:
    """The module for a version. One that is newer than all supported ones is tried with the newest module."""
    minor, newest = _minor(seen), max(SUPPORTED)
    if minor in SUPPORTED or minor > newest:
        return SUPPORTED[min(minor, newest)]
    names = ", ".join(f"{major}.{number}" for major, number in sorted(SUPPORTED))
    first, last = min(SUPPORTED), (newest[0], newest[1] + 1)
    install = f"`pip install '{_DISTRIBUTION}>={first[0]}.{first[1]},<{last[0]}.{last[1]}'`"
    raise ToolchainError(
        f"CuTe DSL {seen} is installed, which is not a supported version; supported are {names}", hint=install
    )


def warning(seen: str) -> str:
    """What to say of a version that nobody has tried; empty for others."""
    if _minor(seen) <= max(SUPPORTED):
        return ""
    tested = "{}.{}".format(*max(SUPPORTED))
    return f"CuTe DSL {seen} is newer than {tested}, the newest version that was tested: it is tried as if it were that one"


def _minor(seen: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", seen)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def check() -> None:
    """Raise :class:`ToolchainError` if CuTe DSL lacks something that the builder calls. Imports CuTe DSL."""
    lacking = missing(installed())
    if lacking:
        raise ToolchainError(
            f"CuTe DSL {version()} has no {', '.join(f'`{name}`' for name in lacking)}",
            hint=f"install a version that the extra `build` of cute-aot allows: {install_extras('build')}",
        )


def missing(dsl: CuteDsl) -> list[str]:
    """The names that the builder needs and CuTe DSL as it is installed does not have."""
    return [f"{module}.{name}" for module, names in dsl.NEEDS.items() for name in names if not _has(module, name)]


def _has(module: str, name: str) -> bool:
    """Whether a module has a name, which may be dotted: an attribute of a class."""
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        # If a module is there but a library that it imports is not, its own error says more.
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            return False
        raise
    try:
        operator.attrgetter(name)(found)
    except AttributeError:
        return False
    return True
