"""Signing: keys on disk, and a signature that goes with one manifest and no other."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from aot_runtime.core.signature import is_signed_by, public_key
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from aot.bundle.manifest import Manifest
from aot.bundle.publish import publish, staging
from aot.bundle.signature import NEW_KEY, Signer, is_signed, new_key, public_path
from aot.bundle.signing import sign
from aot.errors import BuildError, UsageError


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "release"
    new_key(path)
    return path


@pytest.fixture
def bundle(small_bundle_path: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_bundle_path, tmp_path / "bundle"))


# Keys


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o177])
def test_a_new_key_is_for_its_owner_alone(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        new_key(tmp_path / "release.pem")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "release.pem").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "release.pem.pub").stat().st_mode) == 0o644
    assert Signer.read(tmp_path / "release.pem").public == public_key(public_path(tmp_path / "release.pem"))


@pytest.mark.parametrize("name", ["release", "release.pub"])
def test_a_key_that_exists_is_not_overwritten(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("precious")
    with pytest.raises(UsageError, match=f"{name}` exists already"):
        new_key(tmp_path / "release")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["precious"]


def test_a_new_key_does_not_follow_a_link(tmp_path: Path) -> None:
    (tmp_path / "release").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="exists already"):
        new_key(tmp_path / "release")
    assert not (tmp_path / "elsewhere").exists()


def test_a_place_that_cannot_hold_a_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot write the key `.*/missing/release`: No such file"):
        new_key(tmp_path / "missing" / "release")


def encrypted() -> bytes:
    private = Ed25519PrivateKey.generate()
    return private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"password"))


def other_kind() -> bytes:
    return generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not an Ed25519 private key in PEM"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "is not an Ed25519 private key in PEM"),
        (other_kind(), "is not an Ed25519 private key in PEM"),
        (encrypted(), "is encrypted"),
    ],
    ids=["nothing", "nonsense", "P-256", "encrypted"],
)
def test_what_is_no_private_key_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(UsageError, match=message) as caught:
        Signer.read(tmp_path / "key")
    assert caught.value.hint


def test_a_public_key_does_not_sign(key: Path) -> None:
    with pytest.raises(UsageError, match="is a public key") as caught:
        Signer.read(public_path(key))
    assert caught.value.hint


def test_a_private_key_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the private key .*No such file") as caught:
        Signer.read(tmp_path / "missing")
    assert caught.value.hint == NEW_KEY


# Signatures


def test_a_signature_is_64_bytes_over_the_bytes_of_the_manifest(key: Path, bundle: Path) -> None:
    signature = sign(bundle, Signer.read(key)).read_bytes()
    assert len(signature) == 64
    manifest = (bundle / "manifest.json").read_bytes()
    assert is_signed_by(public_key(public_path(key)), signature, manifest)
    assert sorted(path.name for path in bundle.parent.iterdir()) == ["bundle", "release", "release.pub"]


def test_openssl_agrees_with_the_signature(key: Path, bundle: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed: what it says of a signature was not seen")
    sign(bundle, Signer.read(key))

    def accepts() -> bool:
        files = ["-in", str(bundle / "manifest.json"), "-sigfile", str(bundle / "manifest.sig")]
        command = [openssl, "pkeyutl", "-verify", "-rawin", "-pubin", "-inkey", str(public_path(key)), *files]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0 or "Signature Verification Failure" in done.stdout + done.stderr, done.stderr
        return done.returncode == 0

    assert accepts()
    (bundle / "manifest.json").write_bytes((bundle / "manifest.json").read_bytes() + b" ")
    assert not accepts()


def test_a_key_and_a_signature_of_openssl_are_accepted(bundle: Path, tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed: a signature of its own was not seen")
    key, public = tmp_path / "key.pem", tmp_path / "key.pub"

    def run(*arguments: object) -> None:
        subprocess.run([openssl, *map(str, arguments)], check=True, capture_output=True)

    run("genpkey", "-algorithm", "ed25519", "-out", key)
    run("pkey", "-in", key, "-pubout", "-out", public)
    run("pkeyutl", "-sign", "-rawin", "-inkey", key, "-in", bundle / "manifest.json", "-out", bundle / "manifest.sig")
    written = (bundle / "manifest.sig").read_bytes()
    assert is_signed_by(public_key(public), written, (bundle / "manifest.json").read_bytes())
    assert sign(bundle, Signer.read(key)).read_bytes() == written, "Ed25519 leaves no choice to a signer"


def test_signing_again_with_another_key_replaces_the_signature(key: Path, bundle: Path, tmp_path: Path) -> None:
    sign(bundle, Signer.read(key))
    new_key(tmp_path / "next")
    signature = sign(bundle, Signer.read(tmp_path / "next")).read_bytes()
    assert is_signed_by(public_key(tmp_path / "next.pub"), signature, (bundle / "manifest.json").read_bytes())


def test_a_bundle_that_is_not_what_its_manifest_says_is_not_signed(key: Path, bundle: Path) -> None:
    (entry,) = bundle.glob("lib/*/libsmall.so")
    entry.write_bytes(entry.read_bytes() + b"\0")
    (bundle / "stranger").write_text("")
    with pytest.raises(BuildError, match="was not signed") as caught:
        sign(bundle, Signer.read(key))
    assert "libsmall.so has" in caught.value.message and "stranger is not in the manifest" in caught.value.message
    assert not is_signed(bundle)


def test_a_damaged_signature_is_replaced(key: Path, bundle: Path) -> None:
    (bundle / "manifest.sig").write_text("nonsense")
    assert len(sign(bundle, Signer.read(key)).read_bytes()) == 64


def test_a_bundle_behind_a_link_is_signed_where_it_lies(key: Path, bundle: Path) -> None:
    (bundle.parent / "link").symlink_to(bundle)
    sign(bundle.parent / "link", Signer.read(key))
    assert (bundle / "manifest.sig").is_file() and (bundle.parent / "link").is_symlink()


# What replaces a signed bundle


def replace(bundle: Path, *, changed: bool) -> list[str]:
    """Publish a copy of the bundle in its place, the same or under another name; returns what was said."""
    said: list[str] = []
    with staging(bundle) as staged:
        shutil.copytree(bundle, staged, dirs_exist_ok=True, ignore=shutil.ignore_patterns("manifest.sig"))
        if changed:
            (staged / "manifest.json").write_bytes((staged / "manifest.json").read_bytes() + b"\n")
        publish(staged, bundle, said.append)
    return said


def test_a_bundle_with_another_manifest_loses_its_signature(key: Path, bundle: Path) -> None:
    sign(bundle, Signer.read(key))
    assert replace(bundle, changed=True) == [
        f"the bundle has changed, and its signature was dropped; sign it again: `python -m aot sign {bundle} --key KEY`"
    ]
    assert not is_signed(bundle)
    assert replace(bundle, changed=True) == [], "what is not there cannot be lost"


def test_a_bundle_with_the_same_manifest_keeps_its_signature(key: Path, bundle: Path) -> None:
    sign(bundle, Signer.read(key))
    before = (bundle / "manifest.sig").read_bytes()
    assert replace(bundle, changed=False) == []
    assert (bundle / "manifest.sig").read_bytes() == before


@pytest.mark.parametrize("kind", ["empty", "folder", "dangling"])
def test_what_is_no_signature_is_not_kept(kind: str, bundle: Path) -> None:
    path = bundle / "manifest.sig"
    if kind == "empty":
        path.touch()
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("nowhere")
    assert len(replace(bundle, changed=False)) == 1
    assert not is_signed(bundle)
    assert Manifest.read(bundle).complete
