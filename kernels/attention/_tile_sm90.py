"""What attention on sm_90a does with a tile of scores in the registers of a warp group."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float32

from ._merge import MINUS_INFINITY

LINE = 64  # columns of 128 bytes: what one swizzled TMA copy brings
WARP_GROUP = 128  # threads
BOTH = 2 * WARP_GROUP  # that multiply
THREADS = 3 * WARP_GROUP
# Registers per thread: wgmma keeps its sums there; loading needs almost none.
LOADING_REGISTERS, MULTIPLYING_REGISTERS = 24, 240
ELEMENT_BYTES = 2
ALIGNMENT = 1024  # of swizzled tiles in shared memory
SLACK = 8.0  # powers of two by which weights may exceed 1


def rows_of(values: cute.Tensor) -> cute.Tensor:
    """Accumulators as a matrix: a thread has two rows, and two neighbouring columns in every eight."""
    columns = cute.size(values) // 4
    return cute.make_tensor(values.iterator, cute.make_layout((2, (2, columns)), stride=(2, (1, 4))))


@cute.jit
def mask(scores, places, scale, start, tokens: cutlass.Constexpr, top, run, piece):
    """Scale the scores, and take out tokens past the end and tokens that come after the row's own."""
    scores.store(scores.load() * scale)
    if start + tokens > piece.length - (run.tokens - 1):
        for i in cutlass.range_constexpr(2):
            row = cutlass.min(top + places[2 * i][0], run.group - 1)
            visible = piece.length - (run.tokens - 1 - row // (run.group // run.tokens))
            for n in cutlass.range_constexpr(tokens // 8):
                for c in cutlass.range_constexpr(2):
                    at = c + 2 * i + 4 * n
                    if start + places[at][1] >= visible:
                        scores[at] = Float32(MINUS_INFINITY)


@cute.jit
def soften(scores, largest, total, factor):
    """A step of the running softmax: scores become weights, and ``factor`` brings earlier sums to the new maximum.

    The maximum only keeps powers in range, so an old one will do until a score exceeds it by :data:`SLACK`. Weights are
    rounded relative to their size, so it costs no accuracy. As a rule only the first tiles change it.
    """
    by_row = rows_of(scores)
    for i in cutlass.range_constexpr(2):
        row = by_row[i, None].load()
        top = cute.arch.warp_reduction(
            row.reduce(cute.ReductionOp.MAX, largest[i], 0), cute.arch.fmax, threads_in_group=4
        )
        top = top if top > largest[i] + SLACK else largest[i]
        # A row that has seen nothing yet has no maximum. Any number will do: its weights are 0.
        finite = top if top > MINUS_INFINITY else Float32(0)
        row = cute.math.exp2(row - finite, fastmath=True)
        factor[i] = cute.math.exp2(largest[i] - finite, fastmath=True) if top > largest[i] else Float32(1)
        by_row[i, None].store(row)
        total[i] = total[i] * factor[i] + row.reduce(cute.ReductionOp.ADD, Float32(0), 0)
        largest[i] = top


@cute.jit
def rescale(sums, factor):
    """Bring earlier sums to the new maximum, if it changed for a row of the warp."""
    by_row = rows_of(sums)
    if cute.arch.vote_any_sync(factor[0] != 1.0 or factor[1] != 1.0):
        for i in cutlass.range_constexpr(2):
            by_row[i, None].store(by_row[i, None].load() * factor[i])


@cute.jit
def write_row(by_row, i: cutlass.Constexpr, factor, target, first):
    pair = cute.make_rmem_tensor(2, target.element_type)
    for n in cutlass.range_constexpr(cute.size(by_row) // 4):
        for c in cutlass.range_constexpr(2):
            pair[c] = (by_row[i, (c, n)] * factor).to(target.element_type)
        cute.autovec_copy(pair, cute.local_tile(target, (2,), (first + 4 * n,)))
