"""Gradients of attention for sm_80 and for later architectures without code of their own: cp.async, ldmatrix, mma.sync.

Two kernels of one shape, one after the other. A block has ``rows`` rows, keys with their values or queries with their
``grad_out``, and goes over blocks of columns, which are the other of the two. Each warp has 16 rows and needs nothing from the
others:

* ``scores = rows @ columns.T`` and ``slopes = row values @ column values.T`` are two products from shared memory.
* They become ``P`` and ``dS`` in registers, where they are left operands.
* ``grad_k += dS @ q`` and ``grad_v += P @ grad_out`` if rows are keys; ``grad_q += dS @ k`` if rows are queries.

So nothing is added in memory, and the order of all sums is fixed. The price is that scores are computed twice: seven products in
place of five. Wide heads are cut: a block computes ``1 / parts`` of the columns of its gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Boolean, Float32, Int32
from cutlass.cute.nvgpu import warp
from cutlass.utils import LayoutEnum

import aot

from ..._device import WARP, await_previous
from ..._versions import SmemAllocator
from ...sm80 import tiles
from ...sm80.tiles import MMA, SWIZZLED
from ...sm90.hardware import accumulator_row
from .._softmax import round_to, scale_sums
from ..prompts._attention import ELEMENT_BYTES, Problem, Tile
from ..prompts._attention_sm80 import CopiedLines
from ._backward import AttentionBackward, Scoring, Side, Statistics, column_of, require_room, row_of

STAGES = 2


@dataclass(frozen=True)
class Tiling(CopiedLines):
    """``rows`` rows against ``columns`` columns at a time."""

    rows: int
    columns: int
    dim: int
    value_dim: int
    parts: int = 1

    @property
    def threads(self) -> int:
        return self.rows // MMA[0] * WARP

    @property
    def shared_bytes(self) -> int:
        return (self.rows + STAGES * self.columns) * (self.dim + self.value_dim) * ELEMENT_BYTES

    def validate(self, target: aot.Target) -> None:
        step = max(self.apart, MMA[2])
        widths = (self.dim, self.value_dim)
        if any(width % (self.line * self.parts) for width in widths) or self.columns % step or self.rows % self.apart:
            raise aot.DeclarationError(
                f"{self.columns} columns of {self.dim} and {self.value_dim} elements for {self.threads} threads",
                hint=f"elements are a multiple of {self.line * self.parts}, columns of {step}",
            )
        require_room(self, f"rows and {STAGES} stages", target)


# By the widths of keys and values. All fit into the 99 KB of shared memory that a block has at least.
TILINGS: dict[tuple[int, int], Tiling] = {
    (128, 128): Tiling(64, 32, 128, 128),
    (64, 64): Tiling(64, 64, 64, 64),
    (96, 96): Tiling(64, 32, 96, 96),
    (192, 128): Tiling(64, 32, 192, 128),
    (256, 256): Tiling(64, 16, 256, 256, parts=2),
}


class Operand(NamedTuple):
    """Rows, or stages of columns, in shared memory, and where this thread's copies go."""

    shared: cute.Tensor  # rows x elements x stages
    target: cute.Tensor  # chunk, along rows, along elements, stage


class Lines(NamedTuple):
    """Rows, or columns, of one head in memory: keys and values, or queries and ``grad_out``."""

    keys: cute.Tensor
    values: cute.Tensor
    count: Int32


