"""A kernel that only reads: how fast a GPU can read memory, beside kernels that are limited by that."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Int32

import aot

THREADS, UNROLL, CHUNK = 512, 8, 4  # a chunk is 16 bytes
BLOCKS = 4  # of a multiprocessor, at once


@cute.kernel
def read_chunks(x: cute.Tensor, out: cute.Tensor):
    block, _, _ = cute.arch.block_idx()
    blocks, _, _ = cute.arch.grid_dim()
    thread, _, _ = cute.arch.thread_idx()
    total = cute.full(CHUNK, 0, Int32)
    for step in cutlass.range(block, cute.size(x) // (THREADS * UNROLL * CHUNK), blocks):
        chunks = [cute.make_rmem_tensor(CHUNK, Int32) for _ in range(UNROLL)]
        for i in cutlass.range_constexpr(UNROLL):
            index = (step * UNROLL + i) * THREADS + thread
            cute.autovec_copy(cute.local_tile(x, (CHUNK,), (index,)), chunks[i])
        for i in cutlass.range_constexpr(UNROLL):
            total = total ^ chunks[i].load()
    out[thread] = total[0] ^ total[1] ^ total[2] ^ total[3]


@cute.jit
def read_all(x: cute.Tensor, out: cute.Tensor, multiprocessors: Int32, stream: CUstream):
    read_chunks(x, out).launch(grid=[multiprocessors * BLOCKS, 1, 1], block=[THREADS, 1, 1], stream=stream)


@aot.kernel(parameters=(aot.In("x"), aot.Out("out", shape=f"({THREADS},)", dtype="i32")), archs=("sm_80", "sm_90a"))
def read(target: aot.Target) -> aot.Spec:
    """Reads ``x`` and forgets it. What is written only keeps the compiler from leaving out the reads."""
    x = aot.Tensor("i32", (aot.Dim("n", divisible_by=THREADS * UNROLL * CHUNK),), align=16)
    out = aot.Tensor("i32", (THREADS,))
    return aot.Spec(read_all, {"x": x, "out": out, "sms": aot.Multiprocessors(), "stream": aot.Stream()})
