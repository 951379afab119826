"""Check that a bundle was signed: Ed25519 (RFC 8032), on the standard library alone.

``manifest.sig`` holds 64 bytes, the signature of the bytes of ``manifest.json``. :func:`check_signature` is all
that a loader calls; the module is imported only when a key is given.

Which signatures count. RFC 8032 leaves open what happens at the edges, and implementations differ there. This one
accepts what OpenSSL accepts, less what no honest signer ever makes:

- S is below the order of the base point, or one signature could be rewritten into another (OpenSSL checks this too);
- the equation holds without multiplying by the cofactor: ``S*B - h*A``, encoded, is R byte for byte. OpenSSL
  computes the same, so every encoding of R that is not the canonical one fails;
- the public key A is a canonical encoding. OpenSSL takes ``y + p`` for ``y``, and a sign on ``x = 0``;
- neither A nor R has small order. A key of small order "signs" every message; OpenSSL accepts it.

The time of a check depends on the inputs. They are public, so nothing leaks.
"""

from __future__ import annotations

import os
import stat
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from collections.abc import Sequence
from hashlib import sha512
from pathlib import Path
from typing import Union

from ..errors import PublicKeyError, SignatureError

__all__ = ["FILE_NAME", "SIZE", "PublicKey", "check_signature", "is_signed_by", "public_key", "public_keys"]

FILE_NAME = "manifest.sig"
_SIGNER = "pass the public key of the bundle's signer: KEY.pub, which `python -m aot sign --key KEY --new-key` makes"
SIZE = 64

PublicKey = Union[str, "os.PathLike[str]", bytes]  # a PEM file, its content, or the 32 bytes of a key

_KEY_SIZE = 32
_LONGEST_KEY_FILE = 4096
_BEGIN, _END = b"-----BEGIN PUBLIC KEY-----", b"-----END PUBLIC KEY-----"
_DER = bytes.fromhex("302a300506032b6570032100")  # SubjectPublicKeyInfo of an Ed25519 key, up to the key itself


def check_signature(bundle: Path, manifest: bytes, keys: Sequence[bytes]) -> bytes:
    """Refuse a bundle whose ``manifest.json``, read as ``manifest``, is not signed by one of the keys; returns that key."""
    path = os.path.join(bundle, FILE_NAME)
    try:
        signature = _read(path, SIZE)
    except FileNotFoundError:
        hint = "sign it with `python -m aot sign`, or load it without a key if you trust its source"
        raise SignatureError(f"`{bundle}` is not signed: it has no {FILE_NAME}", hint=hint) from None
    except OSError as error:
        raise SignatureError(f"cannot read `{path}`: {error.strerror or error}") from None
    if len(signature) != SIZE:
        seen = "more" if len(signature) > SIZE else str(len(signature))
        raise SignatureError(f"`{path}` has {seen} bytes; an Ed25519 signature has {SIZE}")
    for key in keys:
        if is_signed_by(key, signature, manifest):
            return key
    known = ", ".join(key.hex()[:16] for key in keys)
    raise SignatureError(
        f"the signature of `{bundle}` is not by a trusted key (they start with {known}), or its manifest was altered",
        hint="get the bundle from its signer again, or pass the public key that signed it",
    )


def public_keys(key: PublicKey | Sequence[PublicKey]) -> tuple[bytes, ...]:
    """The keys that a caller trusts: one, or several while an old key gives way to a new one."""
    if not isinstance(key, (str, bytes, os.PathLike)) and not hasattr(key, "__iter__"):
        raise PublicKeyError(f"not a public key: {key!r}", hint="pass the path of a PEM file, its content, or 32 bytes")
    given = [key] if isinstance(key, (str, bytes, os.PathLike)) else list(key)
    if not given:
        raise PublicKeyError("the list of trusted keys is empty", hint="pass at least one public key")
    return tuple(public_key(each) for each in given)


def public_key(key: PublicKey) -> bytes:
    """The 32 bytes of a key that is given as the path of a PEM file, as its content, or as the bytes themselves."""
    if isinstance(key, bytes):
        return key if len(key) == _KEY_SIZE else _from_pem(key, "the key")
    try:
        return _from_pem(_read(os.fspath(key), _LONGEST_KEY_FILE), f"`{os.fspath(key)}`")
    except OSError as error:
        raise PublicKeyError(f"cannot read `{os.fspath(key)}`: {error.strerror or error}", hint=_SIGNER) from None


def _from_pem(content: bytes, what: str) -> bytes:
    """The key of one PEM block and nothing beside it: ``openssl pkey -pubout`` writes it like this."""
    lines = content.strip().splitlines()
    if lines and b"PRIVATE KEY" in lines[0]:
        raise PublicKeyError(f"{what} is a private key", hint="pass the public one, which `aot sign` keeps as `.pub`")
    text = b"".join(lines[1:-1])
    try:
        der = a2b_base64(text)
    except Base64Error:
        der = b""
    # Decoding is lenient; encoding again shows whether the text was the one way to write these bytes.
    canonical = b2a_base64(der, newline=False) == text
    if [*lines[:1], *lines[-1:]] != [_BEGIN, _END] or not canonical or der[:-_KEY_SIZE] != _DER:
        raise PublicKeyError(f"{what} is not an Ed25519 public key in PEM", hint=_SIGNER)
    return der[-_KEY_SIZE:]


