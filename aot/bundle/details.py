"""``details/<arch>.json``: what a bundle says of each variant. Tools read it, loaders never do.

Standard library only: bundles are checked on machines that cannot build.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aot_runtime.arch import Arch
from aot_runtime.description.records import SCHEMA, FileRecord, read_bounded
from aot_runtime.errors import BundleError, DigestError

from ..records import RecordError, decode, encode

__all__ = [
    "LaunchDetails",
    "RequirementDetails",
    "VariantDetails",
    "WorkDetails",
    "details_text",
    "parse_details",
    "read_details",
    "shape_text",
]

MAX_DETAILS_BYTES = 256 << 20
_WHAT_DIFFERS = "`python -m aot verify` lists what differs"
_LATER = ("tuned_by", "written_for", "work")  # fields that the first details of the schema did not have


@dataclass(frozen=True)
class LaunchDetails:
    """A kernel that a variant launches, as far as it is fixed when compiling."""

    name: str  # of the kernel in the cubin
    registers: int  # of a thread
    static_shared_memory: int  # bytes of a block
    dynamic_shared_memory: int | None  # bytes of a block; None: computed when the kernel is launched
    block: tuple[int, int, int] | None  # threads; None: computed when the kernel is launched
    cluster: tuple[int, int, int] | None  # blocks; None: no cluster
    local_memory: int  # bytes of a thread


@dataclass(frozen=True)
class RequirementDetails:
    """An integer that is read off the arguments of a call, and the interval in which it must lie."""

    label: str  # what it is of: `x.shape[0]`
    operation: str  # how it is read: `extent`, `dtype`, as in `aot_tables.h`
    low: int  # the lowest value that is taken
    high: int  # the highest value that is taken
    parameter: int  # what the operation needs beside the argument, such as the index of an extent


@dataclass(frozen=True)
class WorkDetails:
    """What a variant has to do for a call, in terms of what its kernel is tuned by: see ``aot.Work``."""

    tile: Mapping[str, int]  # of each extent, how much one cluster of blocks computes
    step: Mapping[str, int]  # of the extents that are summed over, how much one step takes
    bytes: str  # that go through device memory: an expression of the extents
    blocks: int  # of a cluster
    cycles: int  # of a multiprocessor for one step, at least


@dataclass(frozen=True)
class VariantDetails:
    """One variant for one architecture."""

    name: str  # unique in its architecture
    kernel: str  # the kernel that it is a variant of
    function: str  # the public function that may choose it
    point: Mapping[str, str]  # its place on the axes of the declaration
    symbol: str  # of its launcher in the library of the kernel
    cubin_sha256: tuple[str, ...]  # of its cubins
    cubin_bytes: int  # size of its cubins
    launches: tuple[LaunchDetails, ...]  # what it launches: at least one kernel
    requirements: tuple[RequirementDetails, ...]  # what a call must satisfy
    uses_tensors: bool  # whether it takes a tensor, which names the device
    verified_on: tuple[str, ...] = ()  # devices that `check` ran it on, with the dates
    tuned_by: Mapping[str, str] = field(default_factory=dict)  # what tables go by -> the same of the arguments
    written_for: str = ""  # the architecture that its code was written for; "": not known
    work: WorkDetails | None = None  # what a model of its time goes by

    def is_portable(self, arch: Arch) -> bool:
        """Whether its code was written for another architecture than the one that it was built for."""
        return self.written_for not in ("", str(arch))


def shape_text(sizes: tuple[int, ...] | None) -> str:
    """The shape of a block or cluster without the ones at its end: a block of 128 threads is shown as 128."""
    if not sizes:
        return "-"
    used = max((at for at, size in enumerate(sizes) if size != 1), default=0) + 1
    return "x".join(map(str, sizes[:used]))


def details_text(arch: Arch, variants: Sequence[VariantDetails]) -> str:
    """JSON with a line for each variant, so that those of one kernel are found without parsing all."""
    rows = ",\n".join(json.dumps(_encoded(variant)) for variant in variants)
    return f"{_head(SCHEMA, arch)}\n{rows}\n]}}\n"


def _encoded(variant: VariantDetails) -> dict[str, Any]:
    """The row of a variant. Later fields are written only if they say something."""
    data: dict[str, Any] = encode(variant)
    return {name: value for name, value in data.items() if value or name not in _LATER}


def _head(schema: int, arch: Arch) -> str:
    return f'{{"schema": {schema}, "arch": "{arch}", "variants": ['


def read_details(path: Path, kernel: str | None = None, expected: FileRecord | None = None) -> list[VariantDetails]:
    """The variants in a ``details/<arch>.json``: all, or one kernel's.

    If the caller trusts a manifest, ``expected`` is what it says of the file; another one is a :class:`DigestError`.
    """
    try:
        content = read_bounded(str(path), MAX_DETAILS_BYTES, BundleError)
        if expected is not None and FileRecord.of(content) != expected:
            raise DigestError(f"`{path}` is not what its manifest says", hint=_WHAT_DIFFERS)
        return parse_details(content, kernel)
    except RecordError as error:
        raise BundleError(f"`{path}` is not well-formed: {error}", hint=_WHAT_DIFFERS) from None
    except FileNotFoundError:
        raise BundleError(f"`{path}` is missing", hint=_WHAT_DIFFERS) from None


def parse_details(content: bytes, kernel: str | None = None) -> list[VariantDetails]:
    """The same of a content; :class:`RecordError` if it is not well-formed."""
    try:
        found = _of_kernel(content, kernel) if kernel is not None else _all(content)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"not valid JSON: {error}") from None
    return [_variant(variant) for variant in found]


def _all(content: bytes) -> list[Any]:
    data = json.loads(content.decode())
    if not isinstance(data, dict) or not isinstance(data.get("variants"), list):
        raise RecordError("there is no list of variants")
    _check_schema(data.get("schema"))
    variants: list[Any] = data["variants"]
    return variants


def _check_schema(schema: object) -> None:
    if type(schema) is not int or schema < SCHEMA:
        raise RecordError(f"it has schema {schema!a}, this version reads {SCHEMA} and later")


def _of_kernel(content: bytes, kernel: str) -> list[Any]:
    head, newline, _ = content.partition(b"\n")
    if newline and head.startswith(b'{"schema": ') and head.endswith(b'"variants": [') and content.endswith(b"\n]}\n"):
        _check_schema(json.loads(head + b"]}").get("schema"))
        rows = _lines_with(content, f'"kernel": {json.dumps(kernel)}'.encode())
        found = json.loads((b"[" + b",".join(row.rstrip(b",") for row in rows) + b"]").decode())
    else:  # laid out by another program
        found = _all(content)
    return [variant for variant in found if not isinstance(variant, dict) or variant.get("kernel") == kernel]


def _lines_with(content: bytes, text: bytes) -> Iterator[bytes]:
    at = content.find(text)
    while at >= 0:
        end = content.find(b"\n", at)
        yield content[content.rfind(b"\n", 0, at) + 1 : end]
        at = content.find(text, end)


def _variant(data: Any) -> VariantDetails:
    variant = decode(VariantDetails, data)
    if not variant.launches:
        raise RecordError(f"{variant.name!a} has no launches")
    return variant
