"""The numbers of Hopper, the named barriers of a block, and which thread has which accumulator.

A block has one producer warp group, which issues TMA copies, and consumer warp groups, which multiply. This module
guarantees that the numbers below mean the same in every kernel, and that barriers of one block do not share an identifier
as long as a kernel takes all of them from :class:`Barriers`.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass.pipeline import NamedBarrier

WARP = cute.arch.WARP_SIZE
WARP_GROUP = 128  # threads
GROUP_WARPS = WARP_GROUP // WARP
CONSUMERS = 2  # consumer warp groups of a block, unless a kernel has more
THREADS = (1 + CONSUMERS) * WARP_GROUP
# Registers per thread: wgmma keeps its accumulators there; issuing copies needs almost none. All threads of a block start with
# as many as fit, 168 with 384 threads. Then the producer warp group gives some to the consumers, in multiples of 8. There must
# not be more in the end, 24 + 2 * 240 = 3 * 168: a consumer waits until the producer's warps, all four, have given enough.
PRODUCER_REGISTERS, CONSUMER_REGISTERS = 24, 240
MOST_ACCUMULATORS = 192  # of a thread, so that 48 registers are left

WGMMA_ROWS = 64  # rows of a tile that one instruction computes
WARP_ROWS = 16  # of these, the rows whose accumulators are in one warp
MOST_COLUMNS = 256  # of one instruction
CYCLE_BYTES = 64 * 64  # rows x columns x bytes along k that a multiprocessor multiplies in a cycle

LINE_BYTES = 128  # of swizzled shared memory: what one step along k takes of each row
SWIZZLED_ROWS = 8  # lines after which the pattern of a swizzled tile repeats
ALIGNMENT = 1024  # of swizzled tiles in shared memory
STORE_BYTES = (128, 64, 32)  # of a row that one swizzled TMA store can write
BARRIER_BYTES = 8  # of an mbarrier in shared memory
NAMED_BARRIERS = 16  # of a block; identifier 0 is that of ``sync_threads``


@dataclass(frozen=True)
class Barriers:
    """The named barriers of a block: one, then another, for each consumer warp group; the rest is free.

    ``first`` is the first identifier that is taken.
    """

    groups: int = CONSUMERS
    first: int = 1

    def together(self, group) -> NamedBarrier:
        """Where the threads of one consumer warp group wait for each other."""
        return NamedBarrier(barrier_id=self.first + group, num_threads=WARP_GROUP)

    def turn(self, group) -> NamedBarrier:
        """Where a pingpong warp group waits until the one before it hands the tensor cores on.

        Both take part: the one that waits, and the one that arrives. If warp groups have tiles of their own, they must not wait
        for loads before their turn: the mbarrier of a stage only tells one round of the stages from the next.
        """
        return NamedBarrier(barrier_id=self.first + self.groups + group, num_threads=2 * WARP_GROUP)

    @property
    def free(self) -> int:
        """The first identifier that is not taken."""
        return self.first + 2 * self.groups


# The accumulators of a warp group: a thread has two neighbours of every eight columns, in two rows of each 64. So four in
# a row belong to rows i, i, i + 8 and i + 8, and to columns j, j + 1, j and j + 1.


def accumulator_row(thread):
    """The row, of 64, of a thread's first accumulator."""
    return thread // WARP * WARP_ROWS + thread % WARP // 4


def accumulator_column(thread):
    """The column of a thread's first accumulator."""
    return thread % 4 * 2


def row_offset(v: int) -> int:
    """How many rows accumulator ``v`` of a thread is below its first one."""
    return v // 2 % 2 * 8


def column_offset(v: int) -> int:
    """How many columns accumulator ``v`` of a thread is to the right of its first one."""
    return v // 4 * 8 + v % 2
