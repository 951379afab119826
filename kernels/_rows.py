"""What kernels share that must read a whole row before they can write it: how rows are reduced.

A short row belongs to some threads of a warp, a longer one to a block. A row that does not fit into the registers of one
block belongs, from compute capability 9.0 on, to a cluster of blocks. How many threads and blocks share such a row is
decided at the call. Shorter rows have a number of threads that is compiled in: they take some microseconds, and counting
threads at run time would be a tenth of that and more. So a variant has a kernel for each of several numbers of threads,
and its launcher chooses among them: that takes less time to build than variants of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32, Int64

import aot

from ._anywhere import cut_ends, load_anywhere
from ._device import (
    VECTOR_BYTES,
    WARP,
    KernelObject,
    add,
    await_previous,
    chunk_elements,
    copy_chunk,
    launched_early,
    load,
)
from ._versions import SmemAllocator

MAX_CLUSTER = 8  # blocks that share a row: what every GPU with clusters can run
MIN_THREADS = 64  # of a block that has a row, or part of one, to itself
CLUSTER_THREADS = 512  # of a block that shares a row with others: smaller blocks start sooner, as more of them fit
# Chunks, or elements if those are read one by one, of a shared row in a block: with fewer, the blocks would wait longer
# than they read.
MIN_SHARED, MIN_SHARED_ELEMENTS = 1024, 8192
ANY_LENGTH = 0x7FFFFFFF  # elements
FEW_BLOCKS = 128  # fewer blocks than this leave multiprocessors idle
SMALL_BLOCK = 256  # threads of a block that streams a row, unless there are so few blocks
MANY_BLOCKS = 256  # fewer small blocks than this have too few loads on their way
VERY_FEW = 64  # rows, of which each must be longer to be worth a cluster
DOUBLED_BLOCKS = 1024  # from here on, blocks of short rows become half as many, twice as large, which start sooner
WARPS = 6144  # about as many as an H200 runs at the same time


@dataclass(frozen=True)
class RowTiling:
    """A block computes ``rows`` rows with ``threads`` threads each. A thread holds ``unroll`` chunks at a time.

    If ``counted``, ``threads`` is an upper bound: a row gets a block of as many as it needs. If ``shared``, it gets several
    blocks if one of them does not do.
    """

    threads: int
    unroll: int
    rows: int = 1
    looped: bool = False  # loops over rows that are longer than the threads can hold
    counted: bool = False
    shared: bool = False
    streamed: bool = False  # keeps nothing of a row, so that only few rows need several blocks each
    shifted: bool = False  # reads whole chunks of rows that may start anywhere: see `RowKernel.cut`
    longest: int | None = None  # chunks of a row that is still looped over
    least_rows: int = 0  # with fewer, a row that the threads cannot hold goes to the next tiling
    most_rows: int | None = None  # with more, a row goes to the next tiling
    blocks: int = 0  # minimum resident blocks per SM (limits registers); 0 = unconstrained
    doubled: bool = False  # a block computes twice as many rows if there are many

    @property
    def at_call(self) -> bool:
        """Whether the number of threads is not compiled in."""
        return self.counted or self.shared

    @property
    def wide(self) -> bool:
        """Whether a row takes whole blocks."""
        return self.threads > WARP

    @property
    def held(self) -> int:
        """How many chunks of a row the threads hold at a time."""
        return self.threads * self.unroll

    def chunks(self, cluster: int) -> int | None:
        """How many chunks a row may have if the blocks of a ``cluster`` can share it; None if any number."""
        if self.looped:
            return self.longest
        return self.held * (cluster if self.shared else 1)

    def validate(self, target: aot.Target) -> None:
        block = self.threads * self.rows
        if block % WARP or block > target.max_threads:
            raise aot.DeclarationError(
                f"{self.rows} rows of {self.threads} threads make a block of {block}; "
                f"{target.arch} takes whole warps, up to {target.max_threads} threads"
            )
        if (self.threads & (self.threads - 1) and not self.at_call) or (self.rows > 1 and self.wide):
            raise aot.DeclarationError(
                f"{self.threads} threads cannot add up a row: must be a power of two, "
                f"and a whole block if more than {WARP}, not one of {self.rows} rows"
            )


def max_cluster(target: aot.Target) -> int:
    """How many blocks can share a row."""
    return min(MAX_CLUSTER, target.max_cluster)


# By kind of access. A row gets as many threads as can hold it; the last tiling takes longer rows.
ROW_TILINGS = {
    "vector": (
        RowTiling(threads=8, unroll=2, rows=16),
        RowTiling(threads=16, unroll=2, rows=8),
        RowTiling(threads=32, unroll=4, rows=4),
        RowTiling(threads=128, unroll=4),
        RowTiling(threads=256, unroll=4),
        RowTiling(threads=512, unroll=4),
        RowTiling(threads=512, unroll=4, shared=True),
        RowTiling(threads=512, unroll=2, looped=True, shared=True),
    ),
    "scalar": (
        RowTiling(threads=32, unroll=16, rows=4),
        RowTiling(threads=256, unroll=8, looped=True, longest=16_384),
        RowTiling(threads=512, unroll=4, looped=True, shared=True),
    ),
}

# For kernels that keep one value for each element. If all rows can have a warp at the same time, each gets one, because a
# thread with one chunk is done first. If there are more, two short rows share a warp, because instructions are the limit.
# Measured on an H200: softmax in bf16 takes 2.3 us for 3830 x 176 with a warp for each row, and 3.0 us with half a warp;
# 63804 x 176 take 21.7 us and 15.9 us.
_WHOLE = RowTiling(threads=32, unroll=1, rows=4, most_rows=WARPS)
_HALF = RowTiling(threads=16, unroll=2, rows=8)
_NARROW = (
    RowTiling(threads=8, unroll=2, rows=16),
    _WHOLE,
    _HALF,
    RowTiling(threads=32, unroll=2, rows=4),
    RowTiling(threads=32, unroll=4, rows=4),
)

# Rows of odd widths are read in chunks, wherever they start, unless they are short. Measured on an H200: blocks start at
# most every 3 ns if they may form clusters, which is too seldom for many rows that are not long.
_SHORT = RowTiling(threads=32, unroll=4, rows=4)
_ODD_NARROW = (_SHORT, *(replace(tiling, shifted=True) for tiling in _NARROW[1:]))
_ODD_LONG = (
    RowTiling(threads=1024, unroll=4, shared=True, shifted=True),
    ROW_TILINGS["scalar"][-1],
)
_ODD = (
    *_ODD_NARROW,
    RowTiling(threads=512, unroll=4, counted=True, shifted=True, blocks=2),
    *_ODD_LONG,
)

# Those that read weights, too, are faster with clusters if a row takes more than 128 threads. Fewer than 1024 rows always
# have 128 threads each: rmsnorm_residual of 295 x 1051 in bf16 takes 2.7 us, and 3.4 us with clusters.
_WEIGHED = RowTiling(threads=128, unroll=4, counted=True, shifted=True, blocks=8, least_rows=1024)
_FEW = RowTiling(threads=128, unroll=2, shifted=True)
_ODD_WEIGHED = (*_ODD_NARROW, _WEIGHED, _FEW, *_ODD_LONG)

# Rows of whole chunks that no more than 128 threads hold.
HELD = (*_NARROW, ROW_TILINGS["vector"][3])

# Up to 512 threads for a row, as many as it needs: with as few registers as two such blocks leave, no multiprocessor is
# left with a single row. A matrix of 10116 x 4128 takes 44.9 us in softmax, and 58.7 us with blocks of 256 threads.
_COUNTED = (*HELD, RowTiling(threads=512, unroll=4, counted=True, blocks=2))

# As few registers as rmsnorm_residual needs let two blocks of up to 576 threads run on a multiprocessor. In f32 it reads few
# rows element by element: 295 x 525 take 2.4 us, and 3.3 us in chunks; 145 x 471 take 1.7 us, and 3.2 us in chunks.
WIDE_TILINGS = {
    "vector": (*_COUNTED, RowTiling(threads=1024, unroll=4, shared=True), ROW_TILINGS["vector"][-1]),
    "scalar": (
        *_ODD_NARROW[:-1],
        RowTiling(threads=128, unroll=4, most_rows=256),
        _ODD_NARROW[-1],
        _WEIGHED,
        RowTiling(threads=256, unroll=4),
        _FEW,
        *_ODD_LONG,
    ),
}

# For other kernels that is a limit, without which a multiprocessor would have a single row at a time. As many rows as there
# are clusters on an H200 do not wait for each other, so they get all the threads that there are.
_LIMITED = (*_COUNTED, RowTiling(threads=576, unroll=4, shared=True, blocks=2))
ALONE = RowTiling(threads=1024, unroll=4, shared=True, most_rows=16)
LIMITED_TILINGS = {"vector": (*_LIMITED, ALONE, ROW_TILINGS["vector"][-1]), "scalar": _ODD}

# For kernels that hold elements as they are: twice as many fit. A matrix of 418 x 172032 takes 96 us in rmsnorm, and 121 us
# with blocks of 1024 threads, of which a multiprocessor has one at a time.
PACKED = RowTiling(threads=512, unroll=8, shared=True, blocks=2)
PACKED_TILINGS = {"vector": (*_LIMITED, ALONE, PACKED, ROW_TILINGS["vector"][-1]), "scalar": _ODD_WEIGHED}

# For kernels that keep no part of a row. If there are many rows, a warp loops over each, and nothing waits for others. Only
# few rows are worth clusters. Short rows have few threads, with up to four chunks each, because instructions are the limit:
# argmax of 10800 x 162 in bf16 takes 4.1 us with 16 threads for a row, and 6.6 us with a warp.
_HALVES = RowTiling(threads=16, unroll=4, rows=8, doubled=True)
_STREAMED = (
    RowTiling(threads=32, unroll=4, rows=4),
    RowTiling(threads=32, unroll=4, rows=4, looped=True, longest=2048, least_rows=4096),
    RowTiling(threads=256, unroll=4, looped=True, counted=True, streamed=True, least_rows=256),
    RowTiling(threads=1024, unroll=4, looped=True, shared=True, streamed=True),
)
STREAMED_TILINGS = {
    "vector": (
        RowTiling(threads=8, unroll=2, rows=16, doubled=True),
        RowTiling(threads=8, unroll=4, rows=16, doubled=True),
        _HALVES,
        *_STREAMED,
    ),
    "scalar": (
        replace(_SHORT, doubled=True),
        *(replace(tiling, shifted=True) for tiling in (replace(_HALVES, unroll=2), _HALVES, *_STREAMED)),
    ),
}


class TiledRows(KernelObject):
    """The tilings of a kernel over rows: which of them a matrix needs, and how a kernel with it is launched."""

    tiling: RowTiling  # of a kernel that is launched: see `sized`
    max_cluster: int  # blocks that can share a row then

    def __init__(self, tilings: tuple[RowTiling, ...], target: aot.Target, chunk: int, whole: int = 1) -> None:
        self.clusters = max_cluster(target)
        self.early = launched_early(target)
        self.chunk = chunk  # elements
        self.whole = whole  # elements of a chunk of tilings that are shifted
        self.tilings = self.useful(tilings)
        for tiling in self.tilings:
            tiling.validate(target)

    def useful(self, tilings: tuple[RowTiling, ...]) -> tuple[RowTiling, ...]:
        """Those that take longer rows than the ones before them: without clusters, some do not."""
        kept: list[RowTiling] = []
        longest = -1
        for tiling in tilings:
            length = self.sized(tiling).widest()
            if length > longest:
                kept.append(tiling)
                longest = max(longest, self.sized(tiling).widest_of_any_number())
        return tuple(kept)

    def sized(self, tiling: RowTiling) -> TiledRows:
        """This kernel with one of its tilings."""
        own = copy(self)
        own.tiling, own.max_cluster = tiling, self.clusters if tiling.shared else 1
        own.chunk = self.whole if tiling.shifted else self.chunk
        return own

    @cute.jit
    def launch(self, x: cute.Tensor, kernel: Callable[[Any], Any], stream: CUstream):
        """Launch ``kernel(self)`` with the first of the tilings that takes the rows of ``x``."""
        rows, columns = x.shape
        launched = Int32(0)
        for own in [self.sized(tiling) for tiling in self.tilings]:
            if launched == 0 and own.takes(rows, columns):
                kernel(own).launch(**own.grid(x), stream=stream)
                launched = Int32(1)

    @cute.jit
    def takes(self, rows: Int32, columns: Int32) -> bool:
        """Whether the tiling takes a matrix of these extents."""
        taken = columns <= self.widest()
        if cutlass.const_expr(self.tiling.least_rows):
            taken = taken and (rows >= self.tiling.least_rows or columns <= self.widest_of_any_number())
        if cutlass.const_expr(self.tiling.most_rows is not None):
            taken = taken and rows <= self.tiling.most_rows
        return taken

    def widest(self) -> int:
        """How many elements a row may have."""
        chunks = self.tiling.chunks(self.clusters)
        return ANY_LENGTH if chunks is None else min(chunks * self.chunk, ANY_LENGTH)

    def widest_of_any_number(self) -> int:
        """How many elements a row may have, however many rows there are."""
        if self.tiling.most_rows is not None:
            return 0
        if self.tiling.least_rows:
            return self.tiling.held * self.chunk if self.tiling.looped else 0
        return self.widest()

    @cute.jit
    def spread(self, rows: Int32, columns: Int32) -> tuple[Int32, Int32]:
        """How many threads a block has, and how many blocks share a row."""
        chunks, unroll, cluster = columns // self.chunk, self.tiling.unroll, Int32(1)
        threads = min(CLUSTER_THREADS, self.tiling.threads)
        few = MANY_BLOCKS if self.tiling.streamed else FEW_BLOCKS
        if not self.tiling.streamed and chunks > self.tiling.threads * unroll:
            while cluster < self.max_cluster and cluster * (threads * unroll) < chunks:
                cluster *= 2
        least = Int32(MIN_SHARED if self.chunk > 1 else MIN_SHARED_ELEMENTS)
        if self.tiling.streamed and self.chunk > 1 and rows < VERY_FEW:
            least *= 2
        while cluster < self.max_cluster and rows * cluster < few and cluster * least < chunks:
            cluster *= 2
        most = Int32(self.tiling.threads)
        if self.tiling.streamed and rows * cluster >= FEW_BLOCKS:
            most = Int32(SMALL_BLOCK)
        # If blocks must loop, the steps are equally long, so that the last one does not leave most threads idle.
        steps = cute.ceil_div(chunks, cluster * most * unroll)
        warps = cute.ceil_div(chunks, cluster * steps * (unroll * WARP))
        return cutlass.min(cutlass.max(warps * WARP, MIN_THREADS), most), cluster

    def together(self, rows: Int32) -> Int32 | int:
        """How many rows a block computes."""
        least = self.tiling.rows
        if not self.tiling.doubled:
            return least
        return Int32(cutlass.select_(rows >= DOUBLED_BLOCKS * least, Int32(2 * least), Int32(least)))

    def grid(self, x: cute.Tensor) -> dict:
        """The arguments of ``launch``."""
        rows, columns = x.shape
        if self.tiling.at_call:
            threads, cluster = self.spread(rows, columns)
            shape = {
                "grid": [rows * cluster, 1, 1],
                "block": [threads, 1, 1],
                "max_number_threads": [self.tiling.threads, 1, 1],
            }
            if self.max_cluster > 1:
                shape["cluster"] = [cluster, 1, 1]
        else:
            together = self.together(rows)
            shape = {
                "grid": [cute.ceil_div(rows, together), 1, 1],
                "block": [self.tiling.threads * together, 1, 1],
            }
            if self.tiling.doubled:
                shape["max_number_threads"] = [2 * self.tiling.threads * self.tiling.rows, 1, 1]
        return {
            **shape,
            "use_pdl": self.early,
            "min_blocks_per_mp": self.tiling.blocks,
            "preferred_smem_carveout": -1,  # the default; if it is left out, CuTe DSL asks the driver
        }


class RowKernel(TiledRows):
    """The base of kernels that reduce the rows of a matrix, each row by a group of threads.

    Subclasses define the kernel, for one tiling, and a ``__call__`` that launches it with the tiling that a row needs;
    ``reductions`` says how often it reduces over the threads of a row.
    """

    reductions = 1
    reduced = Float32  # the type of what is reduced

    # Where a thread is.

    @cute.jit
    def place(self, x: cute.Tensor) -> tuple[Int32, Int32, Int32]:
        """The row of this thread, its first chunk in the row, and the end of the chunks that it may write.

        Threads past the last row compute that row too, because warps reduce together. They write nothing.
        """
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        rows, columns = x.shape
        together = self.block_threads() // self.tiling.threads if self.tiling.doubled else self.tiling.rows
        row = block * together + thread // self.tiling.threads
        lane = thread % self.tiling.threads
        if cutlass.const_expr(self.max_cluster > 1):
            row, _, _ = cute.arch.cluster_idx()
            lane = cute.arch.block_idx_in_cluster() * self.block_threads() + thread
            if self.cluster() > 1:
                cute.arch.cluster_arrive_relaxed()  # the first reduction waits until all blocks have started
        end = columns // self.chunk if row < rows else 0
        await_previous(self.early)
        return cutlass.min(row, rows - 1), lane, end

    def block_threads(self) -> Int32:
        threads, _, _ = cute.arch.block_dim()
        return threads

    def cluster(self) -> Int32 | int:
        """How many blocks share a row."""
        return cute.arch.cluster_size() if self.max_cluster > 1 else 1

    def threads(self) -> Int32 | int:
        """How many threads share a row."""
        return self.cluster() * self.block_threads() if self.tiling.at_call else self.tiling.threads

    def span(self) -> Int32 | int:
        """How many chunks the threads of a row hold at a time."""
        return self.threads() * self.tiling.unroll

    def indices(self, first: Int32) -> list[Int32]:
        """The indices of the chunks that a thread holds. Neighbouring threads hold neighbouring chunks."""
        return [first + i * self.threads() for i in range(self.tiling.unroll)]

    def load(self, row: cute.Tensor, first: Int32, cached: bool = True) -> list[cute.Tensor]:
        """The chunks that a thread holds. Past the end of the row, the last chunk is repeated."""
        return [load(around(row, index), index, self.chunk, cached) for index in self.indices(first)]

    def load_past_cache(self, row: cute.Tensor, first: Int32) -> list[cute.Tensor]:
        """Like :meth:`load`, if no data is read twice, neither by this thread nor, because chunks are wide, by others."""
        return self.load(row, first, cached=self.chunk == 1)

    def full(self, value: float) -> cute.TensorSSA:
        """An accumulator: a chunk of f32."""
        return cute.full(self.chunk, value, Float32)

    def steps(self, columns: Int32) -> Int32:
        """How often the threads of a looped tiling must load to cover a row."""
        return cute.ceil_div(columns // self.chunk, self.span())

    @cute.jit
    def add_elements(self, total: cute.TensorSSA, held: list[cute.Tensor], first, end):
        """Add the chunks that a thread holds to a chunk of sums."""
        for index, chunk in zip(self.indices(first), held, strict=True):
            if index < end:
                total = total + chunk.load().to(Float32)
        return total

    # Rows that may start anywhere.

    @cute.jit
    def cut(self, rows: list[cute.Tensor], lane: Int32, end: Int32) -> tuple:
        """A row, and those of other tensors beside it, without their ends; what a thread has of the ends; where both end;
        and how many elements are before the first chunk. See :func:`cut_ends`.
        """
        if cutlass.const_expr(not self.tiling.shifted):
            return rows, end, rows, Int32(0), Int32(0)
        bodies, edges, head = cut_ends(rows, lane, self.chunk)
        chunks = cute.size(bodies[0]) // self.chunk if end > 0 else Int32(0)
        if cutlass.const_expr(self.ends_each(len(rows)) > 1):
            between = cute.size(bodies[0])
            left = cute.size(rows[0]) - between if end > 0 else Int32(0)
            return bodies, chunks, [Ends(row, head, between) for row in rows], left, head
        return bodies, chunks, edges, cute.size(edges[0]) if end > 0 else Int32(0), head

    @cute.jit
    def fold_row(self, fold, value, row: cute.Tensor, lane: Int32, end: Int32):
        """Fold all that a thread reads of a row into a value, by ``fold(kernel, value, held, first, end)`` for what it holds at a time."""
        (body,), end, (edge,), edge_end, _ = self.cut([row], lane, end)
        if cutlass.const_expr(self.tiling.shifted):
            ends = self.ends()
            last = ends.load(edge, lane)  # is on its way while chunks are folded
        if cutlass.const_expr(self.tiling.looped):
            for step in cutlass.range(self.steps(cute.size(body))):
                first = step * self.span() + lane
                value = fold(self, value, self.load_past_cache(body, first), first, end)
        else:
            value = fold(self, value, self.load_past_cache(body, lane), lane, end)
        if cutlass.const_expr(self.tiling.shifted):
            value = fold(ends, value, last, lane, edge_end)
        return value

    def ends_each(self, rows: int) -> int:
        """The most elements that a thread has of the ends of ``rows`` rows, which :func:`cut_ends` cuts together."""
        most = 2 * (self.chunk - 1) if rows == 1 else 2 * (2 * self.chunk - 1)
        return -(-most // self.tiling.threads)

    def ends(self, rows: int = 1) -> RowKernel:
        """This kernel for the ends of ``rows`` rows, element by element: :meth:`cut` returns the ends as rows of their own."""
        own = copy(self)
        own.chunk, own.tiling = 1, replace(self.tiling, unroll=self.ends_each(rows), shifted=False)
        return own

    def load_beside(self, row: cute.Tensor, first: Int32) -> list[cute.Tensor]:
        """Like :meth:`load`, for a row beside the first one of :meth:`cut`."""
        return [self.beside(row, index) for index in self.indices(first)]

    def beside(self, row: cute.Tensor, index: Int32) -> cute.Tensor:
        """A chunk of a row beside the first one of :meth:`cut`."""
        return (load_anywhere if self.tiling.shifted else load)(around(row, index), index, self.chunk)

    @cute.jit
    def put(self, chunk: cute.Tensor, row: cute.Tensor, index: Int32, end: Int32):
        """Write a chunk of the row's dtype; from index ``end`` on, nothing."""
        row = around(row, index)
        if index < end:
            if cutlass.const_expr(not self.tiling.shifted):
                copy_chunk(chunk, cute.local_tile(row, (self.chunk,), (index,)), self.chunk)
            else:
                size = self.chunk * row.element_type.width // 8
                if row.iterator.toint() % size == 0:
                    aligned = cute.make_tensor(row.iterator.align(size), row.layout)
                    copy_chunk(chunk, cute.local_tile(aligned, (self.chunk,), (index,)), self.chunk)
                else:
                    copy_chunk(chunk, cute.local_tile(row, (self.chunk,), (index,)), self.chunk)

    def put_rounded(self, values: cute.TensorSSA, row: cute.Tensor, index: Int32, end: Int32) -> None:
        """Like :meth:`put`, of values that are rounded to the row's dtype."""
        chunk = cute.make_rmem_tensor((self.chunk,), row.element_type)
        chunk.store(values.to(row.element_type))
        self.put(chunk, row, index, end)

    # Reductions.

    def scratch(self) -> cute.Tensor | None:
        """Shared memory for the reductions of a block. Call this once in a kernel."""
        if not self.tiling.wide:
            return None
        layout = cute.make_layout((self.tiling.threads // WARP * self.max_cluster, self.reductions))
        return SmemAllocator().allocate_tensor(self.reduced, layout)

    @cute.jit
    def over_row(self, combine, value, neutral, scratch, use: int):
        """A value combined over the threads of a row; each of them gets the result.

        Every thread of the block must call this, once for each ``use``, in the order 0, 1, ... below ``reductions``.
        ``neutral`` changes no value that it is combined with.
        """
        value = cute.arch.warp_reduction(value, combine, threads_in_group=min(self.tiling.threads, WARP))
        if cutlass.const_expr(self.tiling.wide and not self.tiling.at_call):
            thread, _, _ = cute.arch.thread_idx()
            warps = self.tiling.threads // WARP
            if thread % WARP == 0:
                scratch[thread // WARP, use] = value
            cute.arch.sync_threads()  # each use has places of its own, so none is overwritten while it is read
            value = cute.arch.warp_reduction(scratch[thread % warps, use], combine, threads_in_group=warps)
        if cutlass.const_expr(self.tiling.at_call):
            thread, _, _ = cute.arch.thread_idx()
            lane, warps = thread % WARP, self.block_threads() // WARP
            self.share(value, scratch, thread // WARP, warps, lane, use)
            value = neutral
            if cutlass.const_expr(self.max_cluster > 1):
                for i in cutlass.range(cute.ceil_div(self.cluster() * warps - lane, WARP)):
                    value = combine(value, scratch[i * WARP + lane, use])
            elif lane < warps:
                value = scratch[lane, use]
            value = cute.arch.warp_reduction(value, combine)
        return value

    @cute.jit
    def share(self, value, scratch: cute.Tensor, warp: Int32, warps: Int32, lane: Int32, use: int):
        """Write the value of a warp into the shared memory of every block of the row, and wait for all others."""
        if cutlass.const_expr(self.max_cluster > 1):
            if self.cluster() > 1:
                if cutlass.const_expr(use == 0):
                    cute.arch.cluster_wait()  # memory of a block that has not started yet must not be written
                if lane < self.cluster():
                    slot = cute.arch.block_idx_in_cluster() * warps + warp
                    own = scratch.iterator + cute.crd2idx((slot, use), scratch.layout)
                    store_in_block(own, lane, value)
                # The arrival releases what was written to other blocks, the wait acquires what they have written.
                cute.arch.cluster_arrive()
                cute.arch.cluster_wait()
            else:
                self.share_in_block(value, scratch, warp, lane, use)
        else:
            self.share_in_block(value, scratch, warp, lane, use)

    @cute.jit
    def share_in_block(self, value, scratch: cute.Tensor, warp: Int32, lane: Int32, use: int):
        if lane == 0:
            scratch[warp, use] = value
        cute.arch.sync_threads()  # the values of all warps are there

    def tree(self, combine, values: cute.TensorSSA) -> Float32:
        """The values of a chunk, combined in pairs: fewer dependent steps and smaller errors."""
        left = [values[i] for i in range(self.chunk)]
        while len(left) > 1:
            left = [combine(left[i], left[i + 1]) for i in range(0, len(left), 2)]
        return left[0]

    def total(self, values: cute.TensorSSA) -> Float32:
        return values.reduce(cute.ReductionOp.ADD, Float32(0), 0)

    def sum_over_row(self, values: cute.TensorSSA, scratch, use: int = 0) -> Float32:
        return self.over_row(add, self.total(values), Float32(0), scratch, use)


class Ends:
    """The ends of a row if threads have several elements of them: some are before its chunks, the others after them."""

    def __init__(self, row: cute.Tensor, head: Int32, between: Int32) -> None:
        self.row, self.head, self.between = row, head, between
        self.element_type = row.element_type

    def around(self, index: Int32) -> cute.Tensor:
        """A tensor that has the element ``index`` of the ends at that index."""
        before = Int32(cutlass.select_(index < self.head, Int32(0), self.between))
        return cute.make_tensor(self.row.iterator + before, cute.make_layout(cute.size(self.row) - before))


def around(row: cute.Tensor | Ends, index: Int32) -> cute.Tensor:
    """What has the element ``index`` of a row, or of its ends, at that index."""
    return row.around(index) if isinstance(row, Ends) else row


def store_in_block(pointer: cute.Pointer, block: Int32, value: Float32 | Int64):
    """Write a value into the shared memory of another block of the cluster."""
    remote = cute.arch.map_dsmem_ptr(pointer, block).toint()
    kind = {Float32: "f32", Int64: "s64"}[type(value)]
    cute.arch.inline_ptx(f"st.shared::cluster.{kind} [{{$r0}}], {{$r1}};", read_only_args=[remote, value])


@dataclass(frozen=True)
class RowTensors:
    """The arguments of kernels over rows: a matrix of ``m`` rows and ``n`` columns, and a vector as long as a row."""

    dtype: str
    vector: bool  # whole chunks, aligned

    @property
    def chunk(self) -> int:
        return chunk_elements(self.dtype, self.vector)

    @property
    def whole(self) -> int:
        """Elements in a chunk, even if rows are not made of whole chunks."""
        return chunk_elements(self.dtype, True)

    @property
    def columns(self) -> aot.Dim:
        return aot.Dim("n", divisible_by=self.chunk)

    @property
    def matrix(self) -> aot.Tensor:
        return self._tensor("m", self.columns)

    @property
    def row(self) -> aot.Tensor:
        return self._tensor(self.columns)

    def _tensor(self, *shape: str | aot.Dim) -> aot.Tensor:
        return aot.Tensor(self.dtype, shape, align=VECTOR_BYTES if self.vector else None)