def _read(path: str, most: int) -> bytes:
    """A small regular file, one byte more than ``most`` if it has them. A pipe is refused instead of waited for."""
    with open(path, "rb", buffering=0, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("it is not a regular file")
        return file.read(most + 1)


# The curve: -x^2 + y^2 = 1 + d x^2 y^2 modulo p, with a base point of prime order.

_P = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493
_D = 37095705934669439343138083508754565189542113879843219016388785533085940283555
_ROOT = 19681161376707505956807079304988542015446066515923890162744021073123829784752  # its square is -1
_BASE = (
    15112221349535400772501151409588531511454012693041857206046113283949847762202,
    46316835694926478169428394003475163141307993866256225615783033603165251855960,
)
# The y of the eight points whose order divides eight: two of order 1 and 2, two of order 4, four of order 8.
_Y8 = 2707385501144840649318225287225658788936804267575313519463743609750303402022
_SMALL_ORDER = frozenset({0, 1, _P - 1, _Y8, _P - _Y8})
_SIGN = 1 << 255

_Point = tuple[int, int, int, int]  # X, Y, Z, T with x = X/Z, y = Y/Z, xy = T/Z
_Multiples = dict[int, _Point]  # the odd ones from -15 to 15, as (Y-X, Y+X, 2Z, 2dT)


def is_signed_by(key: bytes, signature: bytes, message: bytes) -> bool:
    """Whether that key made that signature of that message. Bytes of any content and length are an answer."""
    if len(key) != _KEY_SIZE or len(signature) != SIZE:
        return False
    r, s = signature[:32], int.from_bytes(signature[32:], "little")
    negated = _negated_point(int.from_bytes(key, "little"))
    if negated is None or s >= _ORDER or int.from_bytes(r, "little") % _SIGN in _SMALL_ORDER:
        return False
    h = int.from_bytes(sha512(r + key + message).digest(), "little") % _ORDER
    x, y, z, _ = _sum_of_products(s, _multiples(*_BASE), h, _multiples(*negated))
    inverse = pow(z, -1, _P)
    return ((y * inverse % _P) | (x * inverse % _P & 1) << 255).to_bytes(32, "little") == r


def _negated_point(encoded: int) -> tuple[int, int] | None:
    """The point that is minus the encoded one; None for what is no canonical encoding of a point of large order."""
    sign, y = divmod(encoded, _SIGN)
    if y >= _P or y in _SMALL_ORDER:
        return None
    u, v = (y * y - 1) % _P, (_D * y * y + 1) % _P
    x = u * v**3 * pow(u * v**7, (_P - 5) // 8, _P) % _P  # a root of u/v, of -u/v, or of neither
    square = v * x * x % _P
    if square == _P - u:
        x = x * _ROOT % _P
    elif square != u:
        return None
    return (x if x & 1 != sign else _P - x), y


def _sum_of_products(s: int, of_b: _Multiples, h: int, of_a: _Multiples) -> _Point:
    """``s*B + h*A``: one row of doublings for both, and an addition for one digit in six of each."""
    x, y, z, t = 0, 1, 1, 0
    for first, second in zip(reversed(_digits(s)), reversed(_digits(h)), strict=True):
        xx, yy, zz = x * x, y * y, z * z
        e, g = ((x + y) ** 2 - xx - yy) % _P, (yy - xx) % _P
        f, k = (g - 2 * zz) % _P, (-xx - yy) % _P
        x, y, z = e * f % _P, g * k % _P, f * g % _P
        if first or second:
            t = e * k % _P
            if first:
                x, y, z, t = _add((x, y, z, t), of_b[first])
            if second:
                x, y, z, t = _add((x, y, z, t), of_a[second])
    return x, y, z, t


def _digits(scalar: int) -> list[int]:
    """A number below 2^253 by powers of two, lowest first: digits are 0 or odd, from -15 to 15, and after each
    that is not 0 come four that are (the non-adjacent form of width 5)."""
    digits, position = [0] * 254, 0
    while scalar:
        zeros = (scalar & -scalar).bit_length() - 1
        scalar >>= zeros
        position += zeros
        digit = (scalar & 31) - (scalar << 1 & 32)
        digits[position] = digit
        scalar -= digit
    return digits


def _multiples(x: int, y: int) -> _Multiples:
    point = x, y, 1, x * y % _P
    twice = _prepared(_add(point, _prepared(point)))
    multiples = {}
    for factor in range(1, 17, 2):
        less, more, z, t = prepared = _prepared(point)
        multiples[factor], multiples[-factor] = prepared, (more, less, z, -t)
        point = _add(point, twice)
    return multiples


def _prepared(point: _Point) -> _Point:
    x, y, z, t = point
    return y - x, y + x, 2 * z, 2 * _D * t % _P


def _add(point: _Point, prepared: _Point) -> _Point:
    x, y, z, t = point
    less, more, twice_z, scaled_t = prepared
    a, b, c, d = (y - x) * less, (y + x) * more, t * scaled_t, z * twice_z
    e, f, g, h = (b - a) % _P, (d - c) % _P, (d + c) % _P, (b + a) % _P
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P
