"""Altering what a bundle says of itself as a forger does who keeps the books: every digest in it fits again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aot_runtime.description.records import FILE_NAME, FileRecord

from aot.bundle.description import file_record, write_description
from aot.bundle.manifest import Manifest
from aot.bundle.writing import pretty_text, table_text

__all__ = ["accept", "forge"]


def forge(bundle: Path, how: Callable[[dict[str, Any]], object]) -> None:
    """Change a manifest as parsed JSON, with the tables of kernels and files in their places."""
    data = json.loads((bundle / FILE_NAME).read_text())
    for name in ("kernels", "files"):
        data[name] = json.loads((bundle / f"{name}.json").read_text())[name]
    how(data)
    for name in ("kernels", "files"):
        text = table_text(name, data[name])
        (bundle / f"{name}.json").write_bytes(text)
        data[name] = FileRecord.of(text).data()
    (bundle / FILE_NAME).write_bytes(pretty_text(data))


def accept(bundle: Path, *names: str) -> None:
    """Take the digests of altered files over; without names, whatever lies in the bundle is all there is."""
    manifest = Manifest.read(bundle)
    if not names:
        write_description(bundle, manifest)
        return
    files = {**manifest.files, **{name: file_record(bundle / name) for name in names}}
    hosts = {name: host.replace(file=files[host.entry]) for name, host in manifest.hosts.items()}
    for name, text in manifest.replace(files=files, hosts=hosts).texts().items():
        (bundle / name).write_bytes(text)
