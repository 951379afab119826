"""Attention of queries against chosen tokens of a cache of latent vectors, for sm_90a.

As ``_latent_sm90``, but the tokens of a tile lie anywhere. So threads copy them, a row of 128 bytes of a line at a time, by
cp.async. Two warps of the producer group fill each stage, half of the tokens each. A line is ready when both have arrived.

A query is a sequence of one token here, and its indices are its pages of one token. An index may name no token: then the
place of the token is cleared, and its bit of ``Work.marks`` is 0.
"""

from __future__ import annotations

from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32, pipeline

from ..._device import WARP
from ..._versions import SmemAllocator
from ...sm80.tiles import CHUNK
from ...sm90.hardware import GROUP_WARPS
from ...sm90.pipeline import producer_state
from ..decoding._cache_sm90 import LINE
from ..decoding._merge import Call
from ..prompts._producer_sm90 import load_operand
from ._latent_sm90 import (
    KEY_LINES,
    ROWS,
    STAGES,
    TOKENS,
    LatentDecode,
    line_at,
    use_of,
    uses_after,
)
from ._places import CHUNK_BYTES, LINE_CHUNKS, await_empty, copy_bytes, copy_chunk, hand_over, place_of

SHARERS = GROUP_WARPS // STAGES  # warps that fill a tile
OWN = TOKENS // SHARERS  # tokens of a tile that a warp copies: a word has a bit for each


class Chosen(NamedTuple):
    """The tokens of a tile that a warp copies: this lane's place in the cache, which tokens of the warp exist, and if all do."""

    page: Int32
    place: Int32
    marks: Int32
    complete: cutlass.Boolean


class Row(NamedTuple):
    """A token that a lane copies chunks of: its vector in the cache, its number among those of the warp, and whether it exists."""

    token: cute.Tensor
    index: Int32
    exists: Int32


