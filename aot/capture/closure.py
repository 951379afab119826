"""What a captured call may lead to by name: modules and values, for the key of the build cache.

This is an upper bound, known before anything is traced. What is compared when a call is served is what tracing really
read: see ``aot/compile/reading/reads.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from aot_runtime.serving.calls import jit_function
from aot_runtime.serving.values.libraries import MAIN
from aot_runtime.serving.values.sources import file_with, locate_source, source_digest

from ..compile.reading.names import Reached, reach
from ..files import sha256_of

__all__ = ["digests_of", "reached_by", "source_files"]


def reached_by(function: Any, values: Iterable[Any]) -> Reached:
    """What a callable and the values that it is called with lead to."""
    owner, jit = jit_function(function)
    attributes = list(getattr(owner, "__dict__", {}).values())
    others = [item for item in (*attributes, *values) if not isinstance(item, (bool, int, float, str, type(None)))]
    kinds = [type(item) for item in (owner, *others) if not isinstance(item, type)]
    return reach([jit, *kinds, *others])


def digests_of(modules: Iterable[str]) -> dict[str, str | None]:
    return {name: source_digest(name) for name in sorted(modules)}


def source_files(modules: Iterable[str]) -> dict[str, str]:
    """The files of modules, with their digests."""
    return {path: sha256_of(Path(path)) for name in modules if (path := _file(name)) is not None}


def _file(module: str) -> str | None:
    path = locate_source(module) if module != MAIN else None
    return file_with(path) if path is not None else None
