"""An epilogue that reads matrices as wide as the product, and writes as many.

Slices of what is read arrive by TMA where slices of the results leave: a thread reads its elements, and writes the results to
their places. The first slices arrive while the tile is multiplied, the others when those before them have left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32
from cutlass.cute.nvgpu import cpasync
from cutlass.utils import LayoutEnum, hopper_helpers

from . import hardware as hw
from .epilogue import Epilogue, Place, Store

STAGES = 2  # slices of all matrices in shared memory, for each warp group


class Matrices(NamedTuple):
    """What is read and what is written, each a batch of matrices, with the copies that move slices of them."""

    load: Any
    source: Any
    store: Any
    target: Any


class Memory(NamedTuple):
    slices: Any  # rows x columns x (warp groups, stages, matrices)
    full: Any  # an mbarrier for each stage of each warp group


@dataclass(frozen=True)
class Streamed(Epilogue):
    """Subclasses say how many matrices there are, and what the sums and the elements that were read become."""

    dtype: Any

    direct = True  # the slices of the base class are not used
    matrices = 1

    def combine(self, sums: cute.TensorSSA, held: list[cute.TensorSSA]) -> list[cute.TensorSSA]:
        """What is written, for a slice: all are f32."""
        raise NotImplementedError

    def arrange(self, source: cute.Tensor, target: cute.Tensor) -> Matrices:
        """The arguments of the epilogue. Both tensors are batches of matrices."""
        load = self.tma(cpasync.CopyBulkTensorTileG2SOp(), source)
        return Matrices(*load, *self.tma(cpasync.CopyBulkTensorTileS2GOp(), target))

    @property
    def buffers(self) -> int:
        return hw.CONSUMERS * STAGES * self.matrices

    @property
    def slice_bytes(self) -> int:
        return hw.WGMMA_ROWS * self.tiling.slice_columns * self.tiling.out_bytes

    @property
    def shared_bytes(self) -> int:
        return self.buffers * self.slice_bytes + self.buffers * hw.BARRIER_BYTES

    def staged(self, dtype) -> Any:
        """The layout of slices in shared memory."""
        shape = (hw.WGMMA_ROWS, self.tiling.slice_columns)
        return hopper_helpers.make_smem_layout_epi(dtype, LayoutEnum.ROW_MAJOR, shape, self.buffers)

    def tma(self, operation, matrix: cute.Tensor) -> tuple:
        """How TMA moves a slice of a matrix, and the matrix as it addresses it."""
        one = cute.select(self.staged(matrix.element_type), mode=[0, 1])
        return cpasync.make_tiled_tma_atom(operation, matrix, one, (hw.WGMMA_ROWS, self.tiling.slice_columns))

    def allocate(self, shared) -> Memory:
        staged = self.staged(self.dtype)
        full = shared.allocate_array(cutlass.Int64, hw.CONSUMERS * STAGES)
        self.init(full)
        return Memory(shared.allocate_tensor(self.dtype, staged.outer, hw.ALIGNMENT, swizzle=staged.inner), full)

    @cute.jit
    def init(self, full):
        if cute.arch.thread_idx()[0] == 0:
            for i in cutlass.range_constexpr(hw.CONSUMERS * STAGES):
                cute.arch.mbarrier_init(full + i, 1)

    # One warp of a warp group loads, stores, and waits for stores: a thread waits for no groups but its own.

    def moves(self, place: Place):
        return cute.arch.make_warp_uniform(place.thread // hw.WARP) == 0

    def buffer(self, place: Place, number: int, which: int):
        return (place.group * STAGES + number % STAGES) * self.matrices + which

    def barrier(self, memory: Memory, place: Place, number: int):
        return memory.full + (place.group * STAGES + number % STAGES)

    def slice_of(self, atom, matrix, memory: Memory, place: Place, number: int, which: int) -> tuple:
        """Slice ``number`` of the tile: its place in shared memory, and in one of the matrices."""
        part, i = divmod(number, self.tiling.slices)
        own = cute.domain_offset((place.top + part * hw.WGMMA_ROWS, 0), matrix[None, None, which])
        shape = (hw.WGMMA_ROWS, self.tiling.slice_columns)
        shared, tiles = cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.group_modes(memory.slices, 0, 2),
            cute.group_modes(cute.local_tile(own, shape, (0, None)), 0, 2),
        )  # fmt: skip
        return shared[None, self.buffer(place, number, which)], tiles[None, place.n * self.tiling.slices + i]

    def load(self, matrices: Matrices, memory: Memory, place: Place, number: int) -> None:
        """Start to load slice ``number`` of all matrices."""
        full = self.barrier(memory, place, number)
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(full, self.matrices * self.slice_bytes)
        for which in range(self.matrices):
            shared, tile = self.slice_of(matrices.load, matrices.source, memory, place, number, which)
            cute.copy(matrices.load, tile, shared, tma_bar_ptr=full)

    @cute.jit
    def begin(self, matrices, memory, place: Place):
        """Start to load the first slices, when the last ones of the tile before have left."""
        if self.moves(place):
            cute.arch.cp_async_bulk_wait_group(0, read=True)
            for number in cutlass.range_constexpr(STAGES):
                self.load(matrices, memory, place, number)
        return matrices

    @cute.jit
    def write(self, mma, instruction: cutlass.Constexpr, sums, matrices, memory, store: Store, place: Place):
        tiling, dtype, columns = self.tiling, self.dtype, self.tiling.slice_columns
        numbers, together = tiling.parts * tiling.slices, self.barriers.together(place.group)
        out = self.copy_to_shared(dtype, mma, instruction)
        to = out.get_slice(place.thread).partition_D(memory.slices)
        atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), dtype, num_bits_per_copy=2 * dtype.width)
        read = cute.make_tiled_copy_C(atom, instruction(columns))
        source = read.get_slice(place.thread).partition_S(memory.slices)
        # In the order of accumulators: a tensor like the source would have the order of its strides.
        held = [cute.make_rmem_tensor(cute.shape(source)[:3], dtype) for _ in range(self.matrices)]
        rounded = cute.make_rmem_tensor(cute.shape(out.get_slice(place.thread).partition_S(memory.slices))[:3], dtype)
        size = cute.size(rounded)
        for number in cutlass.range_constexpr(numbers):
            cute.arch.mbarrier_wait(self.barrier(memory, place, number), number // STAGES % 2)
            for which, elements in enumerate(held):
                cute.copy(read, source[None, None, None, self.buffer(place, number, which)], elements)
            own = cute.make_tensor(sums.iterator + number * size, cute.make_layout(size)).load()
            given = [cute.make_tensor(x.iterator, cute.make_layout(size)).load().to(Float32) for x in held]
            for which, value in enumerate(self.combine(own, given)):
                cute.make_tensor(rounded.iterator, cute.make_layout(size)).store(value.to(dtype))
                cute.copy(out, rounded, to[None, None, None, self.buffer(place, number, which)])
            # TMA reads shared memory through another proxy: it must see what every thread has written.
            cute.arch.fence_proxy("async.shared", space="cta")
            together.arrive_and_wait()
            if self.moves(place):
                for which in cutlass.range_constexpr(self.matrices):
                    shared, tile = self.slice_of(matrices.store, matrices.target, memory, place, number, which)
                    cute.copy(matrices.store, shared, tile)
                cute.arch.cp_async_bulk_commit_group()
                if cutlass.const_expr(number + STAGES < numbers):
                    cute.arch.cp_async_bulk_wait_group(0, read=True)  # the slice has left: the next one may come
                    self.load(matrices, memory, place, number + STAGES)
