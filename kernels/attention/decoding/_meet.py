"""Two blocks that share a unit merge their parts where they meet, without another kernel.

The first of the two leaves its sums in the workspace. The second adds them to its own, which never leave their registers,
and writes the output. Nobody waits, so the blocks need not run at the same time. Each warp does this for itself, with
its own rows and columns. Blocks do so if no unit is much longer than a run, so that most units that were cut have two parts. Others
take the way through the merging kernel: to meet again and again takes longer. So do two equal parts: both blocks are done at
the same time, and one would have to wait for what the other writes.

A word in the workspace says whether the other warp was here. What the workspace contains before a call is not known. So
the word is a mark of 64 bits, and the second warp clears it. Sums are added in the order of the runs, so results do not
depend on who came first.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from ..._device import WARP, fetch
from .._softmax import MINUS_INFINITY
from ._parts import BAND, Cut

MARK = 0x3B9F21D64C8A5705
WORDS = 8  # of a unit: one for each warp of two warp groups


@dataclass(frozen=True)
class Meeting:
    """A warp that has sums of a part: 16 rows, and half of the columns."""

    cut: Cut
    parts: cute.Tensor  # sums by slot, as fragments: see ``Merger``
    scalars: cute.Tensor  # by slot and row, of this warp group: the largest score and the sum of weights
    words: cute.Tensor  # by run, then by block side by side and warp
    run: Int32
    slot: Int32
    rows: Int32  # of the tile
    half: int

    @cute.jit
    def merge(self, sums, offsets, totals) -> cutlass.Boolean:
        """Whether these are now the sums of the whole unit. If not, they are in the workspace, unless no row exists."""
        cut, second = self.cut, cutlass.Boolean(False)
        whole = cut.parts() == 1
        if not whole and self.warp * BAND < self.rows:
            if cut.meets() and self.run == cut.earliest:
                # It is the end of this run and the beginning of the other one, which has probably been here.
                second = self.finds_mark()
            if not second:
                self.leave(sums, offsets, totals)
                if cut.meets():
                    second = self.leaves_mark()
            if second:
                cute.arch.sync_warp()  # what the first lane has acquired is there for all
                self.add(cut.earliest + cut.latest - self.run, sums, offsets, totals)
                whole = cutlass.Boolean(True)
        return whole

    @property
    def warp(self) -> Int32:
        return cute.arch.make_warp_uniform(cute.arch.thread_idx()[0] // WARP % 4)

    def row(self, r: int) -> Int32:
        return self.warp * BAND + cute.arch.lane_idx() // 4 + BAND // 2 * r

    def chunk(self, n: int, blocks: int) -> Int32:
        return ((self.warp * 2 + self.half) * blocks + n) * WARP + cute.arch.lane_idx()

    @cute.jit
    def leave(self, sums, offsets, totals):
        """Write the sums to the workspace."""
        target, blocks = self.parts[self.slot, None], cute.size(sums) // 4
        for n in cutlass.range_constexpr(blocks):
            four = cute.make_tensor(sums.iterator + 4 * n, cute.make_layout(4))
            cute.autovec_copy(four, cute.local_tile(target, (4,), (self.chunk(n, blocks),)))
        for r in cutlass.range_constexpr(2):
            row = self.row(r)
            if cute.arch.lane_idx() % 4 == 0 and row < self.rows:
                self.scalars[self.slot, row, 0] = offsets[r]
                self.scalars[self.slot, row, 1] = totals[r]

    @property
    def word(self) -> Int32:
        return (self.cut.latest * self.cut.lanes + self.cut.lane) * WORDS + self.half * 4 + self.warp

    @cute.jit
    def finds_mark(self) -> cutlass.Boolean:
        """Whether the other warp has left its sums. Its mark is cleared."""
        found = Int32(0)
        if cute.arch.lane_idx() == 0:
            word = self.words.iterator + self.word
            mark, none = Int64(MARK), Int64(0)
            # Acquire: the sums of the other warp are visible if its mark is.
            found = Int32(Int64(cute.arch.atomic_cas(word, cmp=mark, val=none, sem="acquire", scope="gpu")) == MARK)
        return cute.arch.shuffle_sync(found, 0) != 0

    @cute.jit
    def leaves_mark(self) -> cutlass.Boolean:
        """Tell the other warp that these sums are there. Returns whether it was the first: then its mark is cleared."""
        found = Int32(0)
        cute.arch.sync_warp()  # all lanes have written
        if cute.arch.lane_idx() == 0:
            word = self.words.iterator + self.word
            # Release these sums, and acquire those of the other warp, in one access: either of the two may come second.
            if Int64(cute.arch.atomic_exch(word, Int64(MARK), sem="acq_rel", scope="gpu")) == MARK:
                found = Int32(1)
                self.words[self.word] = Int64(0)
        return cute.arch.shuffle_sync(found, 0) != 0

    @cute.jit
    def add(self, other, sums, offsets, totals):
        """Add the sums that another run has left."""
        slot, first = self.cut.slot(other), self.run < other
        source, blocks = self.parts[slot, None], cute.size(sums) // 4
        factors = []
        for r in cutlass.range_constexpr(2):
            found = fetch(self.scalars[slot, cutlass.min(self.row(r), self.rows - 1), None], 0, 2)
            top = cute.arch.fmax(offsets[r], found[0])
            finite = top if top > MINUS_INFINITY else Float32(0)
            own, theirs = (cute.math.exp2(one - finite, fastmath=True) for one in (offsets[r], found[0]))
            factors.append((own if first else theirs, theirs if first else own))
            totals[r] = in_order(first, factors[r], totals[r], found[1])
            offsets[r] = top
        for n in cutlass.range_constexpr(blocks):
            four = fetch(source, self.chunk(n, blocks), 4)
            for i in cutlass.range_constexpr(4):
                sums[4 * n + i] = in_order(first, factors[i // 2], sums[4 * n + i], four[i])


@cute.jit
def in_order(first, factors, own, other) -> Float32:
    """The weighted sum of two numbers, the one of the earlier run first."""
    return factors[0] * (own if first else other) + factors[1] * (other if first else own)
