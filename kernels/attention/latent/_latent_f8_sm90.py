"""Attention of new tokens against a cache of latent vectors of f8e4m3, for sm_90a.

As ``_latent_sm90``, but wgmma multiplies elements of 16 bits here, because a transposed operand cannot be narrower. So TMA
brings a line of 64 columns into the second half of the memory that it will need. A warp of the producer group converts it,
exactly, in its place. Both products are of f16, because one instruction makes f16 of two elements, and bf16 takes four.
Queries of bf16 become f16, too: see ``normalized`` of ``_decode_f8``.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float8E4M3FN, Float16, Float32, Int32, pipeline

from ..._device import WARP
from ..._versions import SmemAllocator
from ...sm90.hardware import ALIGNMENT, CONSUMERS, GROUP_WARPS, WARP_GROUP, accumulator_row
from ..decoding._cache_sm90 import LINE
from ..decoding._decode_f8 import bits
from ._latent_sm90 import (
    KEY_LINES,
    LINE_BYTES,
    ROWS,
    STAGES,
    TOKENS,
    LatentDecode,
    line_at,
    line_state,
    use_of,
    uses_after,
)

CHUNK = 16  # elements that a lane converts at once
LINE_CHUNKS = LINE // CHUNK
CONVERTERS = 3  # warps


class NarrowLatentDecode(LatentDecode):
    # A block gets 168 registers per thread. Consumers cannot do with fewer than 208, and more to hold queries.
    registers, held = (56, 224), 1

    def use_dtype(self, dtype: type[cutlass.Numeric]) -> None:
        self.dtype, self.converted = Float16, dtype == BFloat16

    def query_scales(self, shared: SmemAllocator) -> cute.Tensor | None:
        return shared.allocate_tensor(Float32, cute.make_layout(ROWS), 16) if self.converted else None

    def box_layout(self) -> cute.Layout:
        """A line of a box, row after row."""
        return cute.make_layout((self.box, LINE), stride=(LINE, 1))

    def pipelines(self, shared: SmemAllocator) -> tuple[pipeline.PipelineAsync, ...]:
        """A line is ready when one warp has converted what TMA has brought."""
        arrived = self.arriving(shared, LINE_BYTES // 2)
        return arrived, self.handing(shared, STAGES * KEY_LINES, 1), self.handing(shared, STAGES, GROUP_WARPS)

    def lines(self, keys: cute.Tensor, dtype: type[cutlass.Numeric]) -> cute.Tensor:
        """Where lines of the cache arrive: in the second half of the memory that they will have when converted."""
        memory = cute.recast_ptr(keys.iterator, dtype=dtype) + LINE_BYTES // 2  # without the swizzle of the layout
        shape, stride = (TOKENS, LINE, STAGES * KEY_LINES), (LINE, 1, LINE_BYTES)
        return cute.make_tensor(memory.align(ALIGNMENT), cute.make_layout(shape, stride=stride))

    @cute.jit
    def beside_loading(self, run, work, warp):
        """A warp: every third line of each tile, from elements of 8 bits to elements of 16 bits in the same place."""
        uses = (Int32(0), Int32(0))
        tile = run.first
        while tile < run.end:
            piece = run.piece(tile)
            for index in cutlass.range(piece.start, piece.stop):
                stage, use = use_of(uses, piece, index)
                for i in cutlass.range_constexpr(KEY_LINES // CONVERTERS):
                    state = line_state(stage, use, line_at(i * CONVERTERS + warp, stage))
                    work.arrived.consumer_wait(state)  # TMA has brought it; consumers release it, not this warp
                    self.convert(work.keys, state.index)
                    cute.arch.fence_proxy("async.shared", space="cta")  # wgmma reads what threads have written
                    cute.arch.sync_warp()  # orders the writes of all lanes before the arrival of one
                    if cute.arch.lane_idx() == 0:
                        work.ready.producer_commit(state)
            uses = uses_after(uses, piece)
            tile = piece.next

    @cute.jit
    def convert(self, keys, line):
        """Write chunks to where TMA would have brought them: the eight of a line of 128 bytes are swizzled by its row."""
        lane = cute.arch.lane_idx()
        memory = cute.recast_ptr(keys.iterator, dtype=self.dtype)  # without the swizzle of the layout
        narrow = self.lines(keys, Float8E4M3FN)[None, None, line]
        rows = WARP // LINE_CHUNKS  # that a warp has a chunk of at a time
        held = [cute.make_rmem_tensor(CHUNK, Float8E4M3FN) for _ in range(TOKENS // rows)]
        for i in cutlass.range_constexpr(TOKENS // rows):
            row = narrow[i * rows + lane // LINE_CHUNKS, None]
            cute.autovec_copy(cute.local_tile(row, (CHUNK,), (lane % LINE_CHUNKS,)), held[i])
        cute.arch.sync_warp()  # all lanes have read the line before one overwrites it
        wide = cute.make_rmem_tensor(CHUNK, self.dtype)
        halves = cute.make_tensor(wide.iterator, cute.make_layout((CHUNK // 2, 2)))
        for i in cutlass.range_constexpr(TOKENS // rows):
            row = i * rows + lane // LINE_CHUNKS
            wide.store(held[i].load().to(self.dtype))
            for half in cutlass.range_constexpr(2):
                within = (lane % LINE_CHUNKS * 2 + half) ^ (row % 8)
                place = memory + (line * TOKENS + row) * LINE + within * (CHUNK // 2)
                target = cute.make_tensor(place.align(CHUNK), cute.make_layout(CHUNK // 2))
                cute.autovec_copy(halves[None, half], target)

    @cute.jit
    def prepare_queries(self, work, scale, scales, half: cutlass.Constexpr):
        """Queries of bf16 become f16 in their place, and get scales. Each warp group has half of the rows, four lanes a row."""
        if cutlass.const_expr(self.converted):
            thread = cute.arch.thread_idx()[0] % WARP_GROUP
            row = half * (ROWS // 2) + thread // 4
            # The swizzle moves nothing out of its row.
            first = cute.recast_ptr(work.queries.iterator, dtype=BFloat16) + (row * LINE + thread % 4 * CHUNK)
            shape, stride = (CHUNK, KEY_LINES), (1, ROWS * LINE)
            chunks = cute.make_tensor(first.align(2 * CHUNK), cute.make_layout(shape, stride=stride))
            largest = Float32(0)
            for line in cutlass.range(KEY_LINES, unroll=1):
                largest = cute.arch.fmax(largest, largest_of(chunks[None, line]))
            largest = cute.arch.warp_reduction(largest, cute.arch.fmax, threads_in_group=4)
            exponent = cutlass.max(bits(largest, Float32, Int32) >> 23, 15)  # biased by 127
            factor = bits((268 - exponent) << 23, Int32, Float32)
            for line in cutlass.range(KEY_LINES, unroll=1):
                round_in_place(chunks[None, line], factor)
            if thread % 4 == 0:
                work.query_scales[row] = scale * bits((exponent - 14) << 23, Int32, Float32)
            cute.arch.fence_proxy("async.shared", space="cta")  # wgmma reads what threads have written
            # Each warp group has prepared half of the rows that both multiply.
            pipeline.NamedBarrier(barrier_id=self.barriers.free, num_threads=CONSUMERS * WARP_GROUP).arrive_and_wait()
            for r in cutlass.range_constexpr(2):
                scales[r] = work.query_scales[accumulator_row(thread) + 8 * r]


@cute.jit
def largest_of(chunk) -> Float32:
    values = cute.make_rmem_tensor_like(chunk)
    cute.autovec_copy(chunk, values)
    wide = values.load().to(Float32)
    largest = Float32(0)
    for i in cutlass.range_constexpr(cute.size(values)):
        largest = cute.arch.fmax(largest, cute.arch.fmax(wide[i], -wide[i]))
    return largest


@cute.jit
def round_in_place(chunk, factor):
    """The same chunk of bf16 as f16, times a power of two."""
    values = cute.make_rmem_tensor_like(chunk)
    cute.autovec_copy(chunk, values)
    rounded = cute.make_rmem_tensor(cute.size(values), Float16)
    rounded.store((values.load().to(Float32) * factor).to(Float16))
    cute.autovec_copy(cute.make_tensor(cute.recast_ptr(rounded.iterator, dtype=BFloat16), values.layout), chunk)
