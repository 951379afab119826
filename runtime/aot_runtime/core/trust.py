"""Which manifest a caller accepts: one that a key has signed, or one with a known digest.

Everything that is opened afterwards is compared with digests that follow from the manifest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..description.records import FILE_NAME, HEX
from ..errors import DigestError, UsageError

if TYPE_CHECKING:
    from _typeshed import StrPath

    from ..description.manifest import Check
    from .signature import PublicKey

__all__ = ["manifest_check"]


def manifest_check(
    bundle: StrPath, key: PublicKey | Sequence[PublicKey] | None = None, manifest_sha256: str | None = None
) -> Check | None:
    """What :meth:`Manifest.read` asks of the bytes of a manifest; nothing if there is neither a key nor a digest."""
    checks: list[Check] = []
    if key is not None:
        checks.append(_signature_check(bundle, key))
    if manifest_sha256 is not None:
        checks.append(_digest_check(bundle, manifest_sha256))

    def check(manifest: bytes) -> None:
        for each in checks:
            each(manifest)

    return check if checks else None


def _digest_check(bundle: StrPath, expected: str) -> Check:
    if not isinstance(expected, str) or len(expected) != 64 or not HEX.issuperset(expected):
        raise UsageError(f"manifest_sha256={expected!r}", hint="pass 64 hex digits in lower case")

    def check(manifest: bytes) -> None:
        seen = hashlib.sha256(manifest).hexdigest()
        if seen != expected:
            raise DigestError(
                f"`{bundle}/{FILE_NAME}` has sha256 {seen}, expected {expected}",
                hint="the bundle was replaced; install the one that was meant, or restart the process to use the new one",
            )

    return check


def _signature_check(bundle: StrPath, key: PublicKey | Sequence[PublicKey]) -> Check:
    from .signature import check_signature, public_keys  # imported only when a key is given

    keys = public_keys(key)

    def check(manifest: bytes) -> None:
        check_signature(Path(bundle), manifest, keys)

    return check
