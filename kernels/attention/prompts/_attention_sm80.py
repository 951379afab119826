"""Attention for sm_80 and for later architectures without code of their own: cp.async, ldmatrix, mma.sync.

A block computes one tile of the output. Each warp has one or two *bands* of 16 rows and needs nothing from the others. Keys
and values come in blocks of ``tokens``: while one block is multiplied, the next is copied to shared memory. What a warp does
with a block is the same as on sm_90a, one step after the other: scores, running softmax, sums. See ``_attention`` for
what both have in common.

* **Queries** stay in registers if there is room for them beside the sums. Queries of wide heads stay in shared memory.
* **Borders.** Tokens past the end of a sequence, and before the first one that a tile sees, are not read: the last or the
  first token is read in their place, and its score is masked. So what the memory there contains has no influence, NaN
  included, and a table need not name pages that a window has left behind.
* **Pages.** Threads copy tokens one by one, so a token may be in any page. The places of the next block are looked up
  before the threads wait for this one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32
from cutlass.cute.nvgpu import warp
from cutlass.utils import LayoutEnum

import aot

from ..._device import WARP, await_previous
from ..._versions import SmemAllocator
from ...sm80 import tiles
from ...sm80.tiles import CHUNK, LINE, MMA, SWIZZLED
from ...sm90.hardware import accumulator_row
from .._pages import find_token
from .._softmax import cap_scores, round_to, scale_sums, softmax_step
from . import _attention
from ._attention import Problem, Tile, View

STAGES = 2
HELD = 128  # elements of the queries of a row that registers have room for, beside the sums of as many values


class CopiedLines:
    """Part of a tiling with ``threads``, which copy tokens in lines of shared memory."""

    threads: int
    dim: int
    value_dim: int

    @property
    def line(self) -> int:
        """Elements of a line: both widths are multiples of it."""
        return LINE if self.dim % LINE == 0 and self.value_dim % LINE == 0 else LINE // 2

    @property
    def line_threads(self) -> int:
        """Threads that copy a line."""
        return self.line // CHUNK

    @property
    def apart(self) -> int:
        """Tokens from one copy of a thread to the next."""
        return self.threads // self.line_threads


@dataclass(frozen=True)
class Tiling(CopiedLines, _attention.Tiling):
    """``rows`` queries against ``tokens`` keys at a time.

    A warp has ``bands`` bands of 16 rows: it uses what it loads from shared memory as often, for as many more registers.
    """

    bands: int = 1

    @property
    def warps(self) -> int:
        return self.rows // (self.bands * MMA[0])

    @property
    def threads(self) -> int:
        return self.warps * WARP

    @property
    def shared_bytes(self) -> int:
        return self.query_bytes + STAGES * (self.key_bytes + self.value_bytes)

    def validate(self, target: aot.Target) -> None:
        step = max(self.apart, MMA[2])
        if self.dim % self.line or self.value_dim % self.line or self.tokens % step or self.rows % self.apart:
            raise aot.DeclarationError(
                f"{self.tokens} tokens of {self.dim} and {self.value_dim} elements for {self.threads} threads",
                hint=f"elements are a multiple of {self.line}, tokens of {step}",
            )
        if self.shared_bytes > target.shared_memory:
            raise aot.DeclarationError(
                f"queries and {STAGES} stages take {self.shared_bytes} bytes; "
                f"a block of {target.arch} has {target.shared_memory}"
            )


# By the widths of keys and values: the fastest of those that were timed, on an H200. All fit into the 99 KB of shared memory
# that a block has at least.
TILINGS: dict[tuple[int, int], Tiling] = {
    (128, 128): Tiling(128, 32, 128, 128, bands=2),
    (64, 64): Tiling(128, 64, 64, 64, bands=2),
    (96, 96): Tiling(64, 64, 96, 96),
    (192, 128): Tiling(128, 32, 192, 128, bands=2),
    (256, 256): Tiling(64, 32, 256, 256),
}


class Shared(NamedTuple):
    """Queries, keys and values in shared memory, and where this thread's copies go."""

    atom: cute.CopyAtom
    queries: cute.Tensor  # rows x dim x 1
    keys: cute.Tensor  # tokens x dim x stages
    values: cute.Tensor  # dim x tokens x stages
    to_queries: cute.Tensor  # chunk, along rows, along dim, 0
    to_keys: cute.Tensor  # chunk, along tokens, along dim, stage
    to_values: cute.Tensor  # chunk, along dim, along tokens, stage


