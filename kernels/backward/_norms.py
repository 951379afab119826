"""What the backward kernels of norms share: gradients of the parameters, which are sums over rows.

The gradient of a weight adds up a product of two matrices over all rows. Many blocks have to share that, and the result
must not depend on which of them ends first. So rows are dealt out to at most ``MOST_GROUPS`` groups by their number. Each
group adds up its rows in a fixed order and writes one row of ``partial``, in f32. Another kernel then adds up the rows of
``partial``. Atomic additions would save that kernel, and would give other bits in every run.

``partial`` and the statistics of the rows are outputs that autograd drops, and not an ``aot.Workspace``: XLA allocates
outputs too, and ``check`` compares them with the reference like all others. The sums read both matrices a second time,
unless a block holds a row in registers: see ``_fused``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32

import aot

from .._device import VECTOR_BYTES, WARP, await_previous, load, store
from .._rows import RowKernel, RowTensors
from .._versions import SmemAllocator
from ..contracts.backward._gradients import GROUP_SUMS, LEAST_GROUPS, MOST_GROUPS

WARPS = 8  # of a block that adds up rows; each takes every eighth row of a group
FINISHING_WARPS = 16  # of a block that adds up sums of groups: few blocks do this, and wait for memory


def groups_of(rows: str, columns: str) -> str:
    """How many groups there are, as an expression."""
    return f"min({rows}, max({LEAST_GROUPS}, min({MOST_GROUPS}, {GROUP_SUMS} // ({columns} + 1))))"


def partial_output(name: str, like: str = "x"):
    """The parameter for the sums of groups of rows, one row per group."""
    shape = f"({groups_of(f'{like}.shape[0]', f'{like}.shape[1]')}, {like}.shape[1])"
    return aot.Out(name, "scratch: sums over groups of rows", shape=shape, dtype="f32")


def partial_tensor(rows: RowTensors) -> aot.Tensor:
    """The argument for it."""
    return aot.Tensor("f32", ("groups", rows.columns), align=VECTOR_BYTES if rows.vector else None)


class NormBackward(RowKernel, ABC):
    """Subclasses compute the gradient of rows, and say with ``terms`` what the gradients of parameters add up.

    They compute a row as ``held`` in registers or ``looped``, from the gradient of the result, ``x``, the weight and, if there
    is one, a gradient to add. Both return the statistics of the row.
    """

    @abstractmethod
    def terms(
        self, grad: cute.TensorSSA, x: cute.TensorSSA, statistics: list[cute.Tensor], row: Int32
    ) -> list[cute.TensorSSA]:
        """What a chunk of a row adds to the gradient of each parameter; ``statistics`` are vectors, one per row."""

    @cute.kernel
    def kernel(self, matrices: list[cute.Tensor], weight, grad_x: cute.Tensor, statistics, eps, inverse):
        row, first, end = self.place(self.extents(matrices, grad_x))
        grad_out, x, *added = [matrix[row, None] for matrix in matrices]
        sources, target = [grad_out, x, weight, *added], grad_x[row, None]
        compute = self.looped if self.tiling.looped else self.held
        found = compute(sources, target, eps, inverse, first, end)
        if first == 0 and end > 0:
            for statistic, value in zip(statistics, found, strict=True):
                statistic[row] = value

    def extents(self, matrices: list[cute.Tensor], grad_x: cute.Tensor) -> cute.Tensor:
        """The matrix that tells the extents of all. Which one it is changes how many registers a kernel takes."""
        return matrices[1]

    @cute.jit
    def launch_apart(self, matrices, weight, grad_x, sums, statistics, partials, eps, stream: CUstream):
        """The gradient of rows, then those of parameters. ``matrices``: the gradient of the result, ``x``, and what is added."""
        rows, columns = grad_x.shape
        if rows > 0:
            inverse = 1 / Float32(columns)
            self.launch(grad_x, lambda own: own.kernel(matrices, weight, grad_x, statistics, eps, inverse), stream)
        self.launch_sums(matrices[0], matrices[1], statistics, partials, sums, stream)

    @cute.jit
    def launch_sums(
        self,
        grad_out: cute.Tensor,
        x: cute.Tensor,
        statistics: list[cute.Tensor],
        partials: list[cute.Tensor],
        sums: list[cute.Tensor],
        stream: CUstream,
    ):
        rows, columns = x.shape
        if rows > 0:
            tiles = cute.ceil_div(columns // self.chunk, WARP)
            grid = [tiles, partials[0].shape[0], 1]
            self.partial_kernel(grad_out, x, statistics, partials).launch(
                **self.block(grid, WARP * WARPS), stream=stream
            )
        self.launch_finish(partials, sums, stream)

    @cute.jit
    def launch_finish(self, partials: list[cute.Tensor], sums: list[cute.Tensor], stream: CUstream):
        grid = [cute.ceil_div(cute.size(sums[0]), WARP), 1, 1]
        self.finish_kernel(partials, sums).launch(**self.block(grid, WARP * FINISHING_WARPS), stream=stream)

    def block(self, grid: list[Int32], threads: int) -> dict:
        """The arguments of ``launch``."""
        return {"grid": grid, "block": [threads, 1, 1], "use_pdl": self.early}

    @cute.kernel
    def partial_kernel(
        self, grad_out: cute.Tensor, x: cute.Tensor, statistics: list[cute.Tensor], partials: list[cute.Tensor]
    ):
        """A block adds up the rows of one group, for 32 chunks of columns."""
        thread, _, _ = cute.arch.thread_idx()
        tile, group, _ = cute.arch.block_idx()
        rows, columns = x.shape
        groups, _ = partials[0].shape
        index = tile * WARP + thread % WARP
        await_previous(self.early)
        totals = [self.full(0.0) for _ in partials]
        first, apart = group + thread // WARP * groups, groups * WARPS
        for step in cutlass.range((cutlass.max(rows - first, 0) + apart - 1) // apart, unroll=4):
            row = first + step * apart
            grad = load(grad_out[row, None], index, self.chunk).load().to(Float32)
            values = load(x[row, None], index, self.chunk).load().to(Float32)
            terms = self.terms(grad, values, statistics, row)
            totals = [total + term for total, term in zip(totals, terms, strict=True)]
        scratch = SmemAllocator().allocate_tensor(Float32, cute.make_layout((WARP, self.chunk, WARPS)))
        for total, partial in zip(totals, partials, strict=True):
            self.over_warps(total, scratch, partial[group, None], index, columns // self.chunk)

    @cute.jit
    def over_warps(self, total: cute.TensorSSA, scratch: cute.Tensor, partial: cute.Tensor, index: Int32, end: Int32):
        """Add up what the warps of a block have, in the order of their numbers, and write the sums."""
        thread, _, _ = cute.arch.thread_idx()
        lane, warp = thread % WARP, thread // WARP
        for i in cutlass.range_constexpr(self.chunk):
            scratch[lane, i, warp] = total[i]
        cute.arch.sync_threads()  # the sums of all warps are there
        if warp == 0:
            sums = cute.make_rmem_tensor(self.chunk, Float32)
            for i in cutlass.range_constexpr(self.chunk):
                value = scratch[lane, i, 0]
                for other in cutlass.range_constexpr(1, WARPS):
                    value = value + scratch[lane, i, other]
                sums[i] = value
            store(sums.load(), partial, index, end, self.chunk)
        cute.arch.sync_threads()  # before the scratch memory is used again

    @cute.kernel
    def finish_kernel(self, partials: list[cute.Tensor], sums: list[cute.Tensor]):
        """A block adds up 32 columns of the groups' sums: each warp some rows, then the warps in their order."""
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        lane, warp = thread % WARP, thread // WARP
        column = block * WARP + lane
        scratch = SmemAllocator().allocate_tensor(Float32, cute.make_layout((WARP, FINISHING_WARPS, len(sums))))
        await_previous(self.early)
        groups, _ = partials[0].shape
        steps = (cutlass.max(groups - warp, 0) + FINISHING_WARPS - 1) // FINISHING_WARPS
        if column < cute.size(sums[0]):
            for i in cutlass.range_constexpr(len(sums)):
                total = Float32(0)
                for step in cutlass.range(steps, unroll=8):
                    total = total + partials[i][warp + step * FINISHING_WARPS, column]
                scratch[lane, warp, i] = total
        cute.arch.sync_threads()  # threads without a column come here, too
        if warp == 0 and column < cute.size(sums[0]):
            for i in cutlass.range_constexpr(len(sums)):
                total = scratch[lane, 0, i]
                for other in cutlass.range_constexpr(1, FINISHING_WARPS):
                    total = total + scratch[lane, other, i]
                sums[i][column] = total.to(sums[i].element_type)
