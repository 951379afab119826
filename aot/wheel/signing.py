"""Wheels whose bundle is signed, and whose package pins the public keys that it trusts.

A wheel's manifest is its own: it lists the files of one host. So the bundle's signature does not fit it, and the
manifest is signed when the wheel is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aot_runtime.core.signature import public_key

from ..bundle.signature import Signer
from ..errors import UsageError

__all__ = ["Signing", "choose_signing"]

_UNSIGNED = "none"  # in place of a private key: the wheel is not for release


@dataclass(frozen=True)
class Signing:
    """Who signs the bundle of a wheel, and which keys the package trusts."""

    signer: Signer
    trusted: tuple[bytes, ...]


def choose_signing(private: str | None, pinned: Sequence[Path]) -> Signing | None:
    """Sign with that key and pin those public keys, by default the key's own; without keys, do neither."""
    if private == _UNSIGNED:
        return None
    if private is None:
        if pinned:
            raise UsageError(
                f"the package pins `{pinned[0]}`, but no private key signs its bundle",
                hint="name the key that signs: `--sign KEY`, or `--config-settings=sign=KEY` of pip; "
                f"`{_UNSIGNED}` makes a wheel that is neither signed nor pinned",
            )
        return None
    signer = Signer.read(Path(private))
    trusted = tuple(public_key(path) for path in pinned) or (signer.public,)
    if signer.public not in trusted:
        raise UsageError(
            f"`{private}` would sign, but the package does not pin its public key, {signer.public.hex()[:16]}",
            hint="sign with a key that is pinned, or add the public key to those that are",
        )
    return Signing(signer, trusted)