class Backward(AttentionBackward):
    @cute.jit
    def __call__(
        self, grad_out: cute.Tensor, q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, out: cute.Tensor, lse: cute.Tensor,
        grad_q: cute.Tensor, grad_k: cute.Tensor, grad_v: cute.Tensor, grad_sinks: cute.Tensor, scale: Float32, left: Int32,
        right: Int32, q_starts, k_starts, soft_cap: Float32, sinks, deterministic: Boolean, scratch: cute.Tensor, stream: CUstream,
    ):  # fmt: skip
        self.dtype = q.element_type
        tiling = self.tiling
        scoring, statistics = self.scoring(scale, soft_cap), self.statistics(scratch, 0, q)
        mma = tiles.tiled_mma(self.dtype, (tiling.rows // MMA[0], 1))
        if cute.size(q.shape) > 0:  # CUDA refuses an empty grid
            launch = self.row_launch(q, tiling.value_dim, stream)
            self.row_kernel(grad_out, out, lse, statistics, None, None).launch(**launch)
        self.launch_sinks(sinks, lse, statistics, grad_sinks, stream)
        for by_keys in (True, False):
            problem, count = self.problem(q, k, (q_starts, k_starts), left, right, by_keys, tiling.rows)
            gradients = (grad_k, grad_v) if by_keys else (grad_q,)
            if count > 0:
                self.kernel(
                    grad_out, q, k, v, gradients, scoring, scale, statistics, problem, mma, by_keys
                ).launch(
                    grid=[count, tiling.parts, 1], block=[tiling.threads, 1, 1], use_pdl=self.early, stream=stream
                )  # fmt: skip

    @cute.kernel
    def kernel(
        self, grad_out: cute.Tensor, q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, gradients: tuple, scoring: Scoring,
        scale: Float32, statistics: Statistics, problem: Problem, mma: cute.TiledMma, by_keys: cutlass.Constexpr,
    ):  # fmt: skip
        storage = SmemAllocator().allocate(self.tiling.shared_bytes, byte_alignment=SWIZZLED)
        index, part, _ = cute.arch.block_idx()
        thread, _, _ = cute.arch.thread_idx()
        await_previous(self.early)
        side = Side(by_keys, problem, self.tiling.rows, self.tiling.columns)
        if index < problem.order.count():  # which only the device knows if sequences have lengths of their own
            tile = side.tile_at(index)
            first = tile.first_token if side.by_keys else tile.first_query
            targets = [self.of_sequence(x, tile.sequence, first, tile.head) for x in gradients]
            sums = self.add_up((q, grad_out), (k, v), scoring, statistics, side, tile, mma, storage, part)
            scale_sums(sums[0], [scale, scale])
            row = tile.index * self.tiling.rows + accumulator_row(thread)
            for one, target in zip(sums, targets, strict=True):
                self.write(one, target, row, side.row_count(tile), part)

    @cute.jit
    def add_up(self, queries, keys, scoring, statistics, side, tile, mma, storage, part):
        """The sums of a tile's gradients, ``grad_q`` or ``grad_k`` first."""
        tiling, by_keys = self.tiling, side.by_keys
        thread, _, _ = cute.arch.thread_idx()
        row = tile.index * tiling.rows + accumulator_row(thread)
        blocks = side.blocks(tile)
        count = blocks.end - blocks.begin
        steps = count * side.problem.heads_of_key if cutlass.const_expr(by_keys) else count
        rows, columns = self.shared(storage, thread)
        head = tile.head if cutlass.const_expr(by_keys) else tile.head // side.problem.heads_of_key
        own_keys = self.lines(keys, tile.sequence, tile.first_token, head, tile.tokens)
        own_rows = own_keys if cutlass.const_expr(by_keys) else self.queries_of(queries, tile, tile.head)
        self.copy(rows, own_rows, tile.index * tiling.rows, thread, 0)
        if steps > 0:
            self.copy_step(columns, queries, own_keys, side, tile, blocks, Int32(0), thread)
        cute.arch.cp_async_commit_group()
        fragments = self.fragments(mma, rows, columns, part, thread)
        sums = [self.accumulators(mma, cute.size(x.shared, mode=[1]) // tiling.parts) for x in rows]
        sums = sums if by_keys else sums[:1]
        for one in sums:
            one.fill(0.0)
        held = None if by_keys else self.row_statistics(statistics, tile, row)
        for step in cutlass.range(steps, unroll=1):
            cute.arch.cp_async_wait_group(0)  # nothing else is on its way: the next block is asked for below
            cute.arch.sync_threads()  # this block has arrived for all warps, and the one before it is no longer read
            if step + 1 < steps:
                self.copy_step(columns, queries, own_keys, side, tile, blocks, step + 1, thread)
            cute.arch.cp_async_commit_group()
            self.add_block(sums, fragments, held, scoring, statistics, side, tile, blocks, step, row, mma)
        return sums

    def copy_step(self, columns, queries, own_keys, side: Side, tile: Tile, blocks, step: Int32, thread) -> None:
        """Start to copy the columns of a step. If rows are keys, all heads that share them follow each other."""
        count = blocks.end - blocks.begin
        met = self.queries_of(queries, tile, side.column_head(tile, step // count)) if side.by_keys else own_keys
        self.copy(columns, met, (blocks.begin + step % count) * self.tiling.columns, thread, step % STAGES)

    @cute.jit
    def add_block(self, sums, fragments, held, scoring, statistics, side, tile, blocks, step, row, mma):
        """What one block of columns adds to the sums."""
        tiling = self.tiling
        count = blocks.end - blocks.begin
        block, stage = blocks.begin + step % count, step % STAGES
        lefts, rights, across = fragments
        statistic, own = row_of, held
        if cutlass.const_expr(side.by_keys):
            head = side.column_head(tile, step // count)
            statistic, own = column_of, self.column_statistics(statistics, tile, head, block * tiling.columns)
        scores, slopes = (self.accumulators(mma, tiling.columns) for _ in range(2))
        for target, left, right in zip((scores, slopes), lefts, rights, strict=True):
            target.fill(0.0)
            self.multiply_shared(mma, target, left, right, stage)
        self.cap(scores, scoring)
        side.mask(scores, tile, blocks, block, row)
        self.gradient_of_scores(scores, slopes, scoring, *own, statistic)
        weights = cute.make_rmem_tensor(mma.partition_shape_A((tiling.rows, tiling.columns)), self.dtype)
        for target, values, right in zip(sums, (slopes, scores), across, strict=False):
            round_to(weights, values)
            for i in cutlass.range_constexpr(tiling.columns // MMA[2]):
                tiles.load(right, i, stage)
                cute.gemm(mma, target, weights[None, None, i], right.values[None, None, i], target)

    def accumulators(self, mma: cute.TiledMma, columns: int) -> cute.Tensor:
        return cute.make_rmem_tensor(mma.partition_shape_C((self.tiling.rows, columns)), Float32)

    def multiply_shared(self, mma: cute.TiledMma, target: cute.Tensor, left, right, stage) -> None:
        """A product along the elements of a head."""
        for i in range(cute.size(left.values, mode=[2])):
            tiles.load(left, i, 0)
            tiles.load(right, i, stage)
            cute.gemm(mma, target, left.values[None, None, i], right.values[None, None, i], target)

    # Statistics.

    def column_statistics(self, statistics: Statistics, tile: Tile, head: Int32, start: Int32) -> list[list[Float32]]:
        """Those of a thread's columns: two neighbours of every eight."""
        own = self.statistics_of(statistics, tile, head)
        start = start + cute.arch.lane_idx() % 4 * 2
        places = [start + 8 * (i // 2) + i % 2 for i in range(self.tiling.columns // 4)]
        return [[x[cutlass.min(place, tile.queries - 1)] for place in places] for x in own[:2]]

    # Copies. Neighbouring threads copy neighbouring chunks of one row.

    def shared(self, storage, thread) -> list[list[Operand]]:
        """Rows, then stages of columns: of each, what scores are made of and what slopes are made of."""
        tiling, found = self.tiling, []
        chunks = tiles.chunk_copy(tiles.past_l1(), self.dtype, LayoutEnum.ROW_MAJOR, tiling.threads, tiling.line)
        for count, stages in ((tiling.rows, 1), (tiling.columns, STAGES)):
            operands = []
            for width in (tiling.dim, tiling.value_dim):
                lines = tiles.lines(LayoutEnum.ROW_MAJOR, tiling.line)
                shared = tiles.swizzled(storage, self.dtype, lines, (count, width, stages), tiling.line)
                operands.append(Operand(shared, chunks.get_slice(thread).partition_D(shared)))
                storage = (storage + count * width * stages * ELEMENT_BYTES).align(SWIZZLED)
            found.append(operands)
        return found

    def lines(self, tensors: tuple, sequence: Int32, first, head: Int32, count: Int32) -> Lines:
        return Lines(*(self.of_sequence(x, sequence, first, head) for x in tensors), count)

    def queries_of(self, queries: tuple, tile: Tile, head: Int32) -> Lines:
        return self.lines(queries, tile.sequence, tile.first_query, head, tile.queries)

    def copy(self, operands: list[Operand], lines: Lines, first: Int32, thread, stage) -> None:
        """Start to copy rows, or columns, from ``first`` on. The last one stands for those past the end."""
        tiling = self.tiling
        atom = tiles.chunk_atom(tiles.past_l1(), self.dtype)
        for operand, source in zip(operands, (lines.keys, lines.values), strict=True):
            count, width, _ = operand.shared.shape
            for i in range(cute.size(count) // tiling.apart):
                row = cutlass.min(first + i * tiling.apart + thread // tiling.line_threads, lines.count - 1)
                for j in range(cute.size(width) // tiling.line):
                    chunk = j * tiling.line_threads + thread % tiling.line_threads
                    tiles.copy_chunk(atom, source[row, None], chunk, operand.target[None, i, j, stage])

    def fragments(self, mma: cute.TiledMma, rows, columns, part: Int32, thread) -> tuple[list, list, list]:
        """Registers for rows, for columns, and for columns as rows of the last products."""
        matrices = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), self.dtype)
        lefts = []
        for operand in rows:
            registers = mma.make_fragment_A(mma.get_slice(thread).partition_A(operand.shared[None, None, 0]))
            copy = cute.make_tiled_copy_A(matrices, mma)
            lefts.append(tiles.make_fragment(registers, copy, operand.shared, thread))
        rights = [tiles.right_fragment(mma, operand.shared, False, thread) for operand in columns]
        across = []
        for operand in columns:
            layout = cute.select(operand.shared.layout, mode=[1, 0, 2])
            turned = cute.make_tensor(operand.shared.iterator, layout)
            width, count, stages = (cute.size(turned, mode=[i]) for i in range(3))
            own = cute.local_tile(turned, (width // self.tiling.parts, count, stages), (part, 0, 0))
            across.append(tiles.right_fragment(mma, own, True, thread))
        return lefts, rights, across

    @cute.jit
    def write(self, sums, target, row, end, part):
        """Round the sums and write them, two neighbours at a time."""
        rounded = cute.make_rmem_tensor(cute.size(sums), self.dtype)
        round_to(rounded, sums)
        count = cute.size(sums) // 4  # blocks of eight columns
        first = part * (count * (MMA[1] // 2)) + cute.arch.lane_idx() % 4  # pair of elements
        for r in cutlass.range_constexpr(2):
            if row + 8 * r < end:
                for n in cutlass.range_constexpr(count):
                    pair = cute.make_tensor(rounded.iterator + 4 * n + 2 * r, cute.make_layout(2))
                    own = cute.local_tile(target[row + 8 * r, None], (2,), (n * (MMA[1] // 2) + first,))
                    cute.autovec_copy(pair, own)
