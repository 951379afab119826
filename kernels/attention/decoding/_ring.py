"""A ring of stages in shared memory, which a team of warps fills by cp.async with keys and values of a cache.

Each thread waits for its own copies; then the team meets. Every step commits one group of copies, even if it is empty, so
that a number of groups is a number of stages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.utils import LayoutEnum

from ...sm80 import tiles
from ...sm80.tiles import CHUNK, LINE, SWIZZLED
from .._pages import find_token
from ._merge import Place, Run

PAGE = 16  # tokens: the size of a page is a multiple of this, so 16 tokens in line share a page


class Ahead(NamedTuple):
    """What is copied next: which tile, to which stage, and how many are left."""

    place: Place
    stage: Int32
    left: Int32


class Caches(NamedTuple):
    keys: cute.Tensor
    values: cute.Tensor
    pages: cute.Tensor | None
    row_tiles: Int32  # units that share a head

    def page(self, sequence: Int32, head: Int32, token: Int32):
        """Keys and values (tokens x dim) of the page with a token, and the tokens of the sequence ahead of that page."""
        page, place = find_token(self.pages, sequence, token, self.keys.shape[1])
        return self.keys[page, None, head, None], self.values[page, None, head, None], token - place


@dataclass(frozen=True)
class Ring:
    """Keys (tokens x dim) and values (dim x tokens) of a team, by turns. ``tiling`` is that of ``_decode``.

    Stages are counted by places of the ring: the place of the keys, which that of the values follows.
    """

    tiling: Any
    atom: cute.CopyAtom
    keys: cute.Tensor
    values: cute.Tensor
    to_keys: cute.Tensor  # what a thread copies: chunk, along tokens, along dim, stage
    to_values: cute.Tensor  # chunk, along dim, along tokens, stage
    caches: Caches
    run: Run
    team: Int32
    member: Int32  # of the team: this thread

    @cute.jit
    def next_stage(self, stage: Int32) -> Int32:
        return stage + 2 if stage + 2 < 2 * self.tiling.stages else Int32(0)

    @cute.jit
    def fill(self, ahead):
        """Start to copy the first tiles of a run, or of a piece."""
        for _ in cutlass.range(self.tiling.stages - 1, unroll=1):  # code takes long to arrive
            ahead = self.copy_ahead(ahead)
        return ahead

    @cute.jit
    def copy_ahead(self, ahead):
        """Start to copy the next tile, if there is one."""
        place, stage, left = ahead
        if left > 0:
            self.copy_tile(place, stage)
            place = self.run.after(place, Int32(1))
        cute.arch.cp_async_commit_group()  # commit even an empty group, because waiting counts groups
        return Ahead(place, self.next_stage(stage), left - 1)

    @cute.jit
    def copy_tile(self, place, stage):
        """Start to copy the tokens of a team. Neighbouring threads copy neighbouring chunks of one token."""
        tiling = self.tiling
        head = place.unit // self.caches.row_tiles
        line_threads = LINE // CHUNK
        apart = tiling.team_threads // line_threads  # tokens from one copy of this thread to the next
        last = place.length - 1
        first = place.index * tiling.tile + self.team * tiling.tokens
        keys, values, skipped = self.caches.keys, self.caches.values, Int32(0)
        for i in cutlass.range_constexpr(cute.size(self.to_keys, mode=[1])):
            if cutlass.const_expr(i * apart % PAGE == 0):
                token = cutlass.min(first + i * apart + self.member // (line_threads * PAGE) * PAGE, last)
                keys, values, skipped = self.caches.page(place.sequence, head, token)
            token = cutlass.min(first + i * apart + self.member // line_threads, last) - skipped
            for j in cutlass.range_constexpr(cute.size(self.to_keys, mode=[2])):
                chunk = j * line_threads + self.member % line_threads
                tiles.copy_chunk(self.atom, keys[token, None], chunk, self.to_keys[None, i, j, stage])
                tiles.copy_chunk(self.atom, values[token, None], chunk, self.to_values[None, j, i, stage + 1])


def make_ring(storage, dtype, tiling, width: int, caches: Caches, run: Run, thread: Int32) -> Ring:
    """The ring of a thread's team; ``width`` is that of a head, in elements of 16 bits."""
    team, member = thread // tiling.team_threads, thread % tiling.team_threads
    base = (storage + team * (tiling.stages * tiling.stage_bytes(width))).align(SWIZZLED)
    places = 2 * tiling.stages
    made, targets = [], []
    for major, shape in (
        (LayoutEnum.ROW_MAJOR, (tiling.tokens, width, places)),
        (LayoutEnum.COL_MAJOR, (width, tiling.tokens, places)),
    ):
        made.append(tiles.swizzled(base, dtype, tiles.lines(major), shape))
        chunks = tiles.chunk_copy(tiles.past_l1(), dtype, major, tiling.team_threads)
        targets.append(chunks.get_slice(member).partition_D(made[-1]))
    return Ring(tiling, tiles.chunk_atom(tiles.past_l1(), dtype), *made, *targets, caches, run, team, member)
