"""Whose a module is: the author's, an installed distribution's, Python's own, or ours.

The author's files count by their bytes, installed distributions by their versions. A folder of the search path that
``pip install --target`` filled holds installed distributions too. A package that is installed as editable lies outside
the installed libraries, and so its files are the author's.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

__all__ = ["distributions_of", "is_source", "is_source_module", "locate", "places_of", "source_of"]

_OURS = ("aot", "aot_runtime")  # counted as code generation, not as the author's source
_LIBRARIES = ("/site-packages/", "/dist-packages/")
_INSTALLED = tuple({os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("purelib", "platlib")})
_STANDARD = tuple({os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")})
_OF_ENVIRONMENTS = "_virtualenv.py"  # virtualenv and uv put it into each environment; no distribution lists it
_SYSTEM = ("/proc/", "/sys/", "/dev/", "/etc/")


def is_source(path: str) -> bool:
    """Whether a file is the author's: neither Python's, nor an installed distribution's, the system's or ours."""
    real = os.path.realpath(path)
    if path.startswith("<") or real.startswith(_SYSTEM) or _is_own(real):
        return False
    if real.startswith(_INSTALLED):
        return _owner(real) is None and os.path.basename(real) != _OF_ENVIRONMENTS
    if real.startswith(_STANDARD) or any(folder in real for folder in _LIBRARIES):
        return False
    return not any(top in _listed(tuple(sys.path)).get(root, ()) for root, top in _tops_above(real))


@cache
def _own_folders() -> tuple[str, ...]:
    # Not from ``__path__``: an editable install may put the root of the checkout there.
    return tuple(os.path.dirname(os.path.realpath(str(sys.modules[name].__file__))) + os.sep for name in _OURS)


def _is_own(real: str) -> bool:
    return real.startswith(_own_folders())


def is_source_module(name: str) -> bool:
    """Whether a module that is named in an import may be the author's. Looks at its top level, imports nothing."""
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names or top in _OURS:
        return False
    place = _place(top)
    return place is None or is_source(place)


def source_of(module: ModuleType) -> Path | None:
    """The file of a module if it is the author's."""
    path = getattr(module, "__file__", None)
    return Path(path).resolve() if isinstance(path, str) and os.path.isfile(path) and is_source(path) else None


def locate(name: str) -> Path | None:
    """The file of a module that may not be imported yet, if it is the author's."""
    module = sys.modules.get(name)
    if module is not None:
        return source_of(module)
    spec = _find(name)
    origin = spec.origin if spec is not None and spec.has_location else None
    return Path(origin).resolve() if origin and is_source(origin) else None


def _find(name: str) -> ModuleSpec | None:
    """Where a module lies. ``importlib.util.find_spec`` imports the packages above it, and one may patch CuTe DSL."""
    folders = _folders_of(name.rpartition(".")[0])
    for finder in sys.meta_path if folders is None or folders else ():
        with suppress(Exception):  # finders of others may raise anything
            spec = finder.find_spec(name, folders)
            if spec is not None:
                return spec
    return None


def _folders_of(package: str) -> list[str] | None:
    """Where the modules of a package are looked for; None for top-level modules."""
    if not package:
        return None
    if package in sys.modules:
        return list(getattr(sys.modules[package], "__path__", ()))
    spec = _find(package)
    if spec is not None and spec.has_location:
        return list(spec.submodule_search_locations or ())
    above, _, last = package.rpartition(".")  # a folder without `__init__.py`: Python lists it with its parent's help
    places = sys.path if not above else _folders_of(above) or []
    return [place for folder in places if os.path.isdir(place := os.path.join(folder, last))]


def distributions_of(names: Iterable[str]) -> dict[str, str]:
    """The installed distributions that modules come from, with their versions."""
    found: dict[str, str] = {}
    for top in sorted({name.partition(".")[0] for name in names} - set(sys.stdlib_module_names)):
        place = _place(top)
        if place is not None and not is_source(place):
            found.update(_installed(tuple(sys.path)).get(_owner(os.path.realpath(place)) or top, {}))
    return found


