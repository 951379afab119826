"""Latent attention of at most 16 heads against chosen packed tokens, for sm_90a.

As ``_latent_few_packed_sm90``, but the tokens of a tile lie anywhere, so a lane copies one. A warp scores the tokens that it has
copied, so it keeps in a register which of them exist. The memory of the others is cleared: weights of zero do not undo NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float16, Float32, Int32

from ..._device import EVICT_NORMAL, WARP
from ...sm80.tiles import CHUNK
from .._softmax import mask_marked
from ..decoding._merge import Call, Piece
from ._latent_few_packed_sm90 import FewPackedDecode, PackedWork
from ._latent_few_sm90 import OWN_TOKENS, TOKENS, Place

ALL = (1 << OWN_TOKENS) - 1


class FewSparseDecode(FewPackedDecode):
    policy = EVICT_NORMAL  # other queries may have chosen the same tokens

    @cute.jit
    def __call__(
        self, q: cute.Tensor, cache: cute.Tensor, indices: cute.Tensor, lengths: cute.Tensor, out: cute.Tensor,
        scale: Float32, parts: cute.Tensor, multiprocessors: Int32, stream: CUstream,
    ):  # fmt: skip
        queries, rows = one_token(q), one_token(out)
        call = Call(cute.recast_tensor(cache, Float16), lengths, rows, None, None, parts, indices)
        self.launch_both(queries, scale, call, multiprocessors, stream)

    @cute.jit
    def look_up(self, call, piece, step, place, work):
        """Where the token is that a lane copies, and which of the warp's tokens exist. If one does not, it is token 0."""
        token = self.token(piece, step, place)
        index = call.indices[piece.sequence, cutlass.min(token, piece.length - 1)]
        pages, size, _ = call.cache.shape
        exists = token < piece.length and index >= 0 and index < pages * size
        index = index if exists else Int32(0)
        work.found[0], work.found[1] = index // size, index % size
        work.exist[0] = cute.arch.vote_ballot_sync(exists) & ALL

    def token(self, piece: Piece, step: Int32, place: Place) -> Int32:
        return (piece.start + step) * TOKENS + place.warp * OWN_TOKENS + place.lane % OWN_TOKENS

    @cute.jit
    def copy_tokens(self, call, piece, step, stage, place, work):
        marks, shift = work.marks[0], stage * OWN_TOKENS
        work.marks[0] = marks & ~(ALL << shift) | work.exist[0] << shift
        if place.lane < OWN_TOKENS:
            source = call.cache[work.found[0], work.found[1], None].iterator
            self.copy(source, self.own_token(place.lane, stage, place, work), self.width, work.barriers + stage, work)

    def own_token(self, token: Int32, stage: Int32, place: Place, work: PackedWork) -> cute.Pointer:
        """Where a token of this warp is in shared memory."""
        return work.memory + (stage * self.tile_elements + (place.warp * OWN_TOKENS + token) * self.width)

    @cute.jit
    def score(self, scales, stage, place, work):
        marks = work.marks[0] >> stage * OWN_TOKENS & ALL
        if marks != ALL:
            self.clear(marks, stage, place, work)
        FewPackedDecode.score(self, scales, stage, place, work)
        if marks != ALL:
            mask_marked(work.scores, (marks,))

    @cute.jit
    def clear(self, marks, stage, place, work):
        """Zeros for tokens that do not exist. Other warps read them after they have met this one."""
        zeros = cute.make_rmem_tensor(CHUNK, Float16)
        zeros.fill(0.0)
        for token in cutlass.range(OWN_TOKENS, unroll=1):
            if marks >> token & 1 == 0:
                first = self.own_token(token, stage, place, work)
                for chunk in cutlass.range(place.lane, self.width // CHUNK, WARP, unroll=1):
                    cute.autovec_copy(zeros, cute.make_tensor((first + chunk * CHUNK).align(16), zeros.layout))
        cute.arch.sync_warp()
        cute.arch.fence_proxy("async.shared", space="cta")  # the next copy to this place comes after these

    def mask(self, run, piece: Piece, tile: Int32, place: Place, work: PackedWork) -> None:
        """Nothing: ``score`` has done it, which knows the stage."""

    def work(self, storage, place: Place, mma: cute.TiledMma) -> SparseWork:
        work = FewPackedDecode.work(self, storage, place, mma)
        exist, marks = (cute.make_rmem_tensor(1, Int32) for _ in range(2))
        marks.fill(0)
        return SparseWork(**vars(work), exist=exist, marks=marks)


@dataclass(frozen=True)
class SparseWork(PackedWork):
    exist: cute.Tensor  # a bit for each token of this warp that is copied next
    marks: cute.Tensor  # the same for the tokens of each stage


def one_token(rows: cute.Tensor) -> cute.Tensor:
    """Queries x heads x columns, as queries of one token."""
    count, heads, columns = rows.shape
    layout = cute.make_layout((count, 1, heads, columns), stride=(rows.stride[0], *rows.stride))
    return cute.make_tensor(rows.iterator, layout)
