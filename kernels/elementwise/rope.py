"""``out = x`` with pairs of elements of each head turned by an angle: rotary position embedding.

Element ``i`` of a head's first half and element ``i`` of its second half are a pair, as in most public models. The angles,
as ``cos`` and ``sin`` in f32, depend on the token and on ``i``, not on the head.

Memory is the limit: ``x`` is read once and ``out`` is written once. A thread takes the same chunk of both halves of a
head. The heads of a token read the same angles, mostly from a cache: measured on an H200, that is as fast as threads that
read them once for several heads, and faster if there are few tokens.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32

import aot

from .._device import ARCHS, DTYPES, VECTOR_BYTES, KernelObject, await_previous, chunk_elements, fetch, launched_early
from .._device import store as store_chunk
from ..contracts.elementwise import rope as contract

THREADS = 128
WIDTH = 32  # threads side by side in a head, at most


class Rope(KernelObject):
    def __init__(self, target: aot.Target, chunk: int) -> None:
        self.early = launched_early(target)
        self.chunk = chunk  # elements

    @cute.kernel
    def kernel(self, x: cute.Tensor, cos: cute.Tensor, sin: cute.Tensor, out: cute.Tensor, shift: Int32):
        """``1 << shift`` threads share a head."""
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        tokens, heads, elements = x.shape
        chunks = elements // (2 * self.chunk)  # of half a head
        group = block * (THREADS >> shift) + (thread >> shift)
        token, head = group // heads, group % heads
        await_previous(self.early)
        if token < tokens:
            lane = thread & ((1 << shift) - 1)
            for index in cutlass.range(lane, chunks, 1 << shift):
                self.turn(x[token, head, None], cos[token, None], sin[token, None], out[token, head, None], index)

    @cute.jit
    def turn(self, x: cute.Tensor, cos: cute.Tensor, sin: cute.Tensor, out: cute.Tensor, index: Int32):
        """Turn chunk ``index`` of both halves of a head."""
        chunks = cute.size(x) // (2 * self.chunk)
        first, second = [fetch(x, at, self.chunk).load().to(Float32) for at in (index, chunks + index)]
        cosines, sines = fetch(cos, index, self.chunk).load(), fetch(sin, index, self.chunk).load()
        store_chunk(first * cosines - second * sines, out, index, 2 * chunks, self.chunk)
        store_chunk(second * cosines + first * sines, out, chunks + index, 2 * chunks, self.chunk)

    @cute.jit
    def __call__(self, x: cute.Tensor, cos: cute.Tensor, sin: cute.Tensor, out: cute.Tensor, stream: CUstream):
        tokens, heads, elements = x.shape
        # The number of threads side by side is a power of two, so that a thread finds its place by shifts.
        shift = Int32(0)
        while (1 << shift) < WIDTH and (self.chunk << (shift + 1)) < elements:
            shift += 1
        blocks = cute.ceil_div(tokens * heads, THREADS >> shift)
        if blocks > 0 and elements > 0:  # CUDA refuses an empty grid
            self.kernel(x, cos, sin, out, shift).launch(
                grid=[blocks, 1, 1], block=[THREADS, 1, 1], use_pdl=self.early, stream=stream
            )


@aot.kernel(
    parameters=(
        aot.In("x", "tokens, heads, elements of a head"),
        aot.In("cos", "of each token, for each element of half a head, in f32"),
        aot.In("sin", "likewise"),
        aot.Out("out", shape="x.shape", dtype="x.dtype", may_be="x"),
    ),
    archs=ARCHS,
    axes={"dtype": DTYPES, "access": ("vector", "scalar")},
    contract=contract,
    backward=aot.Composed(x="rope(grad_out, cos, -sin)"),  # turned back
)
def rope(target: aot.Target, dtype: str, access: str) -> aot.Spec:
    """Both halves ``a`` and ``b`` of each head become ``a * cos - b * sin`` and ``b * cos + a * sin``, computed in f32."""
    vector = access == "vector"
    chunk = chunk_elements(dtype, vector)
    align = VECTOR_BYTES if vector else None
    x = aot.Tensor(dtype, ("m", "heads", aot.Dim("d", divisible_by=2 * chunk)), align=align)
    angles = aot.Tensor("f32", ("m", aot.Dim("half", divisible_by=chunk)), align=align)
    arguments = {"x": x, "cos": angles, "sin": angles, "out": x, "stream": aot.Stream()}
    return aot.Spec(Rope(target, chunk), arguments, ("d == 2 * half",))
