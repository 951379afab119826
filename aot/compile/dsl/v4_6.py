"""CuTe DSL 4.6: as 4.7. Its launchers word the errors of CUDA calls themselves, with ``sprintf`` of the C library."""

from __future__ import annotations

from .v4_7 import (
    BACKEND_FILES,
    BACKEND_MODULE,
    COMPILE_KEYWORDS,
    LAUNCHER,
    NEEDS,
    entry_parameters,
    export,
    intercept,
    note_clusters,
    open_tuples,
    quick_tracing,
    when_traced,
)

__all__ = [
    "BACKEND_FILES", "BACKEND_MODULE", "COMPILE_KEYWORDS", "LAUNCHER", "NEEDS", "entry_parameters", "export", "intercept", "note_clusters",
    "open_tuples", "quick_tracing", "when_traced",
]  # fmt: skip
