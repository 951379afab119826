"""What all kernels share on the host: how wide an access is, and which strides TMA may get."""

from __future__ import annotations

from one_lane import run_as_python

CHUNKS = """
from kernels._device import VECTOR_BYTES, chunk_elements
for dtype, size in (("f32", 4), ("bf16", 2), ("f8e4m3", 1)):
    assert chunk_elements(dtype, True) * size == VECTOR_BYTES == 16
    assert chunk_elements(dtype, False) == 1
"""


def test_a_chunk_is_the_widest_access_or_one_element() -> None:
    run_as_python(CHUNKS)


STRIDES = """
import aot
from kernels._device import forward
rows, batch = aot.Dim("stride", bits=64), aot.Dim("apart", bits=64)
arguments = {"a": aot.Tensor("f32", ("l", "m", "k"), (batch, rows, 1)), "b": aot.Tensor("f32", ("n",), (1,)), "stream": aot.Stream()}
assert sorted(forward(arguments, "a", "b")) == ["apart >= 0", "stride >= 0"]
"""


def test_every_stride_that_a_call_chooses_is_guarded_against_a_negative_one() -> None:
    """The descriptor of a TMA copy would take it for a huge one."""
    run_as_python(STRIDES)
