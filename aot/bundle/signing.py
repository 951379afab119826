"""Signing a bundle that is sound. What loaders would refuse, or what nobody built, gets no signature."""

from __future__ import annotations

import os
from pathlib import Path

from aot_runtime.core.signature import check_signature
from aot_runtime.description.manifest import read_manifest
from aot_runtime.description.records import FILE_NAME

from ..errors import BuildError
from ..files import owned_directory
from .signature import SIGNATURE, Signer, write_new
from .verifying.verify import refuse_unsound

__all__ = ["sign"]


def sign(bundle: Path, signer: Signer) -> Path:
    """Sign a bundle that :func:`verify` finds sound; returns where the signature is."""
    signed = read_manifest(str(bundle))
    refuse_unsound(bundle, "was not signed", any_signature=True)
    if read_manifest(str(bundle)) != signed:
        raise BuildError(f"`{bundle}/{FILE_NAME}` was replaced meanwhile, and was not signed", hint="sign it again")
    _put(bundle, signer.signature(signed))
    check_signature(bundle, signed, [signer.public])
    return bundle / SIGNATURE


def _put(bundle: Path, signature: bytes) -> None:
    """In one step: a reader finds the old signature or the new one. What a killed process leaves is swept by builds."""
    place = bundle.resolve()
    try:
        with owned_directory(place.parent, prefix=f".{place.name}.", suffix=".staging") as folder:
            write_new(folder / SIGNATURE, signature, 0o644)
            os.replace(folder / SIGNATURE, place / SIGNATURE)
    except OSError as error:
        raise BuildError(f"cannot write the signature: {error.strerror} (`{error.filename or place}`)") from None
