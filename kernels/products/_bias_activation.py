"""The GEMM of 16 bits on Hopper: its epilogue adds a bias and applies an activation that each call names by its number."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32

import aot

from .._activations import Activation, activate
from ..sm90.epilogue import Epilogue, Place
from ..sm90.hardware import WARP_GROUP, WGMMA_ROWS
from ..sm90.mainloop import Mainloop
from ..sm90.product import Product
from ..sm90.tiling import Tiling


@dataclass(frozen=True)
class BiasActivation(Epilogue):
    """``activation(sums + bias)``. Arguments: the bias, without elements if there is none; the activation's number."""

    activations: tuple[type[Activation], ...]

    @property
    def floats(self) -> int:
        """Elements of the bias that one warp group adds: one for each column of the output."""
        return self.tiling.own_rows if self.tiling.swapped else self.tiling.written_columns

    @cute.jit
    def begin(self, arguments, floats, place: Place):
        """This thread's share of the tile's bias, loaded early so that it arrives while the tile is multiplied."""
        bias, which = arguments
        start = place.top if cutlass.const_expr(self.tiling.swapped) else place.n * self.tiling.written_columns
        early = cute.make_rmem_tensor(cute.ceil_div(self.floats, WARP_GROUP), Float32)
        for i in cutlass.range_constexpr(cute.size(early)):
            column = start + i * WARP_GROUP + place.thread
            early[i] = Float32(0)
            if column < cute.size(bias):
                early[i] = Float32(bias[column])
        return early, cute.size(bias) > 0, which

    @cute.jit
    def summed(self, state, floats, place: Place):
        """Put the bias where each thread of the warp group finds that of its columns."""
        early, biased, _ = state
        if biased:
            for i in cutlass.range_constexpr(cute.size(early)):
                if i * WARP_GROUP + place.thread < self.floats:
                    floats[i * WARP_GROUP + place.thread, place.group] = early[i]
            # All threads have written. Those of the last tile's bias have read it: they met in ``write`` after that.
            self.barriers.together(place.group).arrive_and_wait()

    def transform(self, sums, state, floats, part: int, mma: cute.TiledMma, place: Place):
        """The bias of each sum of a block of rows: the same for all rows of the output."""
        shape, bias = (WGMMA_ROWS, self.tiling.written_columns), floats[None, place.group]
        if self.tiling.swapped:
            spread = cute.make_tensor(bias.iterator + part * WGMMA_ROWS, cute.make_layout(shape, stride=(1, 0)))
        else:
            spread = cute.make_tensor(bias.iterator, cute.make_layout(shape, stride=(0, 1)))
        return mma.get_slice(place.thread).partition_C(spread)

    @cute.jit
    def values(self, sums, slice_index: cutlass.Constexpr, values, bias, state):
        _, biased, which = state
        Epilogue.values(self, sums, slice_index, values, bias, state)
        # Most products are stored as they are, and branch only once.
        if biased or which != 0:
            if biased:
                for v in cutlass.range_constexpr(cute.size(values)):
                    values[v] += bias[slice_index * cute.size(values) + v]
            activate(values, which, self.activations)


class Gemm(Product):
    def __init__(self, tiling: Tiling, target: aot.Target, activations: tuple[type[Activation], ...]) -> None:
        super().__init__(Mainloop(tiling), BiasActivation(tiling, activations), target)

    @cute.jit
    def __call__(
        self, a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, bias, epilogue: Int32, clusters: Int32, stream: CUstream
    ):
        self.launch(a, b, out, (bias, epilogue), None, clusters, stream)
