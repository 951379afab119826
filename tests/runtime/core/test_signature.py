"""Ed25519 verification: published vectors, the edges where implementations differ, and OpenSSL beside it."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import aot_runtime.native
import edwards
import pytest
from aot_runtime import PublicKeyError, SignatureError
from aot_runtime.core.signature import check_signature, is_signed_by, public_key, public_keys
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from edwards import BASE, ORDER, SMALL, P, challenge, encode, scalar, times
from hypothesis import given, settings
from hypothesis import strategies as st
from standin import compiler

# RFC 8032, section 7.1: key, message, signature.
RFC_8032 = {
    "1": (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    "2": (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    "3": (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
    "SHA(abc)": (
        "ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
        "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
        "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b58909351fc9ac90b3ecfdfbc7c66431e0303dca179c138ac17ad9bef1177331a704",
    ),
}
SMALL_Y = {y for _, y in SMALL}


def openssl_accepts(key: bytes, signature: bytes, message: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except InvalidSignature:
        return False
    return True


def honest(key: bytes, signature: bytes) -> bool:
    """What the module asks for beyond OpenSSL: A is canonical, and neither A nor R has small order."""
    y, odd = int.from_bytes(key, "little") % 2**255, key[31] >= 0x80
    y_of_r = int.from_bytes(signature[:32], "little") % 2**255
    return y < P and edwards.with_y(y, odd=odd) is not None and not {y, y_of_r % P} & SMALL_Y


def assert_same_verdict(key: bytes, signature: bytes, message: bytes) -> bool:
    expected = openssl_accepts(key, signature, message) and honest(key, signature)
    case = (key.hex(), signature.hex(), message.hex())
    assert is_signed_by(key, signature, message) is expected, case
    assert in_c().shim_verify(key, signature, message, ctypes.c_size_t(len(message))) == expected, case
    return expected


@cache
def in_c() -> ctypes.CDLL:
    """The verification of ``aot/detail/ed25519.h``, under the sanitizer of undefined behaviour, which ends the process."""
    folder = Path(tempfile.mkdtemp(prefix="aot-ed25519-"))
    library = folder / "shim.so"
    flags = ["-std=c99", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    checked = ["-fsanitize=undefined", "-fsanitize-undefined-trap-on-error"]
    include = f"-I{aot_runtime.native.include_directory()}"
    source = Path(__file__).with_name("ed25519_shim.c")
    subprocess.run([*compiler(), *flags, *checked, include, str(source), "-o", str(library)], check=True)
    loaded = ctypes.CDLL(str(library))
    shutil.rmtree(folder)
    return loaded


@pytest.fixture(scope="module")
def signed() -> tuple[bytes, bytes, bytes]:
    private = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    message = b'{"schema": 2}\n'
    return private.public_key().public_bytes_raw(), private.sign(message), message


@pytest.mark.parametrize("name", RFC_8032)
def test_the_vectors_of_rfc_8032_are_accepted(name: str) -> None:
    key, message, signature = (bytes.fromhex(text) for text in RFC_8032[name])
    assert assert_same_verdict(key, signature, message)


@pytest.mark.parametrize("name", RFC_8032)
def test_a_signature_of_another_vector_is_refused(name: str) -> None:
    key, message, _ = (bytes.fromhex(text) for text in RFC_8032[name])
    for other in RFC_8032.keys() - {name}:
        assert not assert_same_verdict(key, bytes.fromhex(RFC_8032[other][2]), message)


def test_every_flipped_bit_is_refused(signed: tuple[bytes, bytes, bytes]) -> None:
    for part in range(3):
        for bit in range(8 * len(signed[part])):
            altered = bytearray(signed[part])
            altered[bit // 8] ^= 1 << bit % 8
            key, signature, message = (*signed[:part], bytes(altered), *signed[part + 1 :])
            assert not assert_same_verdict(key, signature, message)


def test_a_signature_or_key_of_another_length_is_refused(signed: tuple[bytes, bytes, bytes]) -> None:
    key, signature, message = signed
    for wrong in (b"", signature[:-1], signature[:32], signature[1:], signature + b"\0", signature * 2):
        assert not is_signed_by(key, wrong, message)
    for wrong in (b"", key[:-1], key + b"\0", key * 2):
        assert not is_signed_by(wrong, signature, message)


@pytest.mark.parametrize("wrap", range(1, 16))
def test_a_signature_whose_scalar_was_raised_by_the_order_is_refused(
    wrap: int, signed: tuple[bytes, bytes, bytes]
) -> None:
    key, signature, message = signed
    raised = int.from_bytes(signature[32:], "little") + wrap * ORDER
    assert raised < 2**256, "the scalar of this signature leaves no room"
    assert not assert_same_verdict(key, signature[:32] + scalar(raised), message)


@pytest.mark.parametrize("number", [0, 1, ORDER - 1, ORDER, ORDER + 1, 2**252, 2**253 - 1, 2**255 - 1, 2**256 - 1])
def test_scalars_at_the_edges_do_not_make_a_signature_good(number: int, signed: tuple[bytes, bytes, bytes]) -> None:
    key, signature, message = signed
    assert not assert_same_verdict(key, signature[:32] + scalar(number), message)


def test_there_are_eight_points_of_small_order() -> None:
    assert len(set(SMALL)) == 8
    assert all(times(8, point) == edwards.ZERO for point in SMALL)
    assert len(SMALL_Y) == 5


@pytest.mark.parametrize("point", SMALL, ids=lambda point: encode(point).hex()[:8])
def test_a_key_of_small_order_signs_nothing(point: tuple[int, int]) -> None:
    """Anybody makes signatures for such a key: with R = S*B - h*A, where h*A is one of eight points."""
    key, s, accepted = encode(point), 12345, 0
    for number in range(32):
        for guess in SMALL:
            r = encode(edwards.add(times(s, BASE), guess))
            accepted += openssl_accepts(key, r + scalar(s), b"%d" % number)
            assert not assert_same_verdict(key, r + scalar(s), b"%d" % number)
    assert accepted, "the forgeries of this test are none: OpenSSL refuses them too"


@pytest.mark.parametrize(
    ("encoded", "stands_for"),
    [
        (P, 0),  # y = p for y = 0, order 4
        (P | 1 << 255, 0),
        (P + 1, 1),  # y = p + 1 for y = 1, the neutral element
        (P + 1 | 1 << 255, 1),
        (1 | 1 << 255, 1),  # a sign on x = 0
        (P - 1 | 1 << 255, P - 1),
    ],
)
def test_another_encoding_of_a_point_of_small_order_signs_nothing(encoded: int, stands_for: int) -> None:
    key, accepted = scalar(encoded), 0
    for number in range(8):
        message = b"%d" % number
        for guess in SMALL:
            r = encode(edwards.add(times(7, BASE), guess))
            accepted += openssl_accepts(key, r + scalar(7), message)
            assert not assert_same_verdict(key, r + scalar(7), message)
    assert accepted, f"OpenSSL refuses this encoding of y = {stands_for} too"


@pytest.mark.parametrize("y", range(19))
def test_a_key_that_is_written_another_way_is_refused(y: int) -> None:
    """Nobody knows a secret for these points, so that the verdict on a signature would show nothing."""
    from aot_runtime.core.signature import _negated_point

    for sign in (0, 1 << 255):
        point = edwards.with_y(y, odd=bool(sign))
        expected = None if point is None or y in SMALL_Y else edwards.negated(point)
        assert _negated_point(y | sign) == expected
        assert _negated_point(P + y | sign) is None


def signature_by(secret: int, key: bytes, r: edwards.Point, nonce: int, message: bytes) -> bytes:
    """The signature that satisfies the equation up to points of small order in ``key`` and ``r``."""
    return encode(r) + scalar((nonce + challenge(encode(r), key, message) * secret) % ORDER)


@pytest.mark.parametrize("point", SMALL, ids=lambda point: encode(point).hex()[:8])
def test_a_commitment_of_small_order_is_refused(point: tuple[int, int]) -> None:
    secret = 987654321
    key = encode(times(secret, BASE))
    signature = signature_by(secret, key, point, 0, b"message")
    assert openssl_accepts(key, signature, b"message") is (point == edwards.ZERO)
    assert not assert_same_verdict(key, signature, b"message")
    for other in (P + point[1], point[1] | 1 << 255):  # and neither is another way to write it
        if other < 2**256:
            assert not assert_same_verdict(key, scalar(other) + signature[32:], b"message")


def test_points_with_a_part_of_small_order_get_the_verdict_of_openssl() -> None:
    """Cofactorless and cofactored verification differ here, and here alone."""
    chosen, seen = random.Random(8032), {True: 0, False: 0}
    secret = chosen.randrange(ORDER)
    public = times(secret, BASE)
    nonce = chosen.randrange(ORDER)
    commitment = times(nonce, BASE)
    for of_key in SMALL:
        key = encode(edwards.add(public, of_key))
        for of_r in SMALL:
            r = edwards.add(commitment, of_r)
            for number in range(3):
                message = b"%d" % number
                signature = signature_by(secret, key, r, nonce, message)
                seen[assert_same_verdict(key, signature, message)] += 1
    assert min(seen.values()) > 10, seen


@given(seed=st.binary(min_size=32, max_size=32), message=st.binary(max_size=3000))
@settings(max_examples=100)
def test_what_openssl_signs_is_accepted(seed: bytes, message: bytes) -> None:
    private = Ed25519PrivateKey.from_private_bytes(seed)
    key = private.public_key().public_bytes_raw()
    assert assert_same_verdict(key, private.sign(message), message)
    assert not assert_same_verdict(key, private.sign(message), message + b"\0")


@given(key=st.binary(min_size=32, max_size=32), signature=st.binary(min_size=64, max_size=64), message=st.binary())
@settings(max_examples=200)
def test_any_bytes_get_the_verdict_of_openssl(key: bytes, signature: bytes, message: bytes) -> None:
    assert_same_verdict(key, signature, message)


@given(data=st.data(), message=st.binary(max_size=20))
@settings(max_examples=200)
def test_parts_of_signatures_put_together_get_the_verdict_of_openssl(data: st.DataObject, message: bytes) -> None:
    private = Ed25519PrivateKey.from_private_bytes(bytes(32))
    good = private.public_key().public_bytes_raw()
    small = [encode(point) for point in SMALL] + [scalar(P), scalar(P + 1), scalar(2**255 - 1), scalar(2**256 - 1)]
    key = data.draw(st.sampled_from([good, *small]))
    r = data.draw(st.sampled_from([private.sign(message)[:32], *small, good]))
    s = data.draw(st.sampled_from([private.sign(message)[32:], *map(scalar, (0, 1, ORDER - 1, ORDER, 2**255 - 20))]))
    assert_same_verdict(key, r + s, message)


# Keys


def pem(key: bytes) -> bytes:
    return Ed25519PublicKey.from_public_bytes(key).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32))).public_key().public_bytes_raw()


def test_a_key_is_a_file_its_content_or_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "release.pub"
    path.write_bytes(pem(KEY))
    for given_as in (path, str(path), pem(KEY), KEY, pem(KEY).replace(b"\n", b"\r\n"), b"\n" + pem(KEY).strip()):
        assert public_key(given_as) == KEY
        assert public_keys(given_as) == (KEY,)
    assert public_keys([path, bytes(32)]) == (KEY, bytes(32))


def altered_pems() -> dict[str, bytes]:
    good = pem(KEY)
    body = good.splitlines()[1]
    der = base64.b64decode(body)
    x25519 = X25519PrivateKey.generate().public_key()
    p256 = generate_private_key(SECP256R1()).public_key()

    def block(content: bytes, label: bytes = b"PUBLIC KEY") -> bytes:
        encoded = base64.b64encode(content)
        return b"-----BEGIN " + label + b"-----\n" + encoded + b"\n-----END " + label + b"-----\n"

    return {
        "nothing": b"",
        "one line": b"-----BEGIN PUBLIC KEY-----",
        "no body": b"-----BEGIN PUBLIC KEY-----\n-----END PUBLIC KEY-----\n",
        "no end": good.rpartition(b"-----END")[0],
        "two keys": good * 2,
        "words in front": b"my key\n" + good,
        "words behind": good + b"my key\n",
        "another label": block(der, b"CERTIFICATE"),
        "labels that differ": good.replace(b"END PUBLIC", b"END RSA PUBLIC"),
        "a short key": block(der[:-1]),
        "a long key": block(der + b"\0"),
        "an integer inside the DER that differs": block(der[:1] + b"\x2b" + der[2:]),
        "X25519": x25519.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        "P-256": p256.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        "no padding": good.replace(b"=\n", b"\n"),
        "bits in the padding": good.replace(body, body[:-2] + b"9="),
        "a character that is not base64": good.replace(body, body[:20] + b"!" + body[20:]),
        "31 bytes": bytes(31),
        "33 bytes": bytes(33),
    }


@pytest.mark.parametrize("name", altered_pems())
def test_what_is_no_key_in_pem_is_refused(name: str, tmp_path: Path) -> None:
    content = altered_pems()[name]
    assert content != pem(KEY)
    with pytest.raises(PublicKeyError, match="the key is not an Ed25519 public key in PEM"):
        public_key(content)
    path = tmp_path / "key.pub"
    path.write_bytes(content)
    with pytest.raises(PublicKeyError, match=r"key\.pub` is not an Ed25519 public key in PEM"):
        public_key(path)


def test_a_private_key_is_named_as_one() -> None:
    private = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with pytest.raises(PublicKeyError, match="is a private key") as caught:
        public_key(private)
    assert caught.value.hint is not None and "public" in caught.value.hint


@given(content=st.one_of(st.binary(max_size=200), st.builds(lambda body: pem(KEY)[:27] + body, st.binary(max_size=90))))
def test_any_bytes_are_a_key_or_an_error_of_ours(content: bytes) -> None:
    with contextlib.suppress(PublicKeyError):
        assert len(public_key(content)) == 32


def test_no_keys_is_not_the_same_as_no_check() -> None:
    with pytest.raises(PublicKeyError, match="empty"):
        public_keys([])


def pipe(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


UNREADABLE: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (lambda path: None, "No such file"),
    "a folder": (Path.mkdir, "Is a directory|not a regular file"),
    "a pipe": (pipe, "not a regular file"),
    "a device": (endless, "not a regular file"),
}


@pytest.mark.usefixtures("ends")
@pytest.mark.parametrize("name", UNREADABLE)
def test_a_key_that_cannot_be_read_is_named(name: str, tmp_path: Path) -> None:
    make, message = UNREADABLE[name]
    make(tmp_path / "key.pub")
    with pytest.raises(PublicKeyError, match=f"key.pub`: .*({message})"):
        public_key(tmp_path / "key.pub")


# The signature beside a manifest


def test_a_signature_by_any_trusted_key_is_enough(signed: tuple[bytes, bytes, bytes], tmp_path: Path) -> None:
    key, signature, message = signed
    (tmp_path / "manifest.sig").write_bytes(signature)
    check_signature(tmp_path, message, [key])
    check_signature(tmp_path, message, [bytes(32), key])
    with pytest.raises(SignatureError, match=r"not by a trusted key \(they start with 0000000000000000\)"):
        check_signature(tmp_path, message, [bytes(32)])
    with pytest.raises(SignatureError, match="or its manifest was altered"):
        check_signature(tmp_path, message + b"\n", [key])


@pytest.mark.parametrize(
    ("size", "seen"), [(0, "0"), (63, "63"), (65, "more"), (1 << 20, "more")], ids=["0", "63", "65", "1M"]
)
def test_a_signature_file_of_another_size_is_refused(
    size: int, seen: str, signed: tuple[bytes, bytes, bytes], tmp_path: Path
) -> None:
    (tmp_path / "manifest.sig").write_bytes((signed[1] * (size // 64 + 1))[:size])
    with pytest.raises(SignatureError, match=rf"manifest\.sig` has {seen} bytes; an Ed25519 signature has 64"):
        check_signature(tmp_path, signed[2], [signed[0]])


def test_a_bundle_without_a_signature_is_called_unsigned(tmp_path: Path) -> None:
    with pytest.raises(SignatureError, match=r"is not signed: it has no manifest\.sig") as caught:
        check_signature(tmp_path, b"", [KEY])
    assert caught.value.hint is not None and "`python -m aot sign`" in caught.value.hint


@pytest.mark.parametrize("name", [name for name in UNREADABLE if name != "missing"])
def test_a_signature_that_cannot_be_read_is_refused(name: str, tmp_path: Path) -> None:
    make, message = UNREADABLE[name]
    make(tmp_path / "manifest.sig")
    with pytest.raises(SignatureError, match=f"manifest.sig`: .*({message})"):
        check_signature(tmp_path, b"", [KEY])
