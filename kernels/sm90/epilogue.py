"""The epilogue of a product: what becomes of the sums of a tile, and how they are stored.

An epilogue is one object. For each tile, a consumer warp group calls it in this order:

1. :meth:`Epilogue.begin` before the mainloop. What is loaded here arrives while the tile is multiplied.
2. :meth:`Epilogue.summed` after it.
3. For each block of 64 rows, :meth:`Epilogue.transform`, which may change the sums in place;
4. for each slice of its columns, :meth:`Epilogue.values`: what is rounded and stored.

:class:`Epilogue` stores the sums as they are. To write another epilogue, override the methods that differ. :class:`Place`
tells where a sum is in the output.

Guarantees: slices go through shared memory, so that TMA writes whole lines. A buffer is filled again only after the previous
store has read it. Rows of another expert and memory between rows are not written. A block does not end before its stores
have read shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.cute.nvgpu import cpasync
from cutlass.utils import LayoutEnum, hopper_helpers

from .._buffers import stores_in_flight
from . import hardware as hw
from .tiling import FLOAT_BYTES, STORED_COLUMNS, Tiling

CHUNK_BYTES = 16  # of the widest access


class Place(NamedTuple):
    """Where the tile of a warp group is in the output, and which of its threads asks."""

    top: Int32  # its first row
    n: Int32  # its place along n, in units of the columns that it stores
    batch: Int32
    expert: Int32
    limit: Any  # the end of the expert's rows, or None
    group: Int32
    thread: Int32
    width: int  # the columns that it stores

    def row(self, part: int, v: int = 0):
        """The row of accumulator ``v`` of this thread in a block of 64 rows."""
        return self.top + part * hw.WGMMA_ROWS + hw.row_offset(v) + hw.accumulator_row(self.thread)

    def column(self, v: int = 0):
        """The column of accumulator ``v`` of this thread."""
        return self.n * self.width + hw.accumulator_column(self.thread) + hw.column_offset(v)


def load_rows(own: cute.Tensor, vector: cute.Tensor, place: Place) -> None:
    """Elements of a vector for the rows of this thread, two of each 64. The last one serves those that it does not have."""
    for i in range(cute.size(own)):
        own[i] = vector[cutlass.min(place.row(i // 2, i % 2 * 2), cute.size(vector) - 1)]


class Store(NamedTuple):
    """How slices are stored, where to, and where they are in shared memory."""

    copy: Any  # None: threads store them
    tiles: Any  # the output as TMA addresses it
    shared: Any
    out: Any  # the output as threads address it


@dataclass(frozen=True)
class Epilogue:
    """Stores the sums as they are."""

    tiling: Tiling

    barriers = hw.Barriers()
    direct = False  # whether threads store results, instead of TMA

    @property
    def chunk(self) -> int:
        """Elements of the output in a chunk."""
        return CHUNK_BYTES // self.tiling.out_bytes

    @property
    def along(self) -> int:
        """The mode of a tile along which the output is contiguous."""
        return 0 if self.tiling.swapped else 1

    # Shared memory.

    @property
    def floats(self) -> int:
        """Floats in shared memory for each consumer warp group."""
        return 0

    @property
    def shared_bytes(self) -> int:
        return (0 if self.direct else self.tiling.store_bytes) + hw.CONSUMERS * self.floats * FLOAT_BYTES

    def allocate(self, shared):
        """What the threads of a warp group share: its :attr:`floats`, by warp group."""
        if self.floats == 0:
            return None
        return shared.allocate_tensor(Float32, cute.make_layout((self.floats, hw.CONSUMERS)), 16)

    def staged(self, dtype) -> Any:
        """The layout of slices in shared memory: for each warp group, its buffers."""
        tiling = self.tiling
        if self.direct:
            return None
        return hopper_helpers.make_smem_layout_epi(
            dtype,
            LayoutEnum.COL_MAJOR if tiling.swapped else LayoutEnum.ROW_MAJOR,
            (hw.WGMMA_ROWS, tiling.slice_columns),
            tiling.store_stages * hw.CONSUMERS,
        )

    def tma_store(self, out: cute.Tensor, staged) -> tuple:
        """How TMA stores a slice, and the output as it addresses it: the whole chunks of its rows."""
        if self.direct:
            return None, None
        # If a row ends inside a chunk, TMA would write zeros up to the chunk's end. An extent of 0 is not possible.
        shape = list(out.shape)
        shape[self.along] = cutlass.max(shape[self.along] // self.chunk, 1) * self.chunk
        return cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileS2GOp(),
            cute.make_tensor(out.iterator, cute.make_layout(tuple(shape), stride=out.stride)),
            cute.select(staged, mode=[0, 1]),
            (hw.WGMMA_ROWS, self.tiling.slice_columns),
        )

    def allocate_staged(self, shared, dtype, staged):
        if self.direct:
            return None
        return shared.allocate_tensor(dtype, staged.outer, hw.ALIGNMENT, swizzle=staged.inner)

    # What an epilogue computes.

    def begin(self, arguments, floats, place: Place):
        """Start to load what the tile needs; the result is passed on as ``state``."""

    def summed(self, state, floats, place: Place) -> None:
        """The tile is multiplied."""

    def transform(self, sums, state, floats, part: int, mma: cute.TiledMma, place: Place):
        """Change the sums of a block of 64 rows in place; the result is passed on to :meth:`values`."""

    def values(self, sums, slice_index: int, values, of_part, state) -> None:
        """Fill ``values`` with what is stored of a slice of a block of rows. A thread has the sums of a slice in a row."""
        start = sums.iterator + slice_index * cute.size(values)
        values.store(cute.make_tensor(start, values.layout).load())

    # Storing.

    def copy_to_shared(self, dtype, mma: cute.TiledMma, instruction) -> cute.TiledCopy:
        """How a thread writes a slice to shared memory; ``instruction(columns)`` multiplies that number of columns."""
        if dtype.width == Float32.width:
            # Two neighbours of a row at once; in an output that is swapped, these are apart.
            bits = dtype.width * (1 if self.tiling.swapped else 2)
            atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), dtype, num_bits_per_copy=bits)
            return cute.make_tiled_copy_C(atom, instruction(self.tiling.slice_columns))
        count = 2 if self.tiling.slice_columns % STORED_COLUMNS else 4
        matrices = cute.make_copy_atom(cute.nvgpu.warp.StMatrix8x8x16bOp(self.tiling.swapped, count), dtype)
        return cute.make_tiled_copy_S(matrices, cute.make_tiled_copy_C_atom(matrices, mma))

    @cute.jit
    def write(self, mma, instruction: cutlass.Constexpr, sums, state, floats, store: Store, place: Place):
        """Transform and round a tile; then through shared memory to the output."""
        tiling = self.tiling
        parts, slices, stages, width = tiling.parts, tiling.slices, tiling.store_stages, tiling.slice_columns
        dtype, thread = store.shared.element_type, place.thread
        together = self.barriers.together(place.group)
        columns = cute.size(store.out, mode=[self.along])
        whole = columns - columns % self.chunk  # what TMA writes of a row
        # One warp stores and waits for stores, because a thread waits for no groups but its own.
        storing = cute.arch.make_warp_uniform(thread // hw.WARP) == 0 and whole > 0
        copy = self.copy_to_shared(dtype, mma, instruction)
        mine = copy.get_slice(thread)
        target = mine.partition_D(store.shared)
        values = cute.make_rmem_tensor(cute.shape(mine.partition_S(store.shared))[:3], Float32)
        rounded = cute.make_rmem_tensor_like(values, dtype)
        count = cute.size(sums) // parts
        for p in cutlass.range_constexpr(parts):
            own = cute.make_tensor(sums.iterator + p * count, cute.make_layout(count))
            of_part = self.transform(own, state, floats, p, mma, place)
            first = place.top + p * hw.WGMMA_ROWS
            out = cute.domain_offset((first, 0), store.tiles[None, None, place.batch])
            stored, stored_to = cpasync.tma_partition(
                store.copy,
                0,
                cute.make_layout(1),
                cute.group_modes(store.shared, 0, 2),
                cute.group_modes(cute.local_tile(out, (hw.WGMMA_ROWS, width), (0, None)), 0, 2),
            )
            for i in cutlass.range_constexpr(slices):
                index = p * slices + i
                buffer, at = place.group * stages + index % stages, place.n * slices + i
                self.values(own, i, values, of_part, state)
                rounded.store(values.load().to(dtype))
                if storing:  # the store that read this buffer last has finished
                    cute.arch.cp_async_bulk_wait_group(stores_in_flight(index, parts * slices, stages), read=True)
                together.arrive_and_wait()  # and the other warps know it
                cute.copy(copy, rounded, target[None, None, None, buffer])
                # TMA reads shared memory through another proxy: it must see what every thread has written. So each thread
                # fences its own writes, and all meet before one warp starts the store.
                cute.arch.fence_proxy("async.shared", space="cta")
                together.arrive_and_wait()
                if cutlass.const_expr(place.limit is None):
                    if storing:
                        cute.copy(store.copy, stored[None, buffer], stored_to[None, at])
                        cute.arch.cp_async_bulk_commit_group()
                    if whole < columns:
                        self.write_tail(store, buffer, first, at * width, whole, place)
                else:  # rows of experts are whole chunks
                    if first + hw.WGMMA_ROWS <= place.limit:
                        if storing:
                            cute.copy(store.copy, stored[None, buffer], stored_to[None, at])
                            cute.arch.cp_async_bulk_commit_group()
                    else:
                        self.write_rows(store, buffer, first, at, place)
                        if storing:
                            cute.arch.cp_async_bulk_commit_group()  # empty: waiting counts groups

    @cute.jit
    def write_tail(self, store: Store, buffer, first, start, whole, place: Place):
        """The elements of rows after their last whole chunk, if the slice from ``(first, start)`` on has them."""
        slice_shape, corner = (hw.WGMMA_ROWS, self.tiling.slice_columns), (first, start)
        out, shared = store.out[None, None, place.batch], store.shared[None, None, buffer]
        left = corner[self.along]
        if left <= whole and whole < left + slice_shape[self.along]:
            for i in cutlass.range(place.thread, slice_shape[1 - self.along] * self.chunk, hw.WARP_GROUP, unroll=1):
                row, column = i // self.chunk, whole - left + i % self.chunk
                at = (column, row) if cutlass.const_expr(self.tiling.swapped) else (row, column)
                target = (first + at[0], start + at[1])
                if cute.elem_less(target, out.shape):
                    out[target] = shared[at]

    @cute.jit
    def write_rows(self, store: Store, buffer, first, at, place: Place):
        """The rows of a slice that belong to the expert; those below are another's."""
        width, chunk = self.tiling.slice_columns, self.chunk
        row_chunks, thread = width // chunk, place.thread
        atom = cute.make_copy_atom(
            cute.nvgpu.CopyUniversalOp(), store.shared.element_type, num_bits_per_copy=8 * CHUNK_BYTES
        )
        chunks = cute.make_tiled_copy_tv(
            atom,
            cute.make_layout((hw.WARP_GROUP // row_chunks, row_chunks), stride=(row_chunks, 1)),
            cute.make_layout((1, chunk)),
        )
        source = chunks.get_slice(thread).partition_S(store.shared[None, None, buffer])
        out = store.out[None, None, 0]
        columns = cute.size(out, mode=[1])
        for i in cutlass.range_constexpr(hw.WGMMA_ROWS * row_chunks // hw.WARP_GROUP):
            row = first + i * (hw.WARP_GROUP // row_chunks) + thread // row_chunks
            column = at * width + thread % row_chunks * chunk
            values = cute.make_rmem_tensor_like(source[None, i, 0])
            cute.autovec_copy(source[None, i, 0], values)
            if row < place.limit and column < columns:
                line = cute.local_tile(out[row, None], (chunk,), (column // chunk,))
                line = cute.make_tensor(line.iterator.align(CHUNK_BYTES), line.layout)
                cute.autovec_copy(cute.make_tensor(values.iterator, cute.make_layout(chunk)), line)

    def finish(self) -> None:
        """Shared memory must outlive the stores that read it."""
        cute.arch.cp_async_bulk_wait_group(0, read=True)