class Attention(_attention.Attention):
    @cute.jit
    def __call__(
        self, q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, out: cute.Tensor, scale: Float32, left: Int32, right: Int32,
        q_starts, k_starts, lse, soft_cap: Float32, sinks, pages, lengths,
        tickets: None,  # which only blocks that compute several tiles need
        stream: CUstream,
    ):  # fmt: skip
        self.dtype = q.element_type
        problem, count = self.problem(q, k, q_starts, k_starts, pages, lengths, left, right)
        scale, inner = self.scales(scale, soft_cap)
        if count > 0:  # CUDA refuses an empty grid
            self.kernel(
                q,
                k,
                v,
                out,
                scale,
                inner,
                lse,
                sinks,
                pages,
                problem,
                tiles.tiled_mma(self.dtype, (self.tiling.warps, 1)),
            ).launch(grid=[count, 1, 1], block=[self.tiling.threads, 1, 1], use_pdl=self.early, stream=stream)

    @cute.kernel
    def kernel(
        self, q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, out: cute.Tensor, scale: Float32, inner: Float32, lse, sinks,
        pages, problem: Problem, mma: cute.TiledMma,
    ):  # fmt: skip
        storage = SmemAllocator().allocate(self.tiling.shared_bytes, byte_alignment=SWIZZLED)
        index, _, _ = cute.arch.block_idx()
        await_previous(self.early)
        if index < problem.order.count():  # which only the device knows if sequences have lengths of their own
            tile = problem.order.tile_at(index)
            key_head = tile.head // problem.heads_of_key
            queries, outputs = (self.of_sequence(x, tile, tile.first_query, tile.head) for x in (q, out))
            if cutlass.const_expr(self.paged):
                keys, values = (x[None, None, key_head, None] for x in (k, v))
            else:
                keys, values = (self.of_sequence(x, tile, tile.first_token, key_head) for x in (k, v))
            softmaxes = [self.softmax(scale, inner) for _ in range(self.tiling.bands)]
            self.attend(queries, keys, values, outputs, pages, lse, sinks, softmaxes, tile, problem, mma, storage)

    def of_sequence(self, x: cute.Tensor, tile: Tile, first, head: Int32) -> cute.Tensor:
        """Tokens x dim of one head of a sequence."""
        if self.ragged:
            return cute.domain_offset((first, 0), x[None, head, None])
        return x[tile.sequence, None, head, None]

    @cute.jit
    def attend(self, queries, keys, values, outputs, pages, lse, sinks, softmaxes, tile, problem, mma, storage):
        tiling = self.tiling
        thread, _, _ = cute.arch.thread_idx()
        rows = [accumulator_row(thread) + band * tiling.warps * MMA[0] for band in range(tiling.bands)]
        bounds = problem.bounds(tile, tiling)
        shared = self.shared(storage, thread)
        # A sequence without tokens has no block at all.
        steps = bounds.end - bounds.begin if tile.tokens > 0 else Int32(0)
        first, _ = problem.seen(tile, tile.index * tiling.rows)
        self.copy_queries(shared, queries, tile, thread)
        if steps > 0:
            places = self.places(bounds.end - 1, first, keys, pages, tile, thread)
            self.copy_block(shared, keys, values, places, thread, Int32(0))
        cute.arch.cp_async_commit_group()
        query, key, value = self.fragments(mma, shared, thread)
        scores = by_band(mma.partition_shape_C((tiling.rows, tiling.tokens)), Float32)
        sums = by_band(mma.partition_shape_C((tiling.rows, tiling.value_dim)), Float32)
        weights = by_band(mma.partition_shape_A((tiling.rows, tiling.tokens)), self.dtype)
        sums.fill(0.0)
        for softmax in softmaxes:
            softmax.reset()
        held = tiling.bands * tiling.dim <= HELD
        if cutlass.const_expr(held):  # queries stay in registers
            cute.arch.cp_async_wait_group(0)
            cute.arch.sync_threads()  # the copies of all threads have arrived
            for i in cutlass.range_constexpr(tiling.dim // MMA[2]):
                tiles.load(query, i, 0)
        for step in cutlass.range(steps, unroll=1):
            block, stage = bounds.end - 1 - step, step % STAGES
            places = self.places(cutlass.max(block - 1, bounds.begin), first, keys, pages, tile, thread)
            cute.arch.cp_async_wait_group(0)  # nothing else is on its way: the next block is asked for below
            cute.arch.sync_threads()  # this block has arrived for all warps, and the one before it is no longer read
            if step + 1 < steps:
                self.copy_block(shared, keys, values, places, thread, 1 - stage)
            cute.arch.cp_async_commit_group()
            scores.fill(0.0)
            for i in cutlass.range_constexpr(tiling.dim // MMA[2]):
                if cutlass.const_expr(not held):
                    tiles.load(query, i, 0)
                tiles.load(key, i, stage)
                cute.gemm(mma, scores, query.values[None, None, i], key.values[None, None, i], scores)
            for band in cutlass.range_constexpr(tiling.bands):
                own, view = self.band(scores, band), View(problem, tile, bounds, rows[band], tiling)
                if softmaxes[band].inner > 0.0:
                    keep_branch(tile.queries)
                    cap_scores(own, softmaxes[band], often=True)
                if block >= bounds.clean_end:
                    keep_branch(tile.queries)
                    view.mask_side(own, block, upper=True)
                if block < bounds.clean_begin:
                    keep_branch(tile.queries)
                    view.mask_side(own, block, upper=False)
                factors, grown = softmax_step(own, softmaxes[band])
                if grown:
                    scale_sums(self.band(sums, band), factors)
                round_to(self.band(weights, band), own)
            for i in cutlass.range_constexpr(tiling.tokens // MMA[2]):
                tiles.load(value, i, stage)
                cute.gemm(mma, sums, weights[None, None, i], value.values[None, None, i], sums)
        for band in cutlass.range_constexpr(tiling.bands):
            own = self.band(sums, band)
            self.finish(own, softmaxes[band], lse, sinks, tile, rows[band])
            self.write(own, outputs, tile, rows[band])

    def band(self, registers: cute.Tensor, index: int) -> cute.Tensor:
        size = cute.size(registers) // self.tiling.bands
        return cute.make_tensor(registers.iterator + index * size, cute.make_layout(size))

    # Copies. Neighbouring threads copy neighbouring chunks of one token.

    def shared(self, storage, thread) -> Shared:
        tiling = self.tiling
        by_row, by_column = LayoutEnum.ROW_MAJOR, LayoutEnum.COL_MAJOR
        tensors, targets = [], []
        for shape, major, size in (
            ((tiling.rows, tiling.dim, 1), by_row, tiling.query_bytes),
            ((tiling.tokens, tiling.dim, STAGES), by_row, STAGES * tiling.key_bytes),
            ((tiling.value_dim, tiling.tokens, STAGES), by_column, STAGES * tiling.value_bytes),
        ):
            tensors.append(tiles.swizzled(storage, self.dtype, tiles.lines(major, tiling.line), shape, tiling.line))
            chunks = tiles.chunk_copy(tiles.past_l1(), self.dtype, major, tiling.threads, tiling.line)
            targets.append(chunks.get_slice(thread).partition_D(tensors[-1]))
            storage = (storage + size).align(SWIZZLED)
        return Shared(tiles.chunk_atom(tiles.past_l1(), self.dtype), *tensors, *targets)

    def copy_queries(self, shared: Shared, queries: cute.Tensor, tile: Tile, thread) -> None:
        """The last query stands for those past the end."""
        tiling = self.tiling
        for i in range(tiling.rows // tiling.apart):
            row = tile.index * tiling.rows + i * tiling.apart + thread // tiling.line_threads
            source = queries[cutlass.min(row, tile.queries - 1), None]
            for j in range(tiling.dim // tiling.line):
                tiles.copy_chunk(shared.atom, source, self.chunk(j, thread), shared.to_queries[None, i, j, 0])

    def places(self, block: Int32, first: Int32, keys: cute.Tensor, pages, tile: Tile, thread) -> list[tuple]:
        """Where the tokens are that this thread copies of a block.

        The last token stands for those past the end, and the first one that the tile sees for those before it.
        """
        tiling = self.tiling
        found: list[tuple] = []
        for i in range(tiling.tokens // tiling.apart):
            token = block * tiling.tokens + i * tiling.apart + thread // tiling.line_threads
            token = cutlass.max(cutlass.min(token, tile.tokens - 1), first)
            found.append(find_token(pages, tile.sequence, token, keys.shape[1]) if self.paged else (token,))
        return found

    def copy_block(self, shared: Shared, keys: cute.Tensor, values: cute.Tensor, places, thread, stage) -> None:
        tiling = self.tiling
        for i, place in enumerate(places):
            key, value = keys[(*place, None)], values[(*place, None)]
            for j in range(tiling.dim // tiling.line):
                tiles.copy_chunk(shared.atom, key, self.chunk(j, thread), shared.to_keys[None, i, j, stage])
            for j in range(tiling.value_dim // tiling.line):
                tiles.copy_chunk(shared.atom, value, self.chunk(j, thread), shared.to_values[None, j, i, stage])

    def chunk(self, line: int, thread) -> Int32:
        """The chunk of a line of a token that a thread copies."""
        return line * self.tiling.line_threads + thread % self.tiling.line_threads

    def fragments(self, mma: cute.TiledMma, shared: Shared, thread) -> list:
        """The registers for queries, keys and values. Values are transposed on their way there."""
        rows = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), self.dtype)
        query = mma.make_fragment_A(mma.get_slice(thread).partition_A(shared.queries[None, None, 0]))
        return [
            tiles.make_fragment(query, cute.make_tiled_copy_A(rows, mma), shared.queries, thread),
            tiles.right_fragment(mma, shared.keys, False, thread),
            tiles.right_fragment(mma, shared.values, True, thread),
        ]

    @cute.jit
    def write(self, sums, outputs, tile, row):
        """Round the sums and write them, two neighbours at a time."""
        rounded = cute.make_rmem_tensor(cute.size(sums), self.dtype)
        round_to(rounded, sums)
        first = cute.arch.lane_idx() % 4  # pair of elements
        for r in cutlass.range_constexpr(2):
            own = tile.index * self.tiling.rows + row + 8 * r
            if own < tile.queries:
                for n in cutlass.range_constexpr(self.tiling.value_dim // MMA[1]):
                    pair = cute.make_tensor(rounded.iterator + 4 * n + 2 * r, cute.make_layout(2))
                    cute.autovec_copy(pair, cute.local_tile(outputs[own, None], (2,), (n * (MMA[1] // 2) + first,)))


@cute.jit
def keep_branch(positive: Int32):
    """Call this first in code that is rarely run, with a number that is above 0, though the compiler does not know it.

    This loop never runs. But code with a loop in it stays behind a branch. Without it, the assembler predicates the code:
    hundreds of instructions that do nothing, yet are issued for every block of tokens.
    """
    for _ in cutlass.range(-positive, unroll=1):
        cute.arch.sync_warp()


def by_band(shape: tuple, dtype) -> cute.Tensor:
    """Registers of an operand or of sums, one band of rows after the other."""
    values, _, blocks = shape  # an instruction has two of each of its values
    size = 2 ** len(values)
    layout = cute.make_layout(shape, stride=(tuple(2**i for i in range(len(values))), size * blocks, size))
    return cute.make_rmem_tensor(layout, dtype)
