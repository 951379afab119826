"""Sign a bundle with an Ed25519 key."""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

from ...bundle.lock import locked
from ...bundle.manifest import Manifest
from ...bundle.signature import Signer, new_key, public_path
from ...bundle.signing import sign
from ...errors import UsageError
from ..options import print_warning, refuse_inside
from ..report import note, print_json
from ..schema import Key

__all__ = ["KEYS", "configure_parser", "execute"]

KEYS = (
    Key("signature", str | None, "file of the signature; null if there was no bundle to sign"),
    Key("public_key", str, "the public key, in hexadecimal digits"),
)


def configure_parser(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "bundle",
        type=Path,
        nargs="?",
        metavar="BUNDLE",
        help="directory that `build` printed; with `--new-key` it may be left out",
    )
    add("--key", type=Path, required=True, metavar="KEY", help="the private key, a PEM file")
    add("--new-key", action="store_true", help="make the key first: KEY, readable by you alone, and KEY.pub")


def execute(arguments: argparse.Namespace) -> int:
    if arguments.bundle is None and not arguments.new_key:
        raise UsageError("there is nothing to sign", hint="name a bundle, or pass `--new-key` to make a key")
    refuse_inside(arguments.key, "--key")
    if arguments.new_key:
        new_key(arguments.key)
        note(arguments, f"new key: `{arguments.key}`, keep it secret; public key: `{public_path(arguments.key)}`")
        if _git_would_take(arguments.key):
            print_warning(f"git would commit the private key `{arguments.key}`: name it in `.gitignore`, or move it")
    signer = Signer.read(arguments.key)
    if mode := arguments.key.stat().st_mode & 0o077 if arguments.key.is_file() else 0:
        print_warning(f"others may read the private key `{arguments.key}` (mode {mode:03o}): `chmod 600` it")
    signature = _sign(arguments.bundle, signer) if arguments.bundle is not None else None
    if arguments.json:
        print_json({"signature": str(signature) if signature else None, "public_key": signer.public.hex()})
    elif signature is not None:
        note(arguments, f"{arguments.bundle}: signed by {signer.public.hex()[:16]}")
        print(signature)
    return 0


def _git_would_take(path: Path) -> bool:
    """Whether a file lies in a working tree of git that does not ignore it."""
    try:
        asked = subprocess.run(["git", "check-ignore", "-q", "--", path.name], cwd=path.parent, capture_output=True)
    except OSError:  # there is no git
        return False
    return asked.returncode == 1  # 0: it is ignored; 128: there is no working tree


def _sign(bundle: Path, signer: Signer) -> Path:
    Manifest.read(bundle)  # what is not a bundle is refused before a lock is made beside it
    with locked(bundle, print_warning, changes=True):
        return sign(bundle, signer)
