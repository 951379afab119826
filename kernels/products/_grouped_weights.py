"""Products of the transposed rows of experts: cp.async, ldmatrix, mma.sync.

Rows of both matrices are what a product adds up, so each expert has a depth of its own, known on the device alone. All
experts have the same tiles, one block for each.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass.utils import LayoutEnum

import aot

from .._device import KernelObject
from .._scheduler import rows_of_expert, swizzled
from ..sm80.mainloop import Mainloop
from ..sm80.operands import Tiling

COLUMNS = LayoutEnum.COL_MAJOR


class GroupedWeights(Mainloop, KernelObject):
    def __init__(self, tiling: Tiling, target: aot.Target) -> None:
        tiling.validate(target)
        self.tiling = tiling

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, offsets: cute.Tensor, stream: CUstream):
        self.launch(a, b, [out], offsets, stream)

    @cute.jit
    def launch(self, a: cute.Tensor, b: cute.Tensor, matrices: list[cute.Tensor], offsets, stream: CUstream):
        """``matrices``: the output, and what :meth:`write` needs besides, each with a matrix for every expert."""
        experts, n, k = matrices[0].shape
        tiles = cute.ceil_div(n, self.tiling.m), cute.ceil_div(k, self.tiling.n)
        if experts * tiles[0] * tiles[1] > 0:  # CUDA refuses an empty grid
            self.kernel(a, b, matrices, offsets, self.tiled_mma(a.element_type), tiles).launch(
                grid=[experts * tiles[0] * tiles[1], 1, 1], block=[self.tiling.threads, 1, 1], stream=stream
            )

    @cute.kernel
    def kernel(self, a: cute.Tensor, b: cute.Tensor, matrices, offsets, mma: cute.TiledMma, tiles):
        thread, _, _ = cute.arch.thread_idx()
        index, _, _ = cute.arch.block_idx()
        each = tiles[0] * tiles[1]
        expert = index // each
        m, n = swizzled(index % each, *tiles, self.tiling.group)
        start, end = rows_of_expert(offsets, expert)
        rows = cutlass.max(end - start, 0)
        stages = self.stages_of(
            mma, transposed(a, start, rows), m, transposed(b, start, rows), n, (COLUMNS, COLUMNS), thread
        )
        stages.sums.fill(0.0)
        if rows > 0:
            steps = cute.size(stages.operands[0].source, mode=[3])
            self.multiply(*stages.operands, 0, steps, (mma, stages.sums, *stages.fragments))
        own = [matrix[expert, None, None] for matrix in matrices]
        self.write(mma, stages.sums, stages.storage, own, m, n, thread)

    def places(self, out: cute.Tensor, m, n) -> cute.Tensor:
        """Where the elements of a tile are."""
        return cute.local_tile(cute.make_identity_tensor(out.shape), (self.tiling.m, self.tiling.n), (m, n))

    @cute.jit
    def write(self, mma, sums, storage, matrices: list[cute.Tensor], m, n, thread):
        out = matrices[0]
        self.write_rows(mma, sums, storage, out, self.places(out, m, n), cute.size(out, mode=[0]), thread)


class GroupedSums(GroupedWeights):
    """The output is f32. Sums are added to a matrix of the expert, if there is one."""

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, addend, offsets, stream: CUstream):
        self.launch(a, b, [out, addend], offsets, stream)

    @cute.jit
    def write(self, mma, sums, storage, matrices: list[cute.Tensor], m, n, thread):
        out, addend = matrices
        places = mma.get_slice(thread).partition_C(self.places(out, m, n))
        for v in cutlass.range_constexpr(cute.size(sums)):
            if cute.elem_less(places[v], out.shape):
                value = sums[v]
                if cute.size(addend) > 0:
                    value += addend[places[v]]
                out[places[v]] = value


def transposed(matrix: cute.Tensor, start, rows) -> cute.Tensor:
    """The columns of some rows of a matrix, as rows."""
    first = cute.domain_offset((start, 0), matrix)
    layout = cute.make_layout((cute.size(matrix, mode=[1]), rows), stride=(matrix.stride[1], matrix.stride[0]))
    return cute.make_tensor(first.iterator, layout)
