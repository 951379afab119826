"""A library that compiles without TVM-FFI, and calls what it compiled in CuTe DSL's own convention."""

from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass.cute.runtime import from_dlpack, make_ptr

N = 64


class Sizes(NamedTuple):
    rows: cutlass.Int32
    factor: cutlass.Float32


@cute.kernel
def kernel(x: cute.Tensor, out: cute.Pointer, sizes: Sizes, bias: cute.Tensor | None):
    row, thread = cute.arch.block_idx()[0], cute.arch.thread_idx()[0]
    result = cute.make_tensor(out, cute.make_layout((sizes.rows, N), stride=(N, 1)))
    value = x[row, thread] * sizes.factor
    if cutlass.const_expr(bias is not None):
        value = value + bias[thread]
    result[row, thread] = value


@cute.jit
def scale(
    x: cute.Tensor,
    out: cute.Pointer,
    sizes: Sizes,
    bias: cute.Tensor | None,
    blocks: cutlass.Constexpr[int],
    stream: CUstream,
):
    kernel(x, out, sizes, bias).launch(grid=[sizes.rows, blocks, 1], block=[N, 1, 1], stream=stream)


@cute.kernel
def fill_kernel(out: cute.Pointer, rows: cutlass.Int32, value: cutlass.Constexpr[float]):
    result = cute.make_tensor(out, cute.make_layout((rows, N), stride=(N, 1)))
    result[cute.arch.block_idx()[0], cute.arch.thread_idx()[0]] = value


class Fill:
    def __init__(self, value: float) -> None:
        self.value = value

    @cute.jit
    def run(self, out: cute.Pointer, blocks: cutlass.Constexpr[int], rows: cutlass.Int32, stream: CUstream):
        self.threads = N, 1  # callers may ask for it
        fill_kernel(out, rows, self.value).launch(grid=[rows, blocks, 1], block=[N, 1, 1], stream=stream)


def fill_rows(address: int, rows: int, stream: int):
    """Calls the host function: CuTe DSL compiles it on the way."""
    out = make_ptr(cutlass.Float32, address, cute.AddressSpace.gmem, assumed_align=16)
    fill = Fill(1.5)
    fill.run(out, 1, rows=cutlass.Int32(rows), stream=CUstream(stream), no_cache=True)
    return fill


def compile_scale():
    x = cute.runtime.make_fake_compact_tensor(cutlass.Float32, (cute.sym_int(), N), stride_order=(1, 0))
    out = make_ptr(cutlass.Float32, 16, cute.AddressSpace.gmem, assumed_align=16)
    stream = cute.runtime.make_fake_stream()
    return cute.compile(scale, x, out, Sizes(cutlass.Int32(1), cutlass.Float32(1.0)), None, 1, stream)


def arguments(x, address: int, stream: int):
    """As callers pass them: constants are left out."""
    rows = from_dlpack(x).mark_layout_dynamic()
    out = make_ptr(cutlass.Float32, address, cute.AddressSpace.gmem, assumed_align=16)
    sizes = Sizes(cutlass.Int32(x.shape[0]), cutlass.Float32(2.0))
    return rows, out, sizes, None, CUstream(stream)
