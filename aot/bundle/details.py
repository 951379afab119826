"""``details/<arch>.json``: what a bundle says of each variant. Read by tools, never by a loader.

Standard library only: bundles are checked on machines that cannot build.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from aot_runtime.arch import Arch
from aot_runtime.errors import BundleError

__all__ = ["details_text", "read_details"]

MAX_DETAILS_BYTES = 256 << 20


def details_text(arch: Arch, variants: Sequence[Mapping[str, Any]]) -> str:
    """JSON with a line for each variant, so that those of one kernel are found without parsing all."""
    rows = ",\n".join(json.dumps(variant) for variant in variants)
    return f'{_HEAD}{json.dumps(str(arch))}, "variants": [\n{rows}\n]}}\n'


_HEAD = '{"arch": '


def read_details(path: Path, kernel: str | None = None) -> list[dict[str, Any]]:
    """The variants in a ``details/<arch>.json``: all, or one kernel's."""
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_DETAILS_BYTES + 1)
    except OSError as error:
        raise BundleError(f"cannot read `{path}`: {error.strerror}") from None
    if len(content) > MAX_DETAILS_BYTES:
        raise BundleError(f"`{path}` is larger than {MAX_DETAILS_BYTES} bytes")
    try:
        found = json.loads(content)["variants"] if kernel is None else _of_kernel(content, kernel)
        variants: list[dict[str, Any]] = [_checked(variant) for variant in found]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BundleError(f"`{path}` is not well-formed: {error!r}") from None
    return variants


def _of_kernel(content: bytes, kernel: str) -> list[Any]:
    if content.startswith(_HEAD.encode()) and content.endswith(b"\n]}\n"):
        rows = _lines_with(content, f'"kernel": {json.dumps(kernel)}'.encode())
        found = json.loads(b"[" + b",".join(row.rstrip(b",") for row in rows) + b"]")
    else:  # laid out by somebody else
        found = json.loads(content)["variants"]
    return [variant for variant in found if variant["kernel"] == kernel]


def _lines_with(content: bytes, text: bytes) -> Iterator[bytes]:
    at = content.find(text)
    while at >= 0:
        end = content.find(b"\n", at)
        yield content[content.rfind(b"\n", 0, at) + 1 : end]
        at = content.find(text, end)


def _checked(variant: Mapping[str, Any]) -> dict[str, Any]:
    for key, kind in _VARIANT_FIELDS.items():
        if not isinstance(variant[key], kind):
            raise ValueError(f"{key} is {variant[key]!r}")
    if not all(isinstance(text, str) for text in (*variant["cubin_sha256"], *variant["verified_on"])):
        raise ValueError("cubin_sha256 and verified_on must be strings")
    if not variant["launches"]:
        raise ValueError("no launches")
    for launch in variant["launches"]:
        for key, kinds in _LAUNCH_FIELDS.items():
            if not isinstance(launch[key], kinds):
                raise ValueError(f"{key} of a launch is {launch[key]!r}")
    return dict(variant)


_VARIANT_FIELDS: dict[str, type] = {
    "name": str,
    "kernel": str,
    "function": str,
    "symbol": str,
    "cubin_sha256": list,
    "cubin_bytes": int,
    "launches": list,
    "verified_on": list,
}
_LAUNCH_FIELDS: dict[str, type | tuple[type, ...]] = {
    "registers": int,
    "static_shared_memory": int,
    "dynamic_shared_memory": (int, type(None)),
    "block": (list, type(None)),
    "cluster": (list, type(None)),
    "local_memory": int,
}
