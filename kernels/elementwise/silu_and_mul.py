"""``out = silu(x[:, :n]) * x[:, n:]``, the gate of a feed-forward layer whose two halves lie side by side.

Memory is the limit: ``x`` is read once, and ``out``, which is half as wide, is written once. The arithmetic, in f32, runs
in the meantime.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32, Int64

import aot

from .._activations import RoundedSilu, Silu
from .._device import ARCHS, DTYPES, VECTOR_BYTES, await_previous, store
from .._elementwise import ELEMENTWISE_TILINGS, Elementwise, ElementwiseTiling, extents
from ..contracts.elementwise import silu_and_mul as contract

# Elements of half a row. Measured on an H200 in f16: 50896 x 195 takes 11 us element by element, and 19 us in whole chunks
# that are shifted into place. Halves of 200 elements and more gain nothing.
SHORT = 192
MOST_ELEMENTS = 1 << 29  # of a matrix, so that indices have 32 bits


class SiluAndMul(Elementwise):
    lines = False  # a row of `out` is half as long as one of `x`

    def apply(self, gate: cute.TensorSSA, up: cute.TensorSSA) -> cute.TensorSSA:
        silu = Silu if gate.dtype is Float32 else RoundedSilu
        return silu.apply(gate.to(Float32)) * up.to(Float32)

    @cute.jit
    def __call__(self, x: cute.Tensor, out: cute.Tensor, stream: CUstream):
        rows, columns = extents(out)
        layout = cute.make_layout((rows, columns), stride=x.stride)
        # Both halves are aligned to a chunk, because `columns` is a multiple of a chunk.
        up = (x.iterator + columns).align(x.iterator.alignment)
        halves = [cute.make_tensor(x.iterator, layout), cute.make_tensor(up, layout)]
        if cutlass.const_expr(self.tiling.vector):
            self.launch(halves, out, stream)
        else:
            chunk = self.line_chunk
            gapless = (
                x.stride[0] == 2 * columns and out.stride[0] == columns and out.iterator.toint() % VECTOR_BYTES == 0
            )
            short = columns >= chunk and columns <= SHORT and rows <= MOST_ELEMENTS // SHORT
            # Halves of an even number of elements are made of smaller chunks.
            if gapless and short and columns % 2 == 1:
                size = Int32(rows * columns)
                flat = cute.make_tensor(x.iterator, cute.make_layout(2 * size))
                target = cute.make_tensor(out.iterator.align(VECTOR_BYTES), cute.make_layout(size))
                blocks = Int64(cute.ceil_div(size, self.tiling.threads * chunk))
                if blocks > 0:  # CUDA refuses an empty grid
                    self.flat_kernel(flat, target, Int32(columns)).launch(**self.grid(blocks), stream=stream)
            else:
                self.launch_anywhere(halves, out, stream)

    @cute.kernel
    def flat_kernel(self, x: cute.Tensor, out: cute.Tensor, columns: Int32):
        """Rows without gaps, so short that a thread may as well read its elements one by one, from two rows if need be."""
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        chunk = self.line_chunk
        index = block * self.tiling.threads + thread
        first, size = index * chunk, cute.size(out)
        row = first // columns
        left = (row + 1) * columns - first  # elements of this row
        last = 2 * size - columns - 1  # the last element of a first half
        await_previous(self.early)
        gates, ups = (cute.make_rmem_tensor(chunk, out.element_type) for _ in range(2))
        for i in cutlass.range_constexpr(chunk):
            before = Int32(cutlass.select_(i < left, row, row + 1))
            place = cutlass.min(first + i + before * columns, last)
            gates[i], ups[i] = x[place], x[place + columns]
        values = self.apply(gates.load(), ups.load())
        store(values, out, index, size // chunk, chunk)
        if index == size // chunk:
            rounded = cute.make_rmem_tensor(chunk, out.element_type)
            rounded.store(values.to(out.element_type))
            for i in cutlass.range_constexpr(chunk - 1):
                if first + i < size:
                    out[first + i] = rounded[i]


@aot.kernel(
    parameters=(aot.In("x"), aot.Out("out", shape="(x.shape[0], x.shape[1] // 2)", dtype="x.dtype")),
    archs=ARCHS,
    axes={"dtype": DTYPES, "access": ELEMENTWISE_TILINGS},
    contract=contract,
    backward=aot.Backward("silu_and_mul_backward", saves="x", gradients="x"),
)
def silu_and_mul(target: aot.Target, dtype: str, access: ElementwiseTiling) -> aot.Spec:
    """``out = silu(x[:, :n]) * x[:, n:]`` for ``x`` of ``(m, 2 n)``, computed in f32."""
    made = SiluAndMul(access, target, 2, dtype)
    both = aot.Dim("both", divisible_by=made.chunk, bits=64)
    x = aot.Tensor(dtype, (aot.Dim("m", bits=64), both), align=VECTOR_BYTES if access.vector else None)
    return aot.Spec(made, {"x": x, "out": made.tensor, "stream": aot.Stream()}, ("both == 2 * n",))
