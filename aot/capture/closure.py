"""The source that a captured call came from: the modules that imports lead to from its callable.

Imports are followed within the packages of the call, and into any other module that itself imports CuTe DSL: code that
is traced can only lie in such modules. CuTe DSL itself does not count, since what it made is in the bundle.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from aot_runtime.serving.sources import locate_source, source_digest

from ..compile.sources import parents, read_source
from ..files import sha256_of

__all__ = ["source_files", "sources_of"]

_CUTLASS = "cutlass"
_NEVER = frozenset({_CUTLASS, "cuda", "tvm_ffi", "torch", "numpy", "aot", "aot_runtime", "builtins"})


def sources_of(modules: Iterable[str]) -> dict[str, str]:
    """The digest of every module that a call came from, by name."""
    roots = {name for name in modules if _may_count(name)}
    packages = {name.partition(".")[0] for name in roots}
    reached: dict[str, str] = {}
    waiting, seen = sorted(roots), set[str]()
    while waiting:
        name = waiting.pop()
        digest = source_digest(name) if name not in seen and _may_count(name) else None
        seen.add(name)
        if digest is None or not (name.partition(".")[0] in packages or _imports_cutlass(name)):
            continue
        reached[name] = digest
        reached.update({parent: found for parent in parents(name) if (found := source_digest(parent)) is not None})
        waiting += _imports(name)
    return dict(sorted(reached.items()))


def source_files(sources: Iterable[str]) -> dict[str, str]:
    """The files of modules, with their digests."""
    return {path: sha256_of(Path(path)) for name in sources if (path := locate_source(name)) is not None}


def _may_count(name: str) -> bool:
    top = name.partition(".")[0]
    return top not in _NEVER and top not in sys.stdlib_module_names


@cache
def _imports(name: str) -> tuple[str, ...]:
    path = locate_source(name)
    return read_source(name, Path(path)).imports if path is not None else ()


def _imports_cutlass(name: str) -> bool:
    return any(imported.partition(".")[0] == _CUTLASS for imported in _imports(name))
