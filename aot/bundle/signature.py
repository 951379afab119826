"""Signing a bundle: ``manifest.sig`` holds 64 bytes of Ed25519 over the bytes of ``manifest.json``.

The digests in the manifest cover every other file. ``cryptography`` signs; :mod:`aot_runtime.core.signature` checks,
and needs the standard library alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aot_runtime.core.signature import FILE_NAME as SIGNATURE
from aot_runtime.core.signature import SIZE, check_signature
from aot_runtime.description.records import FILE_NAME

from ..errors import UsageError, system_hint
from ..files import naming
from ..versions import install_extras

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = [
    "NEW_KEY",
    "SIGNATURE",
    "Signer",
    "is_signed",
    "keep_signature",
    "new_key",
    "public_path",
    "signature_check",
    "signature_problems",
    "write_new",
]

_LONGEST_KEY_FILE = 1 << 16
NEW_KEY = "`python -m aot sign --key KEY --new-key` makes one"


@dataclass(frozen=True)
class Signer:
    """A private key. Its bytes stay inside: ``public`` are those of the public key."""

    public: bytes
    signature: Callable[[bytes], bytes]

    @classmethod
    def read(cls, path: Path) -> Signer:
        """The private key in a PEM file, as ``openssl genpkey -algorithm ed25519`` writes one."""
        try:
            with open(path, "rb") as file:
                content = file.read(_LONGEST_KEY_FILE)
        except OSError as error:
            raise UsageError(f"cannot read the private key `{path}`: {error.strerror}", hint=NEW_KEY) from None
        private = _private_key(content, path)
        return cls(private.public_key().public_bytes_raw(), private.sign)


def _private_key(content: bytes, path: Path) -> Ed25519PrivateKey:
    _check_installed()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(content, password=None)
    except TypeError:  # what `cryptography` raises for a key that has a password
        raise UsageError(
            f"the private key `{path}` is encrypted",
            hint=f"sign with `openssl pkeyutl -sign -rawin -inkey {path} -in {FILE_NAME} -out {SIGNATURE}`, which asks for its password",
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if b"-----BEGIN PUBLIC KEY-----" in content:
        raise UsageError(
            f"`{path}` is a public key", hint="pass the private one, which `--new-key` wrote without `.pub`"
        )
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(f"`{path}` is not an Ed25519 private key in PEM", hint=NEW_KEY)
    return key


def _check_installed() -> None:
    try:
        import cryptography  # noqa: F401
    except ModuleNotFoundError:
        raise UsageError("signing needs the package cryptography", hint=install_extras("sign")) from None


def public_path(private: Path) -> Path:
    """Where :func:`new_key` puts the public key: beside the private one."""
    return private.with_name(f"{private.name}.pub")


def new_key(path: Path) -> None:
    """Make a key pair: the private key at ``path``, for its owner alone, and the public key beside it."""
    _check_installed()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    private = Ed25519PrivateKey.generate()
    secret = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    # A private key that is there is never overwritten: what it signed could not be signed again.
    for target in (path, public_path(path)):
        if os.path.lexists(target):
            raise UsageError(f"`{target}` exists already", hint="pass another `--key`, or leave `--new-key` out")
    try:
        write_new(path, secret, 0o600)
        try:
            write_new(public_path(path), public, 0o644)
        except BaseException:  # half a pair would stand in the way of the next try
            path.unlink()
            raise
    except OSError as error:
        raise UsageError(
            f"cannot write the key `{error.filename or path}`: {error.strerror}",
            hint=system_hint(error) or "pass a `--key` in a folder that you may write to",
        ) from None


def write_new(path: Path, content: bytes, mode: int) -> None:
    """Write a file that is not there yet, with the permissions ``mode``."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        with naming(path), open(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)  # whatever the umask
            file.write(content)
            file.flush()
            os.fsync(descriptor)
    except BaseException:
        path.unlink()
        raise


def is_signed(bundle: Path) -> bool:
    """Whether a bundle carries a signature, by whatever key."""
    return os.path.lexists(bundle / SIGNATURE)


def signature_check(bundle: Path, keys: Sequence[bytes]) -> Callable[[bytes], None] | None:
    """What :meth:`Manifest.read` asks of a manifest's bytes if there are trusted keys."""

    def check(manifest: bytes) -> None:
        check_signature(bundle, manifest, keys)

    return check if keys else None


def signature_problems(bundle: Path) -> Iterator[str]:
    """What can be seen of a signature without a key: whether it can be one at all."""
    path = bundle / SIGNATURE
    if is_signed(bundle) and not (path.is_file() and path.stat().st_size == SIZE):
        yield f"{SIGNATURE} is not a signature: a file of {SIZE} bytes"


def keep_signature(bundle: Path, staged: Path) -> bool:
    """Take the signature of a bundle over to the one that replaces it, if the manifest stays the same to the byte.

    False if there was a signature that no longer fits.
    """
    if not is_signed(bundle):
        return True
    try:
        same = (bundle / FILE_NAME).read_bytes() == (staged / FILE_NAME).read_bytes()
        signature = (bundle / SIGNATURE).read_bytes() if same and (bundle / SIGNATURE).is_file() else b""
    except OSError:  # whatever was there is damaged, and is replaced
        return False
    if len(signature) == SIZE:
        write_new(staged / SIGNATURE, signature, 0o644)
    return len(signature) == SIZE
