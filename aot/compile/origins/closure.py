"""What a kernel's code came from: its module, all that it imports, and what was read on the way.

Runs in the worker, after the author's files were executed. Three rules decide what enters a kernel's key:

* The author's files count by their bytes: those that the kernel's module imports, directly or through others.
  A file that patches what it imported may change every kernel, so that it counts for all of them, together with
  what it imports itself.
* Installed distributions count by version, for every kernel of the source: a library may patch CuTe DSL for the
  whole process when any file imports it. What only the checks of a kernel import when they run does not count.
* Environment variables count for every kernel if one of the files could ask for them: see :func:`variables`.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ...declare.discover import is_discovered, is_sibling
from ...declare.kernel import Kernel
from ...files import sha256_of
from ..messages import WORKER_VARIABLES, Closure, KernelClosure
from .checking import Checks, check_modules
from .modules import distributions_of, is_source, is_source_module, locate, source_of
from .sources import Source, parents, read_source

__all__ = ["Watch", "closure_of", "python_files", "variables"]

_PROGRAM = frozenset({"__main__", "__mp_main__"})
_COMPILER_SETTINGS = ("CUTE_DSL_*", "CUTLASS_*")
_ALL = "*"

Files = Mapping[str, Path]  # module -> its file


class Watch:
    """What happened while the author's code ran: files that it opened, modules that it loaded."""

    def __init__(self) -> None:
        self.environment = dict(os.environ)  # before the author's code could change it
        self.opened: dict[str, bool] = {}  # path -> whether it was named by its place in the current folder
        self.loaded: frozenset[str] = frozenset()
        self._before: frozenset[str] = frozenset()
        self._active = False
        sys.addaudithook(self._audit)

    def __enter__(self) -> Watch:
        self._before, self._active = frozenset(sys.modules), True
        return self

    def __exit__(self, *error: object) -> None:
        self._active = False
        # Only what came with the author's files: what is loaded later depends on the kernels that a build selects.
        self.loaded = self.loaded or frozenset(sys.modules) - self._before

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and self._active:
            path, mode = arguments[0], arguments[1]
            if isinstance(path, (str, bytes)) and (mode is None or not set(mode) & set("wax+")):
                name = os.fsdecode(path)
                is_relative = not os.path.isabs(name)
                self.opened[os.path.abspath(name)] = self.opened.get(os.path.abspath(name), False) or is_relative


def closure_of(kernels: Sequence[Kernel], watch: Watch) -> Closure:
    """The closure of each kernel of a source, and what to look at to know that none of them changed."""
    loaded = _loaded_sources()
    modules = _Modules(loaded)
    reached = {kernel.name: modules.reach(_roots(kernel, loaded)) for kernel in kernels}
    known = {name for files in reached.values() for name in files}
    shared = {name: path for name, path in loaded.items() if name not in known and not is_discovered(name)}
    shared.update(modules.reach(name for name, path in loaded.items() if read_source(name, path).patches))
    everything = {**loaded, **shared, **{name: path for files in reached.values() for name, path in files.items()}}
    sources = [read_source(name, path) for name, path in everything.items()]
    data = _data_files(watch, set(everything.values()))
    environment = variables(_names_of_variables(sources), watch.environment)
    for_every_kernel = {name for name in everything if name not in known or name in shared}
    imported = _imported(
        kernels, modules, [root for kernel in kernels for root in _roots(kernel, loaded)], for_every_kernel
    )
    distributions = distributions_of({*watch.loaded, *imported})
    for_all = {**{f"file {path.name}": path for path in data}, **shared}
    files = {str(path): _digest(path) for path in (*everything.values(), *data)}
    return Closure(
        kernels={
            name: KernelClosure(_digests({**for_all, **own}), distributions, environment)
            for name, own in reached.items()
        },
        files=files,
        folders={folder: python_files(folder) for folder in sorted({os.path.dirname(path) for path in files})},
        environment=environment,
        distributions=distributions,
        imports=_top_levels({*imported, *loaded}),
        current=os.getcwd() if any(watch.opened.get(str(path)) for path in data) else "",
        places={name: {key: str(path) for key, path in {**for_all, **own}.items()} for name, own in reached.items()},
    )


def _imported(kernels: Sequence[Kernel], modules: _Modules, roots: Sequence[str], for_all: Iterable[str]) -> set[str]:
    """The modules that the author's files may import before all kernels are compiled."""
    checks = check_modules(kernels)
    of_kernels = modules.reach([*roots, *for_all], without=checks)
    every = {**of_kernels, **modules.reach([*roots, *checks])}
    only_checks = Checks.of(kernels, (path for name, path in every.items() if name not in of_kernels))
    return {
        found for name, path in every.items() for found in only_checks.imports_of_kernels(path, read_source(name, path))
    }


