"""GEMM of f32 that is rounded to TF32, for sm_90a: the structure of the products in f8, with other numbers.

TMA rounds to TF32 while it copies into shared memory, so that wgmma, which ignores the lower bits, loses nothing. Its sums
are cut off instead of rounded, so the sums of two steps along k are added up in f32 registers.
"""

from __future__ import annotations

from collections.abc import Sequence

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32, TFloat32
from cutlass.cute.nvgpu import OperandMajorMode
from cutlass.cute.nvgpu.warpgroup import MmaF8Op, OperandSource

import aot

from ..elementwise.activation import Activation
from ..products import _product_sm90
from ..products._order import Scaling
from ..products._product_sm90 import STEP_BYTES, WGMMA_ROWS
from ._gemm_f32 import CHUNK, WrittenGemm

MMA_DEPTH = 8  # elements along k of one instruction
SUMMED_STEPS = 2  # of 32 elements along k each, which the tensor cores sum before the sum is added up in f32 registers


class Tf32Op(MmaF8Op):
    """The instruction for TF32, which CuTe DSL has no class for. Both operands are contiguous along k, as those of f8."""

    descriptive_name = "warpgroup TF32 MMA Operation"

    def _verify(self) -> None:
        assert (self.a_dtype, self.b_dtype, self.acc_dtype) == (TFloat32, TFloat32, Float32)


class Tiling(_product_sm90.Tiling):
    """A block computes ``m`` x ``n`` of the output, 32 along ``k`` at a time."""

    out_bytes = 4

    @property
    def least_k(self) -> int:
        """The least ``k`` of which each block of a cluster has a part."""
        return (self.split - 1) * SUMMED_STEPS * STEP_BYTES * 8 // TFloat32.width + 1


class DirectTiling(Tiling):
    """A tiling whose results do not go through shared memory."""

    epilogue_bytes = 0

    @property
    def label(self) -> str:
        return f"{super().label}_direct"


class Tf32Gemm(_product_sm90.Product, WrittenGemm):
    summed_steps = SUMMED_STEPS

    def __init__(self, tiling: Tiling, target: aot.Target, epilogues: Sequence[type[Activation]]) -> None:
        scaling = Scaling(promoted=True)
        tiling.validate(target, scaling)
        _product_sm90.Product.__init__(self, tiling, target, scaling)
        self.epilogues = tuple(epilogues)

    @cute.jit
    def __call__(
        self, a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, bias, epilogue: Int32, clusters: Int32, stream: CUstream
    ):
        a, b = [cute.recast_tensor(matrix, TFloat32) for matrix in (a, b)]
        # Bias and epilogue go where the other products have their scales, which are swapped along with a and b.
        scales = (epilogue, bias) if cutlass.const_expr(self.tiling.swapped) else (bias, epilogue)
        _product_sm90.Product.__call__(self, a, b, out, *scales, None, clusters, stream)

    def instruction(self, columns: int) -> cute.TiledMma:
        major, shape = OperandMajorMode.K, (WGMMA_ROWS, columns, MMA_DEPTH)
        operation = Tf32Op(TFloat32, TFloat32, Float32, shape, OperandSource.SMEM, major, major)
        return cute.make_tiled_mma(cute.make_mma_atom(operation), (1, 1, 1))

    def fetch_scales(self, bias, epilogue, shared_scale, expert, top, n, thread, group):
        """The bias, the place in it of a thread's first sum, and the epilogue."""
        first = (
            top + self.row_in_part(thread) if self.tiling.swapped else n * self.tiling.written_columns + thread % 4 * 2
        )
        return bias, first, epilogue

    def copy_to_shared(self, mma: cute.TiledMma) -> cute.TiledCopy:
        # Two neighbours of a row at once; in an output that is swapped, these are apart.
        bits = Float32.width * (1 if self.tiling.swapped else 2)
        atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), Float32, num_bits_per_copy=bits)
        return cute.make_tiled_copy_C(atom, self.instruction(self.tiling.slice_columns))

    @cute.jit
    def finish(self, sums, own_scale, shared_scale, part: cutlass.Constexpr, n, thread, group):
        """Add the bias; then apply the epilogue to a few sums at a time, to save registers."""
        bias, first, epilogue = own_scale
        if cute.size(bias) > 0:
            # Four sums in a row belong to rows i, i, i + 8 and i + 8, and to columns j, j + 1, j and j + 1.
            for v in cutlass.range_constexpr(cute.size(sums)):
                after = part * WGMMA_ROWS + v // 2 % 2 * 8 if self.tiling.swapped else v // 4 * 8 + v % 2
                sums[v] += bias[cutlass.min(first + after, cute.size(bias) - 1)]
        for start in cutlass.range_constexpr(0, cute.size(sums), CHUNK):
            chunk = cute.make_tensor(sums.iterator + start, cute.make_layout(CHUNK))
            self.activate(chunk, epilogue)


class DirectTf32Gemm(Tf32Gemm):
    """The same for an output of any strides: results go from registers to memory."""

    def stores(self, out: cute.Tensor):
        return None, None, None

    @cute.jit
    def write(
        self, mma, sums, finish, shared_scale, shared_out, store_out, out_tiles, out, top, limit, n, thread, group
    ):
        bias, _, epilogue = finish
        tiling, mine = self.tiling, mma.get_slice(thread)
        count = cute.size(sums) // tiling.parts
        for p in cutlass.range_constexpr(tiling.parts):
            part = cute.make_tensor(sums.iterator + p * count, cute.make_layout(count))
            tile = (WGMMA_ROWS, tiling.written_columns)
            WrittenGemm.write(self, mine, part, bias, epilogue, out, tile, top // WGMMA_ROWS + p, n)
