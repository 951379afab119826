"""An order of floating-point numbers, for kernels that look for the largest."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

LARGEST_KEY = 0x7FFFFFFF  # of NaN
NO_KEY = -0x80000000  # below the key of every number


@cute.jit
def order_key(value: Float32) -> Int32:
    """An integer that is larger for a larger number. NaN is the largest; zeros of both signs are equal."""
    bits = value.bitcast(Int32)
    key = bits if bits >= 0 else bits ^ 0x7FFFFFFF
    key = Int32(0) if value == 0.0 else key
    return key if value == value else Int32(LARGEST_KEY)


def larger(left, right):
    return cutlass.max(left, right)
