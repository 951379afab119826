"""What of rowlib goes into a bundle: every call below is captured once."""

from rowlib.adding import add
from rowlib.scaling import scale

for dtype in ("f16", "f32"):
    scale(None, None, None, dtype=dtype, n=64)
scale(None, 0, None, 2.0, dtype="f16", n=96)


def double(value):
    return value * 2.0


add(None, None, None)
add(None, None, None, bias=0, modify=double)
