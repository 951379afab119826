"""The producer warps of attention of whole sequences on sm_90a: they draw tiles, and copy queries, keys and values by TMA.

Tokens past the end of a sequence arrive as zeros, whatever the memory there contains, because TMA fills in zeros outside
of a tensor: see :func:`ragged_view` for sequences that lie side by side. Keys and values may be in pages. Then a block of them
is loaded by many small copies, each from one page, and each with an end of its own: see :meth:`Producer.load_boxes`. To
issue a copy takes a warp hundreds of cycles, so four warps share them. Consumer warps notice nothing of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Int32, pipeline
from cutlass.cute.nvgpu import cpasync
from cutlass.utils import LayoutEnum, hopper_helpers

from ...sm90.hardware import WGMMA_ROWS
from ...sm90.pipeline import producer_state
from ...sm90.scheduler import draw_tile
from ._attention import Problem, Tile

END = -1  # in place of a tile: there is none left
BOX = 16  # tokens that one copy loads from a page: the size of a page is a multiple of this
LARGE_BOX = 64  # the same, if the size of a page is a multiple of this
# Notes of the producer: whether there is a tile, six facts of it (see ``announce``), and the next tile, at one of two places.
NOTES, NEXT = 9, 7
SLICES = (64, 32, 16)  # columns of 128, 64 or 32 bytes: what one swizzled copy can move of a token
SEQUENCE_END = 2**30  # where every sequence ends, see ``ragged_view``
ADDRESS_WRAP = 2**64 // SEQUENCE_END  # bytes: SEQUENCE_END times this stride is 2**64 bytes
MOST = 2**31 - 1


class Operand(NamedTuple):
    """A tensor that TMA copies from, or to: tokens x columns x heads x what tells sequences apart."""

    atom: cute.CopyAtom
    tensor: cute.Tensor
    staged: cute.ComposedLayout  # its stages in shared memory


class Table(NamedTuple):
    """Where pages are: sequences x pages of a sequence, tokens of a page, and how many tokens lie between two pages."""

    pages: cute.Tensor
    size: Int32
    key_step: Int32
    value_step: Int32


class Copy(NamedTuple):
    """Keys, or values, of one head, and where in shared memory they go."""

    atom: cute.CopyAtom
    target: cute.Tensor
    source: cute.Tensor


@dataclass(frozen=True)
class Blocks:
    """Blocks of keys, or of values, of a tile: in line, or in pages, by small boxes and perhaps by large ones."""

    stages: pipeline.PipelineTmaAsync
    small: Copy
    large: Copy | None = None
    step: Int32 | None = None  # tokens between two pages
    tile: Tile | None = None
    first: Int32 | None = None  # token that a query of the tile sees


@dataclass(frozen=True)
class Producer:
    """A producer warp. The first one draws tiles and copies queries; with pages, others help it with keys and values."""

    tiling: Any
    warps: int  # that load
    queries: pipeline.PipelineTmaAsync
    keys: pipeline.PipelineTmaAsync
    values: pipeline.PipelineTmaAsync
    operands: tuple[Operand, Operand, Operand]  # of queries, keys and values
    shared: tuple[cute.Tensor, cute.Tensor, cute.Tensor]
    large: tuple  # operands of keys and values for large boxes, or None
    problem: Problem
    table: Table | None
    notes: cute.Tensor
    tickets: cute.Tensor
    together: pipeline.NamedBarrier  # of producer warps
    warp: Int32

    @cute.jit
    def load_tiles(self, stages: cutlass.Constexpr):
        """Load queries, keys and values in the order in which they are used."""
        problem, warp = self.problem, self.warp
        count, index, turn = problem.order.count(), cute.arch.block_idx()[0], Int32(0)
        q_state, k_state, v_state = producer_state(1), producer_state(stages), producer_state(stages)
        while index < count:
            following = Int32(0)
            if warp == 0:
                following = draw_tile(self.tickets)  # early, because the answer takes a while
            tile = problem.order.tile_at(index)
            bounds = problem.bounds(tile, self.tiling)
            head = tile.head // problem.heads_of_key
            last = bounds.end - 1
            page, next_page = Int32(0), Int32(0)
            if cutlass.const_expr(self.table is not None):
                first = problem.seen(tile, tile.index * self.tiling.rows)[0]
                page, next_page = self.page_of(tile, last), self.page_of(tile, last - 1)
                own_k, own_v = self.in_pages(tile, head, first)
            else:
                own_k, own_v = self.in_line(tile, head)
            k_state = self.load_block(own_k, last, page, k_state)
            if warp == 0:
                self.load_queries(tile, index, q_state)
            q_state.advance()
            for i in cutlass.range(1, bounds.end - bounds.begin):
                previous, page = page, next_page
                if cutlass.const_expr(self.table is not None):
                    next_page = self.page_of(tile, last - i - 1)  # a block ahead, because the answer takes a while
                k_state = self.load_block(own_k, last - i, page, k_state)
                v_state = self.load_block(own_v, last - i + 1, previous, v_state)
            v_state = self.load_block(own_v, bounds.begin, page, v_state)
            if cutlass.const_expr(self.table is not None):
                following = self.shared_tile(following, turn)
                turn = 1 - turn
            index = following
        if warp == 0:
            self.announce(q_state, Int32(END), None)
            # No queries come with this note: an arrival that expects no bytes makes their stage full.
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(self.queries.producer_get_barrier(q_state), 0)
            self.values.producer_tail(v_state)  # returns when the last values were read

    # The tile scheduler.

    @cute.jit
    def shared_tile(self, following, turn):
        """The next tile, from the first producer warp to the others. Two places: a slow warp may still read one."""
        notes = self.notes
        if self.warp == 0 and cute.arch.lane_idx() == 0:
            notes[NEXT + turn] = following
        self.together.arrive_and_wait()  # the note is visible to all producer warps
        return cute.arch.make_warp_uniform(notes[NEXT + turn])

    @cute.jit
    def announce(self, state, index: Int32, tile):
        """Write down what the next tile is, once the queries of the previous one are no longer needed.

        The barrier of the queries makes it visible. To find a tile among sequences of different lengths takes a
        microsecond, which consumer warps do not have.
        """
        notes = self.notes
        self.queries.sync_object_empty.wait(state.index, state.phase)
        if cute.arch.lane_idx() == 0:
            notes[0] = index
            if cutlass.const_expr(tile is not None):
                facts = (tile.index, tile.head, tile.sequence, tile.queries, tile.tokens, tile.first_query)
                for i in cutlass.range_constexpr(len(facts)):
                    if cutlass.const_expr(facts[i] is not None):
                        notes[1 + i] = facts[i]
        cute.arch.sync_warp()  # orders the notes before the arrival of whichever lane arrives for the warp

    # Copies.

    @cute.jit
    def load_queries(self, tile, index, state):
        tiling, atom = self.tiling, self.operands[0].atom
        own_q = of_head(self.operands[0], tile.sequence, tile.first_query, tile.queries, tile.head)
        own_q = cute.local_tile(own_q, (tiling.rows, tiling.dim), (tile.index, None))
        target, source = partition(atom, self.shared[0], own_q)
        self.announce(state, index, tile)
        self.queries.sync_object_full.arrive(state.index, None)  # the rest of an acquire, which waited in ``announce``
        barrier = self.queries.producer_get_barrier(state)
        cute.copy(atom, source[None, 0], target[None, 0], tma_bar_ptr=barrier)

    def in_line(self, tile: Tile, head: Int32) -> tuple[Blocks, Blocks]:
        tiling, (_, keys, values) = self.tiling, self.operands
        row, *rest = origin(tile.sequence, tile.first_token, tile.tokens)
        own_k = cute.domain_offset((row, 0), keys.tensor[(None, None, head, *rest)])
        own_v = cute.domain_offset((0, row), values.tensor[(None, None, head, *rest)])
        own_k = cute.local_tile(own_k, (tiling.tokens, tiling.dim), (None, 0))
        own_v = cute.local_tile(own_v, (tiling.value_dim, tiling.tokens), (0, None))
        return (
            Blocks(self.keys, Copy(keys.atom, *partition(keys.atom, self.shared[1], own_k))),
            Blocks(self.values, Copy(values.atom, *partition(values.atom, self.shared[2], own_v))),
        )

    def in_pages(self, tile: Tile, head: Int32, first: Int32) -> list[Blocks]:
        """Keys and values of one head, by boxes of both sizes."""
        found = []
        for i, (stages, step) in enumerate(((self.keys, self.table.key_step), (self.values, self.table.value_step))):
            boxes = [
                self.in_boxes(size, operand, self.shared[1 + i], head)
                for size, operand in ((BOX, self.operands[1 + i]), (LARGE_BOX, self.large[i]))
            ]
            found.append(Blocks(stages, *boxes, step, tile, first))
        return found

    def in_boxes(self, size: int, operand, shared: cute.Tensor, head: Int32) -> Copy | None:
        """The stages seen as boxes: see :func:`box_layout`."""
        if operand is None:
            return None
        columns, tokens = cute.size(operand.tensor, mode=[1]), self.tiling.tokens
        stages = cute.size(shared, mode=[2])
        count = stages * (columns // line_of(columns)) * (tokens // size)
        target = cute.make_tensor(shared.iterator, box_layout(shared.element_type, columns, size, count).outer)
        return Copy(operand.atom, target, operand.tensor[None, None, head, None, None])

    @cute.jit
    def load_block(self, own, block, page, state):
        """Wait until a stage is empty, then start to fill it with a block of keys or of values."""
        if cutlass.const_expr(self.table is not None):
            self.load_boxes(own, block, page, state)
        else:
            own.stages.producer_acquire(state)
            barrier = own.stages.producer_get_barrier(state)
            atom, target, source = own.small
            cute.copy(atom, source[None, block], target[None, state.index], tma_bar_ptr=barrier)
        state.advance()
        return state

    def box_token(self, block: Int32) -> Int32:
        """The first token of the box that a lane looks after."""
        tokens = self.tiling.tokens
        return block * tokens + cutlass.min(cute.arch.lane_idx() * BOX, tokens - BOX)

    @cute.jit
    def page_of(self, tile, block):
        """The page of a lane's box. Blocks and boxes that do not exist get any page of the table."""
        place = cutlass.max(self.box_token(block), 0) // self.table.size
        return self.table.pages[tile.sequence, cutlass.min(place, self.table.pages.shape[1] - 1)]

    @cute.jit
    def load_boxes(self, own, block, page, state):
        """Fill a stage from pages."""
        if self.warp == 0:
            own.stages.producer_acquire(state)  # which also says how many bytes will arrive, from all warps
        else:
            own.stages.sync_object_empty.wait(state.index, state.phase)
        if cutlass.const_expr(own.large is None):
            self.copy_boxes(own, own.small, block, page, state)
        else:
            if self.table.size % LARGE_BOX == 0:
                self.copy_boxes(own, own.large, block, page, state)
            else:
                self.copy_boxes(own, own.small, block, page, state)

    @cute.jit
    def copy_boxes(self, own, boxes, block, page, state):
        """Copy this warp's share of boxes.

        A box has as many tokens as its sequence has left there. The others arrive as zeros, whatever the rest of the page
        contains. A box that no query of the tile sees, behind the end or before a window, has none, and its page need not
        exist.
        """
        size, line = (cute.size(boxes.target, mode=[i]) for i in range(2))
        count = self.tiling.tokens // size
        token = self.box_token(block)
        length = cutlass.max(cutlass.min(own.tile.tokens - token, size), 0)
        length = length if token + size > own.first else Int32(0)
        end = page * own.step + token % self.table.size + length
        end = end if length > 0 else Int32(0)
        barrier = own.stages.producer_get_barrier(state)
        for share in cutlass.range_constexpr(0, count, self.warps):
            box = share + self.warp
            # What a box needs to know, the lane has that looks after it. All lanes take part, of warps without a box too.
            lane = cutlass.min(box, count - 1) * (size // BOX)
            row = SEQUENCE_END - cute.arch.shuffle_sync(length, lane)
            tokens = boxes.source[None, None, SEQUENCE_END, cute.arch.shuffle_sync(end, lane)]
            tokens = cute.local_tile(cute.domain_offset((row, 0), tokens), (size, line), (0, None))
            target, source = partition(boxes.atom, boxes.target, tokens)
            if box < count:
                lines = cute.size(source, mode=[1])
                for n in cutlass.range_constexpr(lines):
                    at = (state.index * lines + n) * count + box
                    cute.copy(boxes.atom, source[None, n], target[None, at], tma_bar_ptr=barrier)


def line_of(columns: int) -> int:
    """Columns of a line in shared memory: what one swizzled copy loads of a token."""
    return next(width for width in SLICES if columns % width == 0)


def box_layout(dtype, columns: int, size: int, count: int) -> cute.ComposedLayout:
    """Boxes of ``size`` tokens, a line of columns wide, one after the other in shared memory.

    Keys and values of a block have the same order there: boxes of the first line, boxes of the second line, and so on.
    """
    box = (WGMMA_ROWS, size, line_of(columns))
    return hopper_helpers.make_smem_layout_b(LayoutEnum.ROW_MAJOR, box, dtype, count)


def box_operand(tensor: cute.Tensor, dtype, columns: int, staged: cute.ComposedLayout, size: int) -> Operand:
    """A tensor that TMA loads from, a box at a time."""
    one = load_operand(tensor, box_layout(dtype, columns, size, 1), (size, line_of(columns)))
    return one._replace(staged=staged)


def load_operand(tensor: cute.Tensor, staged: cute.ComposedLayout, tile: tuple[int, int]) -> Operand:
    """A tensor that TMA loads from, a tile at a time."""
    one = cute.select(staged, mode=[0, 1])
    return Operand(*cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), tensor, one, tile), staged)


