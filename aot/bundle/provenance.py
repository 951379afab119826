"""``provenance.json``: tools read it, loaders do not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aot_runtime.description.records import HEX, Reader, check_inside, parse_json, shown
from aot_runtime.errors import ManifestError

__all__ = ["read_provenance"]


def read_provenance(content: bytes, place: str) -> tuple[Mapping[str, Any], ...]:
    """The records of the builds that are in a bundle."""
    return tuple(_build_record(build) for build in Reader(parse_json(content, place), place).each("builds"))


def _build_record(record: Reader) -> dict[str, Any]:
    """One build of ``provenance.json``: its sources, options and versions."""
    source = record.inner("source")
    source.get("name", str, None)
    source.get("commit", str, None)
    source.get("clean", bool, None)
    for digest in (*source.text_table("files").values(), *source.text_table("linked").values()):
        if len(digest) != 64 or not HEX.issuperset(digest):
            raise ManifestError(f"{source.where}: {shown(digest)} is not a SHA-256")
    record.get("options", dict, {})
    record.text_table("versions")
    for built in record.table("built").values() if "built" in record.data else ():
        _check_built(built)
    return record.data


def _check_built(built: Reader) -> None:
    """What a build says of one kernel: architectures, and the files that it came from."""
    built.get("archs", list)
    built.texts("archs")
    for table in ("files", "modules"):
        built.get(table, dict)
        built.text_table(table)
    for name in built.data["files"]:
        check_inside(name, built)
