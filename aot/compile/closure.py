"""What a kernel's code came from: its module, all that it imports, and what was read on the way.

Runs in the worker, after the author's files were executed. Files outside the standard library and
installed distributions are source and count by their bytes; installed distributions count by version;
packages installed as editable lie outside and are source. Imports are read off the syntax tree, so that
those inside functions count before they run; what was imported in other ways counts for every kernel.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from ..declare.discover import is_discovered, is_sibling
from ..declare.kernel import Kernel
from ..files import sha256_of
from .messages import Closure, KernelClosure

__all__ = ["Watch", "closure_of"]

_OURS = ("aot", "aot_runtime")  # counted as code generation, not as the author's source
_LIBRARIES = tuple({os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("purelib", "platlib")})
_STANDARD = tuple({os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")})
_PROGRAM = frozenset({"__main__", "__mp_main__"})
_BY_NAME = frozenset({"import_module", "__import__", "spec_from_file_location", "run_path", "exec"})
_SYSTEM = ("/proc/", "/sys/", "/dev/", "/etc/")
_COMPILER_SETTINGS = ("CUTE_DSL_", "CUTLASS_")
_SET_BY_US = frozenset({"CUTE_DSL_ARCH"})


class Watch:
    """Notes the files opened and the environment variables asked for by the author's code."""

    def __init__(self) -> None:
        self.opened: dict[str, None] = {}
        self.asked: dict[str, None] = {}
        self.active = False
        sys.addaudithook(self._audit)
        environment = type(os.environ)
        watch = self

        class Watched(environment):  # type: ignore[misc, valid-type]
            def __getitem__(self, key: str) -> Any:
                if watch.active and isinstance(key, str) and _asked_by_source():
                    watch.asked[key] = None
                return super().__getitem__(key)

        os.environ.__class__ = Watched

    def __enter__(self) -> Watch:
        self.active = True
        return self

    def __exit__(self, *error: object) -> None:
        self.active = False

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and self.active:
            path, mode = arguments[0], arguments[1]
            if isinstance(path, (str, bytes)) and (mode is None or not set(mode) & set("wax+")):
                self.opened[os.path.abspath(os.fsdecode(path))] = None


def _asked_by_source() -> bool:
    frame = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") in ("os", "collections.abc", "_collections_abc"):
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None and _is_source(frame.f_code.co_filename) and not _is_ours(frame.f_globals)


def _is_ours(variables: dict[str, Any]) -> bool:
    return str(variables.get("__name__", "")).partition(".")[0] in _OURS


def closure_of(kernels: Sequence[Kernel], watch: Watch) -> Closure:
    """The closure of each kernel of a source, and what to look at to know that none of them changed."""
    modules = {name: module for name, module in list(sys.modules.items()) if name not in _PROGRAM}
    sources = {name: path for name, module in modules.items() if (path := _source_of(module)) is not None}
    reached = {kernel.name: _reach(_roots(kernel, sources), sources) for kernel in kernels}
    known = {name for found in reached.values() for name in found.modules}
    others = [name for name in sources if name not in known and not is_discovered(name)]
    data = _data_files(watch, {*sources.values(), *(path for found in reached.values() for path in found.paths)})
    environment = {name: os.environ.get(name) for name in sorted({*watch.asked, *_compiler_settings()})}
    shared = {f"file {path.name}": _digest(path) for path in data}
    shared.update({name: _digest(sources[name]) for name in others})
    files = {str(path): _digest(path) for path in {*sources.values(), *data}}
    files.update({str(path): _digest(path) for found in reached.values() for path in found.paths})
    return Closure(
        kernels={name: found.closure(shared, environment) for name, found in reached.items()},
        files=files,
        folders={folder: python_files(folder) for folder in sorted({os.path.dirname(path) for path in files})},
        environment=environment,
        distributions={
            name: version for found in reached.values() for name, version in sorted(found.distributions.items())
        },
    )


def python_files(folder: str) -> tuple[str, ...]:
    """The names that imports could find in a folder: a new one may hide what was found elsewhere."""
    try:
        return tuple(sorted(name for name in os.listdir(folder) if name.endswith(".py")))
    except OSError:
        return ()


@cache
def _digest(path: Path) -> str:
    return sha256_of(path)


def _compiler_settings() -> list[str]:
    return [name for name in os.environ if name.startswith(_COMPILER_SETTINGS) and name not in _SET_BY_US]


def _data_files(watch: Watch, modules: set[Path]) -> list[Path]:
    """Files that were read and are not modules: tuning tables, say."""
    paths = (Path(path) for path in watch.opened if not path.endswith(".pyc") and _is_source(path))
    return sorted(path for path in paths if path.is_file() and path.resolve() not in modules and not _is_known(path))


def _is_known(path: Path) -> bool:
    return is_sibling(path) or _is_own_file(path)


