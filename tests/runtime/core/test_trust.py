"""``aot_runtime.load(path, key=...)``: signed bundles load, others are refused before any of their code is opened."""

from __future__ import annotations

import hashlib
import platform
import shutil
from pathlib import Path
from typing import Any

import aot_runtime
import pytest
from aot_runtime import DigestError, PublicKeyError, SignatureError, UsageError
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from forging import accept
from observing import only_block, run_python
from standin import Standin

PRIVATE = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
KEY = PRIVATE.public_key().public_bytes_raw()
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key().public_bytes_raw()
HOST = f"{platform.machine()}-linux-gnu"


@pytest.fixture
def signed(cuda: Standin, standin_bundle_path: Path, tmp_path: Path) -> Path:
    """A signed copy of the bundle that no process has loaded."""
    copy = Path(shutil.copytree(standin_bundle_path, tmp_path / "signed"))
    (copy / "manifest.sig").write_bytes(PRIVATE.sign((copy / "manifest.json").read_bytes()))
    return copy


def refused(bundle: Path, key: object = KEY, error: type[Exception] = SignatureError, match: str = ".") -> None:
    with pytest.raises(error, match=match):
        aot_runtime.load(bundle, key=key)  # type: ignore[arg-type]
    assert str(bundle) not in Path("/proc/self/maps").read_text(), "a library of the bundle was opened"


