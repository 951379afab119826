"""Attention of queries against chosen tokens of a packed cache of latent vectors, for sm_90a.

A packed token is 656 bytes: 512 elements of f8e4m3, four scales of f32, each of 128 elements, and 64 elements of bf16 with
the position. It is the format of DeepSeek-V3.2 in inference engines.

As ``_latent_sparse_sm90``. A warp copies the bytes of its 16 tokens of a line into the second half of the memory that they
will need, and converts them in their place.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float8E4M3FN, Float32, Int32

from ..sm90.hardware import GROUP_WARPS
from ._cache_sm90 import LINE
from ._latent_sm90 import KEY_LINES, LINE_BYTES, VALUE, VALUE_LINES, line_at
from ._latent_sparse_sm90 import (
    CHUNK_BYTES,
    LINE_CHUNKS,
    SparseLatentDecode,
    copy_bytes,
    copy_chunk,
    place_of,
)

SCALES = 4  # of a token
SCALE_LINES = VALUE_LINES // SCALES  # that share a scale
SCALE_BYTES = 4
PACKED = VALUE + SCALES * SCALE_BYTES + LINE * 2  # bytes of a token
NARROW_CHUNKS = LINE // CHUNK_BYTES  # of a line of a token, before it is converted
PART_BYTES = LINE_BYTES // GROUP_WARPS  # of a line: the memory of a warp
EARLY = 5  # lines that are converted while the others are still on their way


class PackedLatentDecode(SparseLatentDecode):
    sharers = GROUP_WARPS  # a tile takes half of the time then; two warps for each stage were as fast

    @cute.jit
    def gather(self, call, work, chosen, stage: cutlass.Constexpr, part, use):
        """As in the base class, but lines are converted before they are handed over. The last one needs no conversion."""
        rows = self.rows_of(call.cache, chosen, NARROW_CHUNKS)
        scales = [self.load_scales(row) for row in rows]
        if chosen.complete:
            sources = [(row.token.iterator + narrow_chunk() * CHUNK_BYTES).align(CHUNK_BYTES) for row in rows]
            places = [self.narrow_place(work.keys, stage * KEY_LINES, part, row.index) for row in rows]
            for position in cutlass.range_constexpr(VALUE_LINES):
                line = self.acquire(work, chosen, stage, part, use, position)
                for i in cutlass.range_constexpr(len(rows)):
                    copy_bytes(sources[i] + line * LINE, places[i] + line * LINE_BYTES)
                cute.arch.cp_async_commit_group()
        else:
            for position in cutlass.range(VALUE_LINES, unroll=1):
                line = self.acquire(work, chosen, stage, part, use, position)
                for i in cutlass.range_constexpr(len(rows)):
                    place = self.narrow_place(work.keys, stage * KEY_LINES + line, part, rows[i].index)
                    copy_chunk(rows[i], narrow_chunk() * CHUNK_BYTES + line * LINE, place)
                cute.arch.cp_async_commit_group()
        line = self.acquire(work, chosen, stage, part, use, VALUE_LINES)
        wide = self.rows_of(call.cache, chosen, LINE_CHUNKS)
        self.copy_line(wide, work.keys, stage * KEY_LINES + line, part, VALUE + SCALES * SCALE_BYTES)
        cute.arch.cp_async_commit_group()
        for first, end in ((0, EARLY), (EARLY, VALUE_LINES)):
            cute.arch.cp_async_wait_group(KEY_LINES - end)
            cute.arch.sync_warp()  # all lanes have waited for what they have copied
            for position in cutlass.range(first, end, unroll=1):
                self.convert(rows, scales, work.keys, stage, part, line_at(position, stage))
                self.hand_line_over(work, stage, use, position)
        cute.arch.cp_async_wait_group(0)
        self.hand_line_over(work, stage, use, VALUE_LINES)

    @cute.jit
    def load_scales(self, row):
        """The scales of a token: 0 if it does not exist."""
        scales = cute.make_rmem_tensor(SCALES, Float32)
        source = cute.recast_ptr((row.token.iterator + VALUE).align(CHUNK_BYTES), dtype=Float32)
        cute.autovec_copy(cute.make_tensor(source, scales.layout), scales)
        for i in cutlass.range_constexpr(SCALES):
            scales[i] = scales[i] if row.exists != 0 else Float32(0)
        return scales

    def narrow_place(self, keys: cute.Tensor, line, part, row) -> cute.Pointer:
        """Where a lane's chunk of a token arrives: in the second half of the memory that a warp has of a line."""
        memory = cute.recast_ptr(keys.iterator, dtype=Float8E4M3FN)
        place = line * LINE_BYTES + part * PART_BYTES + PART_BYTES // 2 + row * LINE + narrow_chunk() * CHUNK_BYTES
        return (memory + place).align(CHUNK_BYTES)

    @cute.jit
    def convert(self, rows, scales, keys, stage, part, line):
        """Elements of 8 bits times their scale, rounded, where TMA would have brought them."""
        memory_line = stage * KEY_LINES + line
        held = [cute.make_rmem_tensor(CHUNK_BYTES, Float8E4M3FN) for _ in rows]
        for i in cutlass.range_constexpr(len(rows)):
            source = self.narrow_place(keys, memory_line, part, rows[i].index)
            cute.autovec_copy(cute.make_tensor(source, cute.make_layout(CHUNK_BYTES)), held[i])
        cute.arch.sync_warp()  # all lanes have read the line before one overwrites it
        wide = cute.make_rmem_tensor(CHUNK_BYTES, self.dtype)
        halves = cute.make_tensor(wide.iterator, cute.make_layout((CHUNK_BYTES // 2, 2)))
        for i in cutlass.range_constexpr(len(rows)):
            scale = scales[i][0]
            for j in cutlass.range_constexpr(1, SCALES):
                scale = scales[i][j] if line // SCALE_LINES == j else scale
            wide.store((held[i].load().to(Float32) * scale).to(self.dtype))
            for half in cutlass.range_constexpr(2):
                target = place_of(keys, memory_line, part * self.own + rows[i].index, narrow_chunk() * 2 + half)
                cute.autovec_copy(halves[None, half], cute.make_tensor(target, cute.make_layout(CHUNK_BYTES // 2)))


def narrow_chunk() -> Int32:
    """The chunk of a line of 64 bytes that a lane copies and converts."""
    return cute.arch.lane_idx() % NARROW_CHUNKS