class SparseLatentDecode(LatentDecode):
    registers, held = (72, 216), 0  # a block gets 168 per thread

    @cute.jit
    def __call__(
        self, q: cute.Tensor, cache: cute.Tensor, indices: cute.Tensor, lengths: cute.Tensor, out: cute.Tensor,
        scale: Float32, parts: cute.Tensor, multiprocessors: Int32, stream: CUstream,
    ):  # fmt: skip
        self.dtype = q.element_type
        q_rows = cute.make_tensor(q.iterator, cute.select(q.layout, mode=[1, 2, 0]))
        operands = (load_operand(q_rows, self.staged_queries(), (ROWS, LINE)),)
        queries, heads, value = out.shape
        strides = out.stride[0], out.stride[0], *out.stride[1:]
        rows = cute.make_tensor(out.iterator, cute.make_layout((queries, 1, heads, value), stride=strides))
        call = Call(cache, lengths, rows, None, None, parts, indices)
        self.launch_both(operands, scale, call, multiprocessors, stream)

    def pipelines(self, shared: SmemAllocator) -> tuple[pipeline.PipelineAsync, ...]:
        """Consumers release lines to ``arrived``, which is never full: nothing arrives by TMA."""
        ready = self.handing(shared, STAGES * KEY_LINES, SHARERS)
        return self.arriving(shared, 0), ready, self.handing(shared, STAGES, GROUP_WARPS)

    def marks(self, shared: SmemAllocator) -> cute.Tensor:
        return shared.allocate_tensor(Int32, cute.make_layout((TOKENS // OWN, STAGES)), 16)

    @cute.jit
    def produce(self, run, work, operands, call, warp):
        """A warp: its part of each of its tiles. The first one brings queries, too."""
        first, part = warp // SHARERS, warp % SHARERS
        q_state = producer_state(1)
        uses = (Int32(0), Int32(0))
        tile = run.first
        while tile < run.end:
            piece = run.piece(tile)
            if warp == 0:
                self.load_queries(run, piece, work, operands[0], q_state)
                q_state.advance()
            for index in cutlass.range(piece.start + first, piece.stop, STAGES):
                stage, use = use_of(uses, piece, index)
                chosen = self.choose(call, piece, index * TOKENS + part * OWN)
                for own in cutlass.range_constexpr(STAGES):  # with places that are known when it is compiled
                    if stage == own:
                        self.gather(call, work, chosen, own, part, use)
            uses = uses_after(uses, piece)
            tile = piece.next

    @cute.jit
    def choose(self, call, piece, first):
        """The tokens of a warp, from place ``first`` of the indices on. What does not exist is token 0."""
        token = first + cute.arch.lane_idx() % OWN
        index = call.indices[piece.sequence, cutlass.min(token, piece.length - 1)]
        pages, size, _ = call.cache.shape
        exists = token < piece.length and index >= 0 and index < pages * size
        index = index if exists else Int32(0)
        marks = cute.arch.vote_ballot_sync(exists)
        return Chosen(index // size, index % size, marks, marks == -1)

    @cute.jit
    def gather(self, call, work, chosen, stage: cutlass.Constexpr, part, use):
        """Copy the tokens of a warp, line by line, each when its memory is empty. Then hand the lines over, in the same order."""
        rows = self.rows_of(call.cache, chosen, LINE_CHUNKS)
        if chosen.complete:
            sources = [(row.token.iterator + lane_chunk() * CHUNK).align(CHUNK_BYTES) for row in rows]
            targets = [place_of(work.keys, stage * KEY_LINES, part * OWN + row.index, lane_chunk()) for row in rows]
            for position in cutlass.range_constexpr(KEY_LINES):
                line = self.acquire(work, chosen, stage, part, use, position)
                for i in cutlass.range_constexpr(len(rows)):
                    copy_bytes(sources[i] + line * LINE, targets[i] + line * TOKENS * LINE)
                cute.arch.cp_async_commit_group()
        else:
            for position in cutlass.range(KEY_LINES, unroll=1):
                line = self.acquire(work, chosen, stage, part, use, position)
                self.copy_line(rows, work.keys, stage * KEY_LINES + line, part, line * LINE)
                cute.arch.cp_async_commit_group()
        for position in cutlass.range_constexpr(KEY_LINES):
            cute.arch.cp_async_wait_group(
                KEY_LINES - 1 - position
            )  # lines arrive in order; later ones may be on their way
            hand_over(work, stage, use, (line_at(position, stage),))

    @cute.jit
    def acquire(self, work, chosen, stage, part, use, position):
        """Wait until the memory of a line is empty."""
        line = line_at(position, stage)
        await_empty(work, stage, use, line)
        if position == 0 and cute.arch.lane_idx() == 0:  # the group that reads marks has released the first lines
            work.marks[part, stage] = chosen.marks
        return line

    @cute.jit
    def rows_of(self, cache, chosen, lanes: cutlass.Constexpr):
        """The tokens of which this lane copies chunks, if a line of a token is copied by ``lanes`` lanes."""
        rows = []
        for i in cutlass.range_constexpr(lanes * OWN // WARP):
            token = i * (WARP // lanes) + cute.arch.lane_idx() // lanes
            page = cute.arch.shuffle_sync(chosen.page, token)
            place = cute.arch.shuffle_sync(chosen.place, token)
            rows.append(Row(cache[page, place, None], token, chosen.marks >> token & 1))
        return rows

    @cute.jit
    def copy_line(self, rows, keys, line, part, column):
        """Start to copy a line of each token, from ``column`` of the cache on, to where TMA would have brought it."""
        for i in cutlass.range_constexpr(len(rows)):
            elements = CHUNK_BYTES * 8 // rows[i].token.element_type.width
            target = place_of(keys, line, part * OWN + rows[i].index, lane_chunk())
            copy_chunk(rows[i].token, rows[i].exists != 0, column + lane_chunk() * elements, target)


def lane_chunk() -> Int32:
    """The chunk of a line of 128 bytes that a lane copies."""
    return cute.arch.lane_idx() % LINE_CHUNKS