def alter(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_a_signed_bundle_loads_and_runs(signed: Path, cuda: Standin, tmp_path: Path) -> None:
    pem = PRIVATE.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    path = tmp_path / "release.pub"
    path.write_bytes(pem)
    for key in (path, str(path), pem, KEY, [KEY], (OTHER, path)):
        bundle = aot_runtime.load(signed, key=key)
        bundle.fill(cuda.tensor((8,), "float32"))
        assert only_block(cuda) == 128


def test_a_signature_is_no_hindrance_without_a_key(signed: Path) -> None:
    assert aot_runtime.load(signed).kernels


def test_an_unsigned_bundle_is_refused(signed: Path) -> None:
    (signed / "manifest.sig").unlink()
    refused(signed, match="is not signed")


def test_a_bundle_signed_by_another_key_is_refused(signed: Path) -> None:
    refused(signed, OTHER, match="not by a trusted key")
    refused(signed, [OTHER, bytes(32)], match="not by a trusted key")


@pytest.mark.parametrize("part", ["manifest.sig", "manifest.json"])
def test_an_altered_signature_or_manifest_is_refused(part: str, signed: Path) -> None:
    content = (signed / part).read_bytes()
    for position in {0, 1, len(content) // 2, len(content) - 1}:
        alter(signed / part, position)
        refused(signed, match="or its manifest was altered")
        (signed / part).write_bytes(content)
    aot_runtime.load(signed, key=KEY)


def test_a_manifest_that_is_written_another_way_is_refused(signed: Path) -> None:
    """The signature is over bytes: what is the same as JSON is not the same."""
    (signed / "manifest.json").write_bytes((signed / "manifest.json").read_bytes() + b"\n")
    refused(signed, match="or its manifest was altered")


def test_an_altered_library_of_a_signed_bundle_is_refused(signed: Path, cuda: Standin) -> None:
    entry = signed / "lib" / HOST / "libbundle.so"
    content = entry.read_bytes()
    alter(entry, -1)
    refused(signed, error=DigestError, match="sha256")
    entry.write_bytes(content)
    alter(signed / "lib" / HOST / "sm_90a" / "fill.so", -1)
    bundle = aot_runtime.load(signed, key=KEY)
    with pytest.raises(DigestError, match="is not the file this bundle was built with"):
        bundle.fill(cuda.tensor((8,), "float32"))


def test_a_bundle_replaced_by_an_older_signed_one_is_accepted(signed: Path, tmp_path: Path) -> None:
    """A signature says who, not which: docs/concepts/signatures.md says so."""
    older = Path(shutil.copytree(signed, tmp_path / "older"))
    assert aot_runtime.load(older, key=KEY).name == aot_runtime.load(signed, key=KEY).name


def test_digests_cannot_be_waived_with_a_key(signed: Path) -> None:
    with pytest.raises(UsageError, match="`verify=False` cannot be combined with `key`"):
        aot_runtime.load(signed, key=KEY, verify=False)
    with pytest.raises(UsageError, match="`verify=False` cannot be combined with `key`"):
        aot_runtime.Bundle(signed, key=KEY, verify=False)


@pytest.mark.parametrize(
    ("key", "match"), [([], "empty"), (b"", "not an Ed25519 public key"), ("no/such/file.pub", "cannot read")]
)
def test_a_key_that_is_none_is_refused(key: object, match: str, signed: Path) -> None:
    refused(signed, key, PublicKeyError, match)


def test_the_module_is_imported_only_for_a_key(signed: Path) -> None:
    code = """
    import sys, aot_runtime
    aot_runtime.load(sys.argv[1])
    assert "aot_runtime.core.signature" not in sys.modules
    aot_runtime.load(sys.argv[1], key=bytes.fromhex(sys.argv[2]))
    assert "aot_runtime.core.signature" in sys.modules
    assert not {"cryptography", "aot"} & set(sys.modules)
    """
    assert run_python(code, signed, KEY.hex()) == ""


def test_altered_signatures_of_kernels_are_refused(signed: Path, cuda: Standin) -> None:
    """``kernels.json`` says what callers see; the signed manifest holds its digest."""
    path = signed / "kernels.json"
    path.write_bytes(path.read_bytes().replace(b"1.0", b"1.8"))
    refused(signed, error=DigestError, match="kernels.json")


def test_code_that_was_opened_unchecked_is_refused_once_somebody_asks_for_checks(signed: Path, cuda: Standin) -> None:
    alter(signed / "lib" / HOST / "sm_90a" / "fill.so", -1)
    aot_runtime.load(signed, verify=False).fill(cuda.tensor((8,), "float32"))
    assert only_block(cuda) == 128
    for key in (KEY, None):
        with pytest.raises(DigestError, match="has opened code of it without a check"):
            aot_runtime.load(signed, key=key)


def test_a_check_that_is_asked_for_before_code_is_opened_is_in_time(signed: Path, cuda: Standin) -> None:
    alter(signed / "lib" / HOST / "sm_90a" / "fill.so", -1)
    trusting, checking = aot_runtime.load(signed, verify=False), aot_runtime.load(signed, key=KEY)
    for bundle in (trusting, checking):
        with pytest.raises(DigestError, match=r"fill\.so` is not the file"):
            bundle.fill(cuda.tensor((8,), "float32"))


def test_a_signature_is_bound_to_a_name(signed: Path) -> None:
    """A signer may have signed other bundles, too."""
    assert aot_runtime.load(signed, key=KEY, name="bundle").name == "bundle"
    for key in (KEY, None):
        with pytest.raises(SignatureError, match="is the bundle 'bundle', not 'kernels'"):
            aot_runtime.load(signed, key=key, name="kernels")


def test_a_digest_of_the_manifest_admits_one_bundle(signed: Path) -> None:
    digest = hashlib.sha256((signed / "manifest.json").read_bytes()).hexdigest()
    assert aot_runtime.load(signed, manifest_sha256=digest).manifest.sha256 == digest
    for wrong in (digest[:-1] + ("0" if digest[-1] != "0" else "1"), 64 * "0"):
        with pytest.raises(DigestError, match=f"expected {wrong}"):
            aot_runtime.load(signed, key=KEY, manifest_sha256=wrong)
    others: list[Any] = ["", digest[:-1], digest.upper(), digest + "0", 5, digest.encode()]
    for other in others:
        with pytest.raises(UsageError, match="manifest_sha256"):
            aot_runtime.load(signed, manifest_sha256=other)
    with pytest.raises(PublicKeyError, match="not a public key: 5"):
        aot_runtime.load(signed, key=5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="`verify=False` cannot be combined"):
        aot_runtime.load(signed, manifest_sha256=digest, verify=False)


def test_a_digest_of_the_manifest_is_asked_before_any_code_is_opened(signed: Path) -> None:
    with pytest.raises(DigestError):
        aot_runtime.load(signed, manifest_sha256=64 * "0")
    assert str(signed) not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("byte", [0, 15, 31])
def test_every_byte_of_a_digest_counts(byte: int, signed: Path, cuda: Standin) -> None:
    """The digest that the entry library has of a kernel's library differs in one byte."""
    entry, kernel = f"lib/{HOST}/libbundle.so", signed / "lib" / HOST / "sm_90a" / "fill.so"
    digest = hashlib.sha256(kernel.read_bytes()).digest()
    content = (signed / entry).read_bytes()
    assert content.count(digest) == 1
    alter(signed / entry, content.index(digest) + byte)
    accept(signed, entry)
    bundle = aot_runtime.load(signed)
    with pytest.raises(DigestError, match=r"fill\.so` is not the file"):
        bundle.fill(cuda.tensor((8,), "float32"))
    assert not cuda.launches
