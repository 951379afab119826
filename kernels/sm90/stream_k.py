"""Stream-K: clusters share the steps of all tiles evenly, whatever the number of tiles, and partial sums meet in a workspace.

All steps of the first tile, then those of the second one, and so on are one sequence, and each cluster computes an equal share
of it. So a share begins or ends inside a tile. Whoever has a part of a tile leaves its sums in the workspace. The last one
that arrives adds up all parts in their order along ``k`` and stores the tile. Nobody waits, so blocks need not run at the same
time, and results do not depend on who came last.

A word in the workspace counts who has arrived at a tile. What the workspace contains before a call is not known. So the
count is added to a mark of 64 bits, anything else counts as zero, and the last one leaves the mark for the next call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

import aot

from .._device import fetch
from . import hardware as hw
from .tiling import FLOAT_BYTES, Tiling

MARK = 0x51C7A90E3D8B6200
CHUNK = 4  # floats in the widest access
WORD = 2  # floats in a word
SLOTS = 2  # of a cluster: for the part at the beginning of its share, and for that at the end
ANSWER_BYTES = 16  # of shared memory, with what aligns it
# What a workspace has room for. Beyond that, fewer blocks work.
MOST_BLOCKS = 144  # more than the multiprocessors of any sm_90
TILE_COLUMNS = 128
SPARE_ROWS, MOST_ROWS = 32, 160
MOST_PARTS = 16  # of a tile; as `aot.model` has it
LEAST_STEPS = 4  # of a share: fewer take less time than to add up the parts


# A workspace has room for tiles that are about as high as the product has rows.
_ROWS = f"min(a.shape[-2] + {SPARE_ROWS}, {MOST_ROWS})"
_BYTES = f"{MOST_BLOCKS * FLOAT_BYTES} * ({hw.CONSUMERS * WORD} + {SLOTS * TILE_COLUMNS} * {_ROWS})"
PARTIALS = aot.Workspace("partials", "partial sums of stream-K", bytes=_BYTES)


def with_partials(arguments: Mapping[str, Any], tiling: Tiling) -> dict[str, Any]:
    """The arguments of a spec with the workspace that its tiling needs, or None."""
    needed = aot.Tensor("f32", ("partial_sums",), align=CHUNK * FLOAT_BYTES) if tiling.stream_k else None
    return {**arguments, PARTIALS.name: needed}


def most_parts(steps, merged: int):
    """The most parts of a tile that pay: to add up one of them takes the last block as long as ``merged`` steps."""
    return sum(cutlass.min(steps // (merged * parts**2), 1) for parts in range(2, MOST_PARTS + 1)) + 1


def count_clusters(tiling: Tiling, tiles, steps, clusters, floats):
    """The number of clusters that share ``tiles`` of ``steps`` each. The workspace has this number of ``floats``.

    If equal parts of all tiles keep seven of eight clusters busy, each share is one of these parts.
    """
    room = floats // (tiling.blocks * (tiling.groups * WORD + SLOTS * tiling.m * tiling.n))
    useful = cutlass.min(tiles * most_parts(steps, tiling.merged), cutlass.max(tiles * steps // LEAST_STEPS, 1))
    most = cutlass.min(cutlass.min(clusters, room), useful)
    whole = most // tiles * tiles
    return most - whole * 8 // (most * 7) * (most - whole)


class Share(NamedTuple):
    """The share of a cluster: steps from ``first`` to ``end`` of ``total``, of which each tile has ``steps``."""

    first: Int32
    end: Int32
    total: Int32
    steps: Int32
    cluster: Int32
    clusters: Int32

    def part(self, tile) -> tuple:
        """Of the steps of a tile, the first of this share, and the one after its last."""
        before = tile * self.steps
        return cutlass.max(self.first - before, 0), cutlass.min(self.end - before, self.steps)

    def cluster_at(self, step):
        """The cluster that computes a step."""
        least, longer = self.total // self.clusters, self.total % self.clusters
        after = step - longer * (least + 1)
        return cutlass.min(step // (least + 1), longer) + cutlass.max(after, 0) // least


def share_of(cluster, clusters, tiles, steps) -> Share:
    """Shares differ by one step at most; the first ones are the longer ones."""
    total = tiles * steps
    least, longer = total // clusters, total % clusters
    first = cluster * least + cutlass.min(cluster, longer)
    end = (cluster + 1) * least + cutlass.min(cluster + 1, longer)
    return Share(first, end, total, steps, cluster, clusters)


def allocate_answers(shared, tiling: Tiling):
    """Where a thread tells the others of its warp group how many have arrived before."""
    if not tiling.stream_k:
        return None
    return shared.allocate_tensor(Int32, cute.make_layout(hw.CONSUMERS), ANSWER_BYTES)


class Party(NamedTuple):
    """A warp group that has the sums of a part of a tile, and where it meets others."""

    parts: cute.Tensor  # the workspace
    answers: cute.Tensor  # in shared memory
    share: Share
    rank: Int32  # of the block in its cluster
    group: Int32
    thread: Int32


@dataclass(frozen=True)
class Meeting:
    """How those that have parts of a tile add them up."""

    tiling: Tiling

    barriers = hw.Barriers()

    @cute.jit
    def add_parts(self, sums, tile: Int32, own: Party) -> cutlass.Boolean:
        """Whether these are now the sums of the whole tile. If not, another warp group has them or will have them."""
        share = own.share
        earliest = share.cluster_at(tile * share.steps)
        latest = share.cluster_at(tile * share.steps + share.steps - 1)
        whole = earliest == latest
        if not whole:
            self.leave(sums, earliest, own)
            before = self.arrive(earliest, latest - earliest + 1, own)
            if before == latest - earliest:
                self.add(sums, earliest, latest, own)
                whole = cutlass.Boolean(True)
        return whole

    def place(self, cluster, earliest, own: Party):
        """Where a cluster leaves the sums of this warp group: in its first slot if it has the beginning of the tile."""
        tiling, blocks = self.tiling, self.tiling.blocks
        words = own.share.clusters * (blocks * tiling.groups * WORD)
        slot = cluster * SLOTS + cutlass.min(cluster - earliest, 1)
        count = tiling.accumulators * hw.WARP_GROUP
        start = words + ((slot * blocks + own.rank) * tiling.groups + own.group) * count
        return cute.make_tensor((own.parts.iterator + start).align(CHUNK * FLOAT_BYTES), cute.make_layout(count))

    @cute.jit
    def leave(self, sums, earliest: Int32, own: Party):
        """Write the sums to the workspace."""
        target = self.place(own.share.cluster, earliest, own)
        for i in cutlass.range_constexpr(self.tiling.accumulators // CHUNK):
            four = cute.make_tensor(sums.iterator + CHUNK * i, cute.make_layout(CHUNK))
            cute.autovec_copy(four, cute.local_tile(target, (CHUNK,), (i * hw.WARP_GROUP + own.thread,)))

    @cute.jit
    def arrive(self, earliest: Int32, parts: Int32, own: Party) -> Int32:
        """How many of the ``parts`` had arrived before. Their sums can then be read, and those of this one by others."""
        together = self.barriers.together(own.group)
        together.arrive_and_wait()  # all threads have written
        if own.thread == 0:
            word = (earliest * self.tiling.blocks + own.rank) * self.tiling.groups + own.group
            own.answers[own.group] = count_arrival(cute.recast_ptr(own.parts.iterator, dtype=Int64) + word, parts)
        together.arrive_and_wait()
        return own.answers[own.group]

    @cute.jit
    def add(self, sums, earliest: Int32, latest: Int32, own: Party):
        """Add up what all have left, in the order of their parts."""
        for cluster in cutlass.range(earliest, latest + 1, unroll=1):
            source = self.place(cluster, earliest, own)
            for i in cutlass.range_constexpr(self.tiling.accumulators // CHUNK):
                four = fetch(source, i * hw.WARP_GROUP + own.thread, CHUNK)
                for v in cutlass.range_constexpr(CHUNK):
                    at = i * CHUNK + v
                    sums[at] = four[v] if cluster == earliest else sums[at] + four[v]


@cute.jit
def count_arrival(word: cute.Pointer, parts: Int32) -> Int32:
    """How many of the ``parts`` have arrived before. The last one leaves a count of zero."""
    seen = Int64(cute.arch.atomic_add(word, Int64(1), sem="acq_rel", scope="gpu"))
    if not is_count(seen, parts):
        # No call has been here. What was added to the word counts for nothing, and others may have added too.
        waits = cutlass.Boolean(True)
        while waits:
            following = seen + 1 if is_count(seen, parts) else Int64(MARK + 1)
            found = Int64(cute.arch.atomic_cas(word, cmp=seen, val=following, sem="acq_rel", scope="gpu"))
            waits = found != seen
            seen = found
    before = Int32(seen - MARK) if is_count(seen, parts) else Int32(0)
    if before == parts - 1:
        cute.make_tensor(word, cute.make_layout(1))[0] = Int64(MARK)
    return before


@cute.jit
def is_count(word: Int64, parts: Int32) -> cutlass.Boolean:
    """Whether a word counts arrivals, fewer than there are."""
    return word >= MARK and word < MARK + parts