def places_of(tops: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Where each top-level module lies; all places, since one that goes or comes changes what an import finds.

    Nowhere counts too: code may do without a module. A worker looks into the current folder before all others.
    What asks may have a search path of its own, such as the folder of a script. What is installed counts by version, so
    that it may lie in any environment.
    """
    importlib.invalidate_caches()  # files may be younger than what Python remembers of their folders
    return {top: tuple(dict.fromkeys(_all_places(top))) for top in tops}


def _all_places(top: str) -> Iterator[str]:
    for finder in sys.meta_path:  # editable packages have finders of their own
        with suppress(Exception):  # which may raise anything
            yield from _places_in(finder.find_spec(top, None))
    for folder in (os.getcwd(), *sys.path):
        yield from _places_in(PathFinder.find_spec(top, [folder]))


def _places_in(spec: ModuleSpec | None) -> list[str]:
    if spec is None:
        return []
    found = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
    return [_in_any_environment(place) for place in found]


def _in_any_environment(place: str) -> str:
    """The place of a module, without the folder of the environment that it is installed in."""
    for folder in _LIBRARIES:
        _, installed, rest = place.rpartition(folder)
        if installed:
            return f"{folder}{rest}"
    real = os.path.realpath(place)
    standard = next((folder for folder in _STANDARD if real.startswith(folder)), None)
    return place if standard is None else f"/lib/{real.removeprefix(standard)}"


def _owner(real: str) -> str | None:
    """The top-level name under which installed distributions are listed that a file may belong to."""
    return next((top for _, top in _tops_above(real) if top in _installed(tuple(sys.path))), None)


def _tops_above(real: str) -> Iterator[tuple[str, str]]:
    """The folders of the search path that a file lies in, with its top-level name in each."""
    for root in _search_path(tuple(sys.path)):
        top = real[len(root) :].partition(os.sep)[0].partition(".")[0] if real.startswith(root) else ""
        if top:
            yield root, top


@cache
def _search_path(folders: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(os.path.realpath(folder) + os.sep for folder in folders)


class _Distribution(NamedTuple):
    """What a folder of the search path says about something that is installed in it."""

    name: str
    version: str
    tops: frozenset[str]  # top-level modules and folders
    is_listed: bool  # its installer wrote down which files it put there


@cache
def _distributions(folder: str) -> tuple[_Distribution, ...]:
    infos = [info for info in Path(folder).glob("*.*-info") if info.suffix in (".dist-info", ".egg-info")]
    return tuple(
        _Distribution(name, version, frozenset(_tops(info) or {name}), (info / "RECORD").is_file())
        for info in infos
        for name, _, version in [info.stem.partition("-")]
    )


@cache
def _installed(folders: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """Top-level module or folder -> the distributions that put files there, with their versions."""
    found: dict[str, dict[str, str]] = {}
    for one in [one for folder in reversed(folders) for one in _distributions(folder)]:
        for top in one.tops:
            found.setdefault(top, {})[one.name] = one.version
    return found


@cache
def _listed(folders: tuple[str, ...]) -> dict[str, frozenset[str]]:
    """Folder of the search path -> the top-level names that installers have put there."""
    return {
        os.path.realpath(folder) + os.sep: frozenset().union(
            *(one.tops for one in _distributions(folder) if one.is_listed)
        )
        for folder in folders
    }


def _tops(info: Path) -> set[str]:
    """The top-level names of a distribution. Linux distributions leave the list of files out of theirs."""
    for listed in (info / "RECORD", info / "top_level.txt"):
        if listed.is_file():
            lines = listed.read_text().splitlines()
            return {line.partition("/")[0].partition(",")[0].partition(".")[0] for line in lines}
    return set()


def _place(top: str) -> str | None:
    """Where a top-level module or package lies."""
    module = sys.modules.get(top)
    try:
        spec = getattr(module, "__spec__", None) or importlib.util.find_spec(top)
    except (ImportError, ValueError):
        spec = None
    path = getattr(module, "__file__", None) or (spec.origin if spec is not None and spec.has_location else None)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    return path or (os.path.join(folders[0], "") if folders else None)
