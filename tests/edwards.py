"""The curve of Ed25519 by its textbook formulas, for tests that need signatures which no signer makes."""

from __future__ import annotations

from hashlib import sha512

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P

Point = tuple[int, int]
ZERO: Point = (0, 1)


def add(one: Point, other: Point) -> Point:
    (x1, y1), (x2, y2) = one, other
    k = D * x1 * x2 * y1 * y2 % P
    inverse = pow(1 - k * k, -1, P)
    return (x1 * y2 + x2 * y1) * (1 - k) * inverse % P, (y1 * y2 + x1 * x2) * (1 + k) * inverse % P


def times(factor: int, point: Point) -> Point:
    total = ZERO
    while factor:
        if factor & 1:
            total = add(total, point)
        point = add(point, point)
        factor >>= 1
    return total


def negated(point: Point) -> Point:
    return -point[0] % P, point[1]


def with_y(y: int, *, odd: bool) -> Point | None:
    """The point with that y and an odd or an even x, if the curve has it."""
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * pow(2, (P - 1) // 4, P) % P
    if (x * x - square) % P or (x == 0 and odd):
        return None
    return (x if x & 1 == odd else P - x), y


def encode(point: Point) -> bytes:
    x, y = point
    return (y | (x & 1) << 255).to_bytes(32, "little")


def challenge(r: bytes, key: bytes, message: bytes) -> int:
    return int.from_bytes(sha512(r + key + message).digest(), "little") % ORDER


def scalar(number: int) -> bytes:
    return number.to_bytes(32, "little")


def _base() -> Point:
    point = with_y(4 * pow(5, -1, P) % P, odd=False)
    assert point is not None
    return point


def _of_order_eight() -> Point:
    """Any point times the prime order has an order that divides eight; some have eight itself."""
    for y in range(2, 200):
        point = with_y(y, odd=False)
        small = None if point is None else times(ORDER, point)
        if small is not None and times(4, small) != ZERO:
            return small
    raise AssertionError("no point of order eight was found")


BASE = _base()
SMALL = [times(factor, _of_order_eight()) for factor in range(8)]  # all points whose order divides eight
