"""Products of f32 that is rounded to TF32, on Hopper.

TMA rounds to TF32 while it copies into shared memory, so that wgmma, which ignores the lower bits, loses nothing. Its sums
are cut off instead of rounded, so the sums of two steps along k are promoted at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32, TFloat32
from cutlass.cute.nvgpu import OperandMajorMode
from cutlass.cute.nvgpu.warpgroup import MmaF8Op, OperandSource

from .._activations import Activation, activate
from ..sm90.epilogue import Epilogue, Place, Store
from ..sm90.hardware import WGMMA_ROWS, column_offset, row_offset
from ..sm90.mainloop import UNROLLED, PromotedMainloop, Types
from ..sm90.product import Product
from ._f32_portable import CHUNK, write_sums

MMA_DEPTH = 8  # elements along k of one instruction


class Tf32Op(MmaF8Op):
    """The instruction for TF32, which CuTe DSL has no class for. Both operands are contiguous along k, as those of f8."""

    descriptive_name = "warpgroup TF32 MMA Operation"

    def _verify(self) -> None:
        assert (self.a_dtype, self.b_dtype, self.acc_dtype) == (TFloat32, TFloat32, Float32)


@dataclass(frozen=True)
class Tf32Mainloop(PromotedMainloop):
    unrolled_loads = UNROLLED

    def instruction(self, types: Types, columns: int) -> cute.TiledMma:
        major, shape = OperandMajorMode.K, (WGMMA_ROWS, columns, MMA_DEPTH)
        operation = Tf32Op(TFloat32, TFloat32, Float32, shape, OperandSource.SMEM, major, major)
        return cute.make_tiled_mma(cute.make_mma_atom(operation), (1, 1, 1))


@dataclass(frozen=True)
class F32BiasActivation(Epilogue):
    """``activation(sums + bias)`` in f32. Arguments: the bias, without elements if there is none; the activation's number."""

    activations: tuple[type[Activation], ...]

    def begin(self, arguments, floats, place: Place):
        return arguments

    @cute.jit
    def transform(self, sums, state, floats, part: cutlass.Constexpr, mma, place: Place):
        """Add the bias; then apply the activation to a few sums at a time, to save registers."""
        bias, which = state
        if cute.size(bias) > 0:
            first = place.row(0) if cutlass.const_expr(self.tiling.swapped) else place.column()
            for v in cutlass.range_constexpr(cute.size(sums)):
                after = part * WGMMA_ROWS + row_offset(v) if self.tiling.swapped else column_offset(v)
                sums[v] += bias[cutlass.min(first + after, cute.size(bias) - 1)]
        for start in cutlass.range_constexpr(0, cute.size(sums), CHUNK):
            chunk = cute.make_tensor(sums.iterator + start, cute.make_layout(CHUNK))
            activate(chunk, which, self.activations)


@dataclass(frozen=True)
class DirectBiasActivation(F32BiasActivation):
    """The same for an output of any strides: results go from registers to memory."""

    direct = True

    @cute.jit
    def write(self, mma, instruction: cutlass.Constexpr, sums, state, floats, store: Store, place: Place):
        (bias, which), tiling, mine = state, self.tiling, mma.get_slice(place.thread)
        count = cute.size(sums) // tiling.parts
        tile = (WGMMA_ROWS, tiling.written_columns)
        for p in cutlass.range_constexpr(tiling.parts):
            part = cute.make_tensor(sums.iterator + p * count, cute.make_layout(count))
            out = store.out[None, None, place.batch]
            write_sums(mine, part, bias, which, self.activations, out, tile, place.top // WGMMA_ROWS + p, place.n)


class Tf32Gemm(Product):
    @cute.jit
    def __call__(
        self, a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, bias, epilogue: Int32, clusters: Int32, stream: CUstream
    ):
        a, b = [cute.recast_tensor(matrix, TFloat32) for matrix in (a, b)]
        self.launch(a, b, out, (bias, epilogue), None, clusters, stream)
