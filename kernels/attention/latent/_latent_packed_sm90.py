"""Latent attention on sm_90a against packed caches, of whole sequences or of chosen tokens.

A packed token is 656 bytes: 512 elements of f8e4m3, four scales of f32, each of 128 elements, and 64 elements of bf16 with
the position. It is the format of inference engines for DeepSeek-V3.2.

As ``_latent_sm90``, but wgmma multiplies elements of 16 bits here, so threads convert tokens. There are two producer warp
groups, one for each stage. Each of their warps has 16 tokens of a tile. It copies their bytes by cp.async into the second half of
the memory that they will need, and converts two lines at a time in their place. It looks up where its tokens of the next
tile are before that, because a page or an index takes as long to read as a token.

Marks of tokens that exist are those of ``_latent_sparse_sm90``.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float8E4M3FN, Float32, Int16, Int32, Uint32, pipeline

from ..._device import WARP
from ..._versions import SmemAllocator
from ...sm90.hardware import GROUP_WARPS
from ...sm90.pipeline import producer_state
from ..decoding._cache_sm90 import LINE
from ..decoding._merge import Call, Piece
from ._latent_sm90 import (
    KEY_LINES,
    LINE_BYTES,
    OWN,
    OWN_LINES,
    STAGES,
    TOKENS,
    VALUE,
    VALUE_LINES,
    LatentDecode,
    line_at,
    use_of,
    uses_after,
)
from ._latent_sparse_sm90 import SparseLatentDecode
from ._places import CHUNK_BYTES, LINE_CHUNKS, await_empty, copy_bytes, hand_over, place_of

OWN_TOKENS = TOKENS // GROUP_WARPS  # of a tile, that a warp has
LINE_LANES = LINE // CHUNK_BYTES  # that have a line of a token
LANE_ROWS = OWN_TOKENS * LINE_LANES // WARP  # tokens of which a lane has chunks
SCALES = LINE_LANES  # of a token: each of the lanes that have a line of it has one
SCALE_LINES = VALUE_LINES // SCALES  # that share a scale, and are converted together
SCALE_BYTES = 4
PACKED = VALUE + SCALES * SCALE_BYTES + LINE * 2  # bytes of a token
PART_BYTES = LINE_BYTES // GROUP_WARPS  # of a line: the memory of a warp


class PackedLatentDecode(LatentDecode):
    producers = STAGES
    # A block gets 128 registers per thread. Consumers cannot do with fewer than 208.
    registers, held = (48, 208), 0
    wide = OWN // 2  # an instruction may not need more registers than a block begins with

    def cache_operands(self, cache: cute.Tensor) -> tuple:
        """Nothing: threads copy."""
        return ()

    def pipelines(self, shared: SmemAllocator) -> tuple[pipeline.PipelineAsync, ...]:
        """Consumers release lines to ``arrived``, which is never full: nothing arrives by TMA."""
        ready = self.handing(shared, STAGES * KEY_LINES, GROUP_WARPS)
        return self.arriving(shared, 0), ready, self.handing(shared, STAGES, GROUP_WARPS)

    @cute.jit
    def produce(self, run, work, operands, call, warp):
        """A warp: its quarter of every other tile. The first one brings queries, too."""
        first, part = warp // GROUP_WARPS, warp % GROUP_WARPS
        q_state, uses, tile = producer_state(1), (Int32(0), Int32(0)), run.first
        while tile < run.end:
            piece = run.piece(tile)
            if warp == 0:
                self.load_queries(run, piece, work, operands[0], q_state)
                q_state.advance()
            following = self.look_up(call, piece, piece.start + first, part)
            for index in cutlass.range(piece.start + first, piece.stop, self.producers, unroll=1):
                found, following = following, self.look_up(call, piece, index + self.producers, part)
                stage, use = use_of(uses, piece, index)
                self.bring(call, work, self.place(call, piece, index, part, found), stage, part, use)
            uses = uses_after(uses, piece)
            tile = piece.next

    def token(self, piece: Piece, index: Int32, part: Int32) -> tuple[Int32, Int32]:
        """The token of a tile that this lane looks up, and the same or the last one of the sequence.

        Past the end of a sequence its last token is copied once more. Consumers know how long a sequence is.
        """
        token = index * TOKENS + part * OWN_TOKENS + cute.arch.lane_idx() % OWN_TOKENS
        return token, cutlass.min(token, piece.length - 1)

    def look_up(self, call: Call, piece: Piece, index: Int32, part: Int32) -> Int32:
        """What memory tells about a token: its index, or its page. Nothing is computed of it yet, because it takes a while."""
        _, last = self.token(piece, index, part)
        if call.indices is not None:
            return call.indices[piece.sequence, last]
        return piece.sequence if call.pages is None else call.pages[piece.sequence, last // call.cache.shape[1]]

    @cute.jit
    def place(self, call, piece, index, part, found) -> tuple[Int32, Int32, Int32]:
        """Page and place of a token, and whether it exists. If not, they are those of the first one."""
        token, last = self.token(piece, index, part)
        pages, size, _ = call.cache.shape
        exists, page, place = cutlass.Boolean(True), found, last
        if cutlass.const_expr(call.indices is not None):
            exists = token < piece.length and found >= 0 and found < pages * size
            found = found if exists else Int32(0)
            page, place = found // size, found % size
        elif cutlass.const_expr(call.pages is not None):
            place = last % size
        return page, place, Int32(exists)

    @cute.jit
    def bring(self, call, work, places, stage, part, use):
        """Copy tokens, each line when its memory is empty. Then convert them, in the same order."""
        tokens, exist, scales = [], [], []
        for i in cutlass.range_constexpr(LANE_ROWS):
            page, place, exists = (cute.arch.shuffle_sync(value, lane_row(i)) for value in places)
            token = call.cache[page, place, None].iterator
            source = cute.recast_ptr((token + VALUE).align(CHUNK_BYTES), dtype=Float32)
            tokens.append(token + lane_chunk() * CHUNK_BYTES)
            exist.append(exists != 0)
            scales.append(cute.make_tensor(source, cute.make_layout(SCALES))[lane_chunk()])
        self.write_marks(work, places[2], stage, part, use)
        for first in cutlass.range_constexpr(0, VALUE_LINES, OWN_LINES):
            for position in cutlass.range(first, first + OWN_LINES, unroll=1):
                line = line_at(position, stage)
                await_empty(work, stage, use, line)
                for i in cutlass.range_constexpr(LANE_ROWS):
                    target = self.arrival(work.keys, stage * KEY_LINES + line, part, lane_row(i))
                    copy_bytes((tokens[i] + line * LINE).align(CHUNK_BYTES), target)
            cute.arch.cp_async_commit_group()
        self.copy_last(call, work, places[:2], stage, part, use)
        for first in cutlass.range_constexpr(0, VALUE_LINES, OWN_LINES):
            # Groups of copies end in order. Those of later lines, and of the last line, may be on their way.
            cute.arch.cp_async_wait_group((VALUE_LINES - first) // OWN_LINES)
            cute.arch.sync_warp()  # all lanes have waited for what they have copied
            for position in cutlass.range(first, first + OWN_LINES, SCALE_LINES, unroll=1):
                line = line_at(position, stage)
                self.convert(work.keys, stage * KEY_LINES + line, line // SCALE_LINES, part, exist, scales)
                hand_over(work, stage, use, tuple(line + i for i in range(SCALE_LINES)))
        cute.arch.cp_async_wait_group(0)  # for the last line
        hand_over(work, stage, use, (KEY_LINES - 1,))

    def write_marks(self, work, exists, stage, part, use) -> None:
        """Which tokens of a tile exist, if consumers cannot know."""
        if work.marks is not None:
            self.mark(work, exists, stage, part, use)

    @cute.jit
    def mark(self, work, exists, stage, part, use):
        marks = cute.arch.vote_ballot_sync(exists != 0)
        await_empty(work, stage, use, line_at(0, stage))  # the group that reads marks has released the first lines
        if cute.arch.lane_idx() == 0:
            memory = cute.recast_ptr(work.marks.iterator, dtype=Int16)
            cute.make_tensor(memory, cute.make_layout(STAGES * GROUP_WARPS))[stage * GROUP_WARPS + part] = Int16(marks)

    def arrival(self, keys: cute.Tensor, line, part, row) -> cute.Pointer:
        """Where a lane's chunk of a token arrives: in the second half of the memory that a warp has of a line."""
        memory = cute.recast_ptr(keys.iterator, dtype=Float8E4M3FN)
        place = line * LINE_BYTES + part * PART_BYTES + PART_BYTES // 2 + row * LINE + lane_chunk() * CHUNK_BYTES
        return (memory + place).align(CHUNK_BYTES)

    @cute.jit
    def copy_last(self, call, work, where, stage, part, use):
        """The elements of bf16, which need no conversion. Tokens that do not exist have some: their scores are masked."""
        line = KEY_LINES - 1
        await_empty(work, stage, use, line)
        chunk = cute.arch.lane_idx() % LINE_CHUNKS
        for i in cutlass.range_constexpr(OWN_TOKENS * LINE_CHUNKS // WARP):
            row = i * (WARP // LINE_CHUNKS) + cute.arch.lane_idx() // LINE_CHUNKS
            page, place = (cute.arch.shuffle_sync(value, row) for value in where)
            token = call.cache[page, place, None].iterator + (VALUE + SCALES * SCALE_BYTES + chunk * CHUNK_BYTES)
            target = place_of(work.keys, stage * KEY_LINES + line, part * OWN_TOKENS + row, chunk)
            copy_bytes(token.align(CHUNK_BYTES), target)
        cute.arch.cp_async_commit_group()

    @cute.jit
    def convert(self, keys, first, scale_index, part, exist, scales):
        """Elements of lines that share a scale, times this, rounded, where TMA would have brought them."""
        held = []
        for line in cutlass.range_constexpr(SCALE_LINES):
            for i in cutlass.range_constexpr(LANE_ROWS):
                chunk = cute.make_rmem_tensor(CHUNK_BYTES, Float8E4M3FN)
                source = self.arrival(keys, first + line, part, lane_row(i))
                cute.autovec_copy(cute.make_tensor(source, chunk.layout), chunk)
                held.append(chunk)
        cute.arch.sync_warp()  # all lanes have read the lines before one overwrites them
        for i in cutlass.range_constexpr(LANE_ROWS):
            lane = cute.arch.lane_idx() // SCALES * SCALES + scale_index
            scale = cute.arch.shuffle_sync(scales[i], lane)
            scale = scale if exist[i] else Float32(0)  # here, because it has arrived by now
            for line in cutlass.range_constexpr(SCALE_LINES):
                words = cute.recast_tensor(held[line * LANE_ROWS + i], Uint32)
                for w in cutlass.range_constexpr(cute.size(words)):
                    words[w] = words[w] if exist[i] else Uint32(0)
                wide = cute.make_rmem_tensor(CHUNK_BYTES, self.dtype)
                wide.store((held[line * LANE_ROWS + i].load().to(Float32) * scale).to(self.dtype))
                halves = cute.make_tensor(wide.iterator, cute.make_layout((CHUNK_BYTES // 2, 2)))
                for half in cutlass.range_constexpr(2):
                    row = part * OWN_TOKENS + lane_row(i)
                    target = place_of(keys, first + line, row, lane_chunk() * 2 + half)
                    cute.autovec_copy(halves[None, half], cute.make_tensor(target, cute.make_layout(CHUNK_BYTES // 2)))


class PackedSparseLatentDecode(PackedLatentDecode):
    __call__, marks = SparseLatentDecode.__call__, SparseLatentDecode.marks


def lane_row(i: int) -> Int32:
    """The tokens of a warp of which this lane has chunks."""
    return i * (WARP // LINE_LANES) + cute.arch.lane_idx() // LINE_LANES


def lane_chunk() -> Int32:
    """The chunk of a line of 64 bytes that a lane has."""
    return cute.arch.lane_idx() % LINE_LANES