def origin(sequence: Int32, first: Int32 | None, length: Int32) -> tuple:
    """Where a sequence begins: its first row, and what tells it apart. ``first`` is given if sequences lie side by side."""
    return (0, sequence) if first is None else (SEQUENCE_END - length, SEQUENCE_END, first + length)


def of_head(operand: Operand, sequence: Int32, first: Int32 | None, length: Int32, head: Int32) -> cute.Tensor:
    """Tokens x columns of one head of a sequence: see :func:`origin`."""
    row, *rest = origin(sequence, first, length)
    return cute.domain_offset((row, 0), operand.tensor[(None, None, head, *rest)])


def ragged_view(tensor: cute.Tensor) -> cute.Tensor:
    """Tokens x columns x heads of sequences side by side, so that TMA knows where each sequence ends.

    TMA compares each coordinate with an extent. So a sequence of n tokens has the last n places of a mode that is long
    enough for all: past its end, the mode ends too. Its first token is then ``SEQUENCE_END - n`` tokens too far. A further
    mode, always at place ``SEQUENCE_END``, goes back by as many tokens. A stride cannot be negative. But addresses have 64
    bits, and ``SEQUENCE_END * ADDRESS_WRAP`` is 2**64 bytes, which leave an address as it is. So the stride of this
    mode is ``ADDRESS_WRAP`` less the stride of tokens. The last mode, with the stride of tokens again, is at the end of the
    sequence. (With a lower base address in place of the mode that goes back, boxes that were outside as a whole made
    illegal accesses.)
    """
    _, columns, heads = tensor.shape
    stride = tensor.stride[0]
    shape = (SEQUENCE_END, columns, heads, MOST, MOST)
    wrap = ADDRESS_WRAP * 8 // tensor.element_type.width  # elements
    strides = (*tensor.stride, wrap - stride, stride)
    return cute.make_tensor(tensor.iterator, cute.make_layout(shape, stride=strides))


@cute.jit
def noted(notes: cute.Tensor, begin: cutlass.Constexpr, end: cutlass.Constexpr):
    """Some of the notes. Only the lane that later releases them, together with the queries, reads them for its warp.

    So no other lane can still be reading when the producer warp writes the next notes.
    """
    values = cute.make_rmem_tensor(end - begin, Int32)
    values.fill(0)
    if cute.arch.lane_idx() == 0:
        for i in cutlass.range_constexpr(end - begin):
            values[i] = notes[begin + i]
    return [cute.arch.make_warp_uniform(cute.arch.shuffle_sync(values[i], 0)) for i in range(end - begin)]


def partition(atom: cute.CopyAtom, shared: cute.Tensor, tiles: cute.Tensor):
    return cpasync.tma_partition(
        atom, 0, cute.make_layout(1), cute.group_modes(shared, 0, 2), cute.group_modes(tiles, 0, 2)
    )
