"""What was compiled into an entry library against the files of its bundle.

Loaders go by the digests and tables in the entry library, not by ``files.json``. A bundle whose files.json was fitted to
other files would look sound, and every call would refuse to open them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from aot_runtime.description.records import FileRecord, HostRecord

from ...binary.elf import object_contents
from ...errors import UsageError
from ..layout import library_path
from ..manifest import Manifest
from ..tables.cells import packed
from ..tables.tuning import TUNING, TunedSet, read_tuning

__all__ = ["compiled_problems"]

_BUILDS = "builds_"  # of a kernel: an array of `aot_build_t`, one for each architecture
_BUNDLE = "aot_this_bundle"
_ROWS, _CELLS, _BOUNDS = "rows_", "cells_", "bounds_"  # of measured tables: see `aot/link/tuning.py`


def compiled_problems(bundle: Path, manifest: Manifest, host: str, record: HostRecord) -> Iterator[str]:
    """Digests and tables of an entry library that are not those of the files. :class:`ElfError` if it cannot be read."""
    prefixes = (_BUILDS, _BUNDLE, _ROWS, _CELLS, _BOUNDS)
    found = object_contents(bundle / record.entry, lambda name: name.startswith(prefixes))
    yield from _digest_problems(manifest, host, record, found)
    yield from _table_problems(bundle, manifest, record.entry, found)


def _digest_problems(manifest: Manifest, host: str, record: HostRecord, found: Mapping[str, bytes]) -> Iterator[str]:
    for kernel in manifest.kernels.values():
        names = [library_path(host, arch, kernel.name) for arch in kernel.archs]
        rows = _rows(found.get(f"{_BUILDS}{kernel.name}", b""), len(names))
        yield from (
            _opens_another(record.entry, n) for n, row in zip(names, rows, strict=True) if not _names(row, manifest, n)
        )
    if not _names(found.get(_BUNDLE, b""), manifest, record.support):
        yield _opens_another(record.entry, record.support)


def _opens_another(entry: str, name: str) -> str:
    return f"{name} is not the file that {entry} opens: the digest that was compiled in is another"


def _rows(array: bytes, count: int) -> list[bytes]:
    size = len(array) // max(count, 1)
    return [array[i * size : (i + 1) * size] for i in range(count)]


def _names(row: bytes, manifest: Manifest, name: str) -> bool:
    """Whether an ``aot_file_t`` is for that file: its size and digest lie side by side."""
    file: FileRecord | None = manifest.files.get(name)
    return file is not None and struct.pack("<Q", file.size) + bytes.fromhex(file.sha256) in row


def _table_problems(bundle: Path, manifest: Manifest, entry: str, found: Mapping[str, bytes]) -> Iterator[str]:
    """Equal arrays may be one in the library, so that contents are compared and not names."""
    compiled = {
        prefix: {text for name, text in found.items() if name.startswith(prefix)} for prefix in (_ROWS, _CELLS, _BOUNDS)
    }
    try:
        sets = list(_tuned_sets(bundle, manifest))
    except UsageError as error:
        yield error.message
        return
    # Until schema 4 of tables, an entry library has each cell, and no rows of them.
    grids = [packed(one.bins, one.cells) if compiled[_ROWS] else (b"", bytes(one.cells)) for one in sets]
    expected = {
        _ROWS: {rows for rows, _ in grids} - {b""},
        _CELLS: {cells for _, cells in grids},
        _BOUNDS: {_bounds(one.bins) for one in sets},
    }
    if compiled != expected:
        yield f"the tables in {TUNING}/ are not those that were compiled into {entry}"


def _tuned_sets(bundle: Path, manifest: Manifest) -> Iterator[TunedSet]:
    for name in manifest.files:
        if name.startswith(f"{TUNING}/"):
            yield from (one for kernel in read_tuning(bundle / name).kernels for one in kernel.sets)


def _bounds(bins: Sequence[Sequence[int]]) -> bytes:
    bounds = [bound for each in bins for bound in each] or [0]  # C has no empty arrays
    return struct.pack(f"<{len(bounds)}q", *bounds)