def _is_own_file(path: Path) -> bool:
    own = {Path(str(sys.modules[name].__file__)).resolve().parent for name in _OURS if name in sys.modules}
    return any(folder in path.resolve().parents for folder in own)


def _roots(kernel: Kernel, sources: dict[str, Path]) -> list[str]:
    """The modules that hold a kernel: where its function is, and where it is declared, not where it is re-exported."""
    holders = [
        name
        for name, path in sources.items()
        if path.name != "__init__.py" and any(value is kernel for value in list(vars(sys.modules[name]).values()))
    ]
    return [kernel.make.__module__, *holders]


class _Reached:
    def __init__(self) -> None:
        self.modules: dict[str, Path] = {}
        self.distributions: dict[str, str] = {}

    @property
    def paths(self) -> Iterable[Path]:
        return self.modules.values()

    def closure(self, shared: dict[str, str], environment: dict[str, str | None]) -> KernelClosure:
        modules = {name: _digest(path) for name, path in self.modules.items()}
        return KernelClosure({**shared, **modules}, self.distributions, environment)


def _reach(roots: Iterable[str], sources: Iterable[str]) -> _Reached:
    """Follow imports from the roots; a parent package counts by its own file, not by what that imports.

    A module that imports by a computed name may have imported any of the sources.
    """
    reached, waiting = _Reached(), list(roots)
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen or name.partition(".")[0] in _OURS:
            continue
        seen.add(name)
        if _is_installed(name, reached):
            continue
        path = _locate(name)
        if path is None:
            continue
        reached.modules[name] = path
        for parent in _parents(name):
            parent_path = _locate(parent)
            if parent_path is not None:
                reached.modules.setdefault(parent, parent_path)
        tree = _parse(path)
        waiting += _imports(tree, name, path)
        if _imports_by_name(tree):
            waiting += sources
    return reached


def _parents(name: str) -> Iterator[str]:
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _locate(name: str) -> Path | None:
    """The source file of a module that is the author's; None for all others."""
    module = sys.modules.get(name)
    if module is not None:
        return _source_of(module)
    try:
        spec = importlib.util.find_spec(name)
    except Exception:  # it may import the packages above it, which may raise anything
        return None
    origin = spec.origin if spec is not None and spec.has_location else None
    return Path(origin).resolve() if origin and _is_source(origin) else None


def _source_of(module: ModuleType) -> Path | None:
    path = getattr(module, "__file__", None)
    name = str(getattr(module, "__name__", ""))
    if not isinstance(path, str) or name.partition(".")[0] in _OURS or not _is_source(path):
        return None
    return Path(path).resolve() if os.path.isfile(path) else None


def _is_source(path: str) -> bool:
    """Neither the standard library's nor an installed distribution's, nor the system's."""
    real = os.path.realpath(path)
    if path.startswith("<") or real.startswith(_SYSTEM):
        return False
    if real.startswith(_LIBRARIES):
        return _top(real) not in _distributions()
    return not real.startswith(_STANDARD) and "/site-packages/" not in real and "/dist-packages/" not in real


def _top(path: str) -> str:
    path = os.path.realpath(path)
    folder = next(folder for folder in _LIBRARIES if path.startswith(folder))
    return path[len(folder) :].partition(os.sep)[0].partition(".")[0]


@cache
def _distributions() -> dict[str, dict[str, str]]:
    """Top-level module or folder -> distributions that put files there, with their versions."""
    found: dict[str, dict[str, str]] = {}
    for record in (path for folder in _LIBRARIES for path in Path(folder).glob("*.dist-info/RECORD")):
        name, _, version = record.parent.name.removesuffix(".dist-info").partition("-")
        for top in {line.partition("/")[0].partition(",")[0] for line in record.read_text().splitlines()}:
            found.setdefault(top.partition(".")[0], {})[name] = version
    return found


def _is_installed(name: str, reached: _Reached) -> bool:
    """Whether a module is not the author's; its distribution is noted. Looks at the top level, imports nothing."""
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names:
        return True
    place = _place(top)
    if place is None or _is_source(place):
        return False
    owner = _top(place) if os.path.realpath(place).startswith(_LIBRARIES) else top
    reached.distributions.update(_distributions().get(owner, {}))
    return True


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


def _parse(path: Path) -> ast.AST:
    try:
        return ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def _imports_by_name(tree: ast.AST) -> bool:
    called = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(getattr(function, "attr", getattr(function, "id", "")) in _BY_NAME for function in called)


def _imports(tree: ast.AST, name: str, path: Path) -> list[str]:
    """Every module that a file names in an import, wherever in the file it stands."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found += [alias.name, *_parents(alias.name)]
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            found += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return [item for item in found if item]


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if node.level == 0:
        return node.module or ""
    base = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
    return f"{base}.{node.module}" if node.module else base