def _top_levels(modules: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({name.partition(".")[0] for name in modules if not is_discovered(name)}))


def python_files(folder: str) -> tuple[str, ...]:
    """The files and packages that imports could find in a folder: a new one may hide what was found elsewhere."""
    try:
        with os.scandir(folder) as entries:
            return tuple(sorted(entry.name for entry in entries if _is_importable(entry)))
    except OSError:
        return ()


def _is_importable(entry: os.DirEntry[str]) -> bool:
    return entry.name.endswith(".py") or (entry.is_dir() and os.path.isfile(os.path.join(entry, "__init__.py")))


def variables(names: Iterable[str], environment: Mapping[str, str]) -> dict[str, str | None]:
    """What variables hold; None for one that is not set.

    A name that ends in ``*`` stands for all variables that begin so, and has a digest of them: they may hold
    secrets, and one that is not set yet counts too. What a worker is started with depends on the architecture
    alone, which has a place of its own in every key.
    """
    wanted = sorted(set(names) - WORKER_VARIABLES)
    return {
        name: _digest_of_all(name, environment) if name.endswith(_ALL) else environment.get(name) for name in wanted
    }


def _digest_of_all(pattern: str, environment: Mapping[str, str]) -> str:
    prefix = pattern.removesuffix(_ALL)
    found = {name: value for name, value in environment.items() if name.startswith(prefix)}
    held = sorted((name, value) for name, value in found.items() if name not in WORKER_VARIABLES)
    return hashlib.sha256(json.dumps(held).encode()).hexdigest()


def _names_of_variables(sources: Iterable[Source]) -> set[str]:
    """The variables that the author's files could ask for.

    If a file uses the environment, every string in it may be the name of a variable, and so may every string in
    capitals in any other file, which may be handed to that one. Settings of the compiler always count.
    """
    sources = list(sources)
    names = set(_COMPILER_SETTINGS)
    if any(source.reads_all_variables for source in sources):
        names.add(_ALL)
    if any(source.reads_environment for source in sources):
        for source in sources:
            texts = [*source.strings, *(prefix + _ALL for prefix in source.prefixes)]
            names.update(text for text in texts if source.reads_environment or text.isupper())
    return names


@cache
def _digest(path: Path) -> str:
    return sha256_of(path)


def _digests(files: Files) -> dict[str, str]:
    return {name: _digest(path) for name, path in files.items()}


def _loaded_sources() -> dict[str, Path]:
    """The author's modules that are loaded."""
    modules = {name: module for name, module in list(sys.modules.items()) if name not in _PROGRAM}
    return {name: path for name, module in modules.items() if (path := source_of(module)) is not None}


def _data_files(watch: Watch, modules: set[Path]) -> list[Path]:
    """Files that were read and are not modules: tuning tables, say."""
    paths = (Path(path) for path in watch.opened if not path.endswith(".pyc") and is_source(path))
    return sorted(path for path in paths if path.is_file() and path.resolve() not in modules and not is_sibling(path))


def _roots(kernel: Kernel, loaded: Files) -> list[str]:
    """The modules that hold a kernel: where its function is, and where it is declared, not where it is re-exported."""
    holders = [
        name
        for name, path in loaded.items()
        if path.name != "__init__.py" and any(value is kernel for value in list(vars(sys.modules[name]).values()))
    ]
    return [kernel.make.__module__, *holders]


class _Modules:
    """The author's modules. Each is looked for and read once, whatever the number of kernels that import it."""

    def __init__(self, loaded: Iterable[str]) -> None:
        self.loaded = tuple(loaded)
        self._locate = cache(lambda name: locate(name) if is_source_module(name) else None)
        self._step = cache(self._look)

    def reach(self, roots: Iterable[str], without: Iterable[str] = ()) -> dict[str, Path]:
        """The modules that imports lead to from the roots, and not through those that are left out."""
        reached: dict[str, Path] = {}
        waiting, seen = list(roots), set(without)
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                files, imports = self._step(name)
                reached.update(files)
                waiting += imports
        return reached

    def _look(self, name: str) -> tuple[Files, tuple[str, ...]]:
        """A module's file and its packages' files, and what it imports.

        A parent package counts by its own file, not by what that imports. A module that imports by a computed name
        may have imported any of those that are loaded.
        """
        path = self._locate(name)
        if path is None:
            return {}, ()
        above = {parent: place for parent in parents(name) if (place := self._locate(parent)) is not None}
        source = read_source(name, path)
        return {name: path, **above}, (*source.imports, *(self.loaded if source.imports_by_name else ()))
