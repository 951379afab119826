"""Latent attention of at most 16 query rows against packed tokens, for sm_90a.

As ``_latent_few_sm90``; what packed tokens are says ``_latent_packed_sm90``. Tokens come as they are: eight of them have chunks
in different banks without an empty one.

* **Scores.** Products of columns that share a scale are summed apart, and these four sums are multiplied with the scales of
  the token. The last 64 columns are of bf16, as the queries are, and are multiplied as such.
* **Sums.** Each of the four warps owns the 128 columns that share a scale. So it multiplies the weights with its scale of each
  token. Scales may have any size, and weights are of f16: a power of two brings the largest scale up to now between 1 and 2.
  If a tile has a larger one, the sums are multiplied by a power of two, exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float16, Float32, Int32

from ..._device import fetch
from ...sm80 import tiles
from ...sm80.tiles import MMA
from .._softmax import scale_sums
from ..decoding._decode_f8 import bits, wide_keys
from ._latent_few_sm90 import (
    FRAGMENT,
    OWN_TOKENS,
    PAIRS,
    STAGES,
    STEPS,
    TOKENS,
    UNIT,
    WARPS,
    FewLatentDecode,
    Place,
    Work,
)
from ._latent_packed_sm90 import PACKED, SCALES
from ._latent_sm90 import KEY, VALUE

SCALE_UNITS = VALUE // UNIT // SCALES  # that share a scale
EXACT = KEY - VALUE  # columns of bf16
EXACT_STEPS = EXACT // MMA[2]
FIRST_SCALE = VALUE // 2  # elements of 16 bits before the scales of a token
FIRST_EXACT = FIRST_SCALE + SCALES * 2
MOST_EXPONENT = 253  # biased by 127


class FewPackedDecode(FewLatentDecode):
    width, padding = PACKED // 2, 0
    converted = VALUE // UNIT // WARPS

    def pair(self, block: int, lane: Int32, half: int) -> Int32:
        return lane * 2 + half if block < self.converted * STEPS else lane + 4 * half

    @cute.jit
    def prepare(self, q, scale, run, piece, place, work):
        work.exponent[0] = Int32(1)
        return FewLatentDecode.prepare(self, q, scale, run, piece, place, work), scale

    @cute.jit
    def score(self, scales, stage, place, work):
        """Multiply the queries with the tokens of this warp."""
        of_rows, scale = scales
        mma, chains, exact = work.mma, work.chains, work.exact
        for chain in chains:
            chain.fill(0.0)
        exact.fill(0.0)
        for i in cutlass.range_constexpr(SCALE_UNITS):
            for index in cutlass.range_constexpr(SCALES):
                unit = index * SCALE_UNITS + i
                keys = cute.make_rmem_tensor(mma.partition_shape_B((OWN_TOKENS, UNIT // 2)), Float16)
                target = work.by_key.retile(keys)
                cute.copy(work.by_key, work.key_source[None, None, unit, stage], target[None, None, 0])
                wide = wide_keys(mma, keys, OWN_TOKENS, UNIT)
                for step in cutlass.range_constexpr(STEPS):
                    query = self.query(unit * STEPS + step, work)
                    cute.gemm(mma, chains[index], query[None, None, 0], wide[None, None, step], chains[index])
        for step in cutlass.range_constexpr(EXACT_STEPS):
            keys = cute.make_rmem_tensor(mma.partition_shape_B((OWN_TOKENS, MMA[2])), Float16)
            target = work.by_key.retile(keys)
            cute.copy(work.by_key, work.exact_source[None, None, step, stage], target[None, None, 0])
            query = cute.recast_tensor(self.query(VALUE // MMA[2] + step, work), BFloat16)
            keys = cute.recast_tensor(keys, BFloat16)
            cute.gemm(work.exact_mma, exact, query[None, None, 0], keys[None, None, 0], exact)
        for block in cutlass.range_constexpr(OWN_TOKENS // MMA[1]):
            for c in cutlass.range_constexpr(2):
                token = work.own_scales[(c, block * (MMA[1] // 2) + place.lane % 4), None, stage]
                own = fetch(token, 0, SCALES)
                for r in cutlass.range_constexpr(2):
                    at = 4 * block + 2 * r + c
                    sums = [chain[at] * own[index] for index, chain in enumerate(chains)]
                    total = (sums[0] + sums[1]) + (sums[2] + sums[3])
                    work.scores[at] = total * of_rows[r] + exact[at] * scale

    @cute.jit
    def weights_of(self, stage, place, work):
        """Weights of a tile times the scales of this warp's columns."""
        lane, values, largest = place.lane % 4, [], Float32(0)
        for k in cutlass.range_constexpr(TOKENS // MMA[2]):
            for half in cutlass.range_constexpr(2):
                for c in cutlass.range_constexpr(2):
                    token = (c, k * (MMA[2] // 2) + half * (MMA[1] // 2) + lane)
                    values.append(work.tile_scales[token, place.warp, stage])
        for value in values:
            largest = cute.arch.fmax(largest, value)
        top = cute.arch.warp_redux_sync(bits(largest, Float32, Int32), "max") >> 23
        old = work.exponent[0]
        exponent = cutlass.min(cutlass.max(top, old), MOST_EXPONENT)
        if exponent > old:
            factor = bits(cutlass.max(127 + old - exponent, 0) << 23, Int32, Float32)
            for sums in work.sums:
                scale_sums(sums, [factor, factor])
        work.exponent[0] = exponent
        factor = bits((254 - exponent) << 23, Int32, Float32)
        shape, scaled = work.mma.partition_shape_A((MMA[0], MMA[2])), []
        for k in cutlass.range_constexpr(TOKENS // MMA[2]):
            own = fetch(work.weights[k, place.lane, None], 0, FRAGMENT)
            scales = cute.make_rmem_tensor(FRAGMENT, Float16)
            for i in cutlass.range_constexpr(FRAGMENT):
                scales[i] = (values[4 * k + i // 4 * 2 + i % 2] * factor).to(Float16)
            own.store(own.load() * scales.load())
            scaled.append(cute.make_tensor(own.iterator, cute.make_layout(shape)))
        return scaled

    def unit_of_sums(self, work) -> Float32:
        return bits(work.exponent[0] << 23, Int32, Float32)

    def work(self, storage, place: Place, mma: cute.TiledMma) -> PackedWork:
        work = FewLatentDecode.work(self, storage, place, mma)
        apart, tile, own = (self.width, self.pair_pitch), self.tile_elements, place.warp * (PAIRS * self.pair_pitch)
        order = cute.make_layout(((2, PAIRS), EXACT, STAGES), stride=(apart, 1, tile))
        exact = cute.make_tensor((work.memory + own + FIRST_EXACT).align(16), order)

        def scales(first: Any, pairs: int) -> cute.Tensor:
            memory = cute.recast_ptr((work.memory + first + FIRST_SCALE).align(16), dtype=Float32)
            stride = ((self.width // 2, self.pair_pitch // 2), 1, tile // 2)
            return cute.make_tensor(memory, cute.make_layout(((2, pairs), SCALES, STAGES), stride=stride))

        return PackedWork(
            **vars(work),
            exact_mma=tiles.tiled_mma(BFloat16),
            exact_source=work.by_key.partition_S(exact),
            exact=cute.make_rmem_tensor(mma.partition_shape_C((MMA[0], OWN_TOKENS)), Float32),
            own_scales=scales(own, PAIRS),
            tile_scales=scales(0, TOKENS // 2),
            exponent=cute.make_rmem_tensor(1, Int32),
        )


@dataclass(frozen=True)
class PackedWork(Work):
    exact_mma: cute.TiledMma  # of elements of bf16
    exact_source: cute.Tensor
    exact: cute.Tensor  # scores by these
    own_scales: cute.Tensor  # by token of this warp, scale and stage
    tile_scales: cute.Tensor  # by token of a tile
    exponent: cute.Tensor  # of the largest scale up to now: sums are multiples of 2 ** (exponent - 127)
