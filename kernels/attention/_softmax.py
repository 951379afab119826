"""The running, or online, softmax: scores of a block of tokens become weights, whatever multiplies them.

The tensor cores leave the accumulators of a 16 x 8 block in a thread's registers in this way: two rows that are 8 apart,
and two neighbouring columns of each. Blocks of 8 columns follow each other. So a thread's scores are
``scores[4 * n + 2 * r + c]``, row ``r`` and column ``8 * n + c``, and four threads share a row. The left operand of a product
has the same order, so weights become one by rounding alone. A warp with several *bands* of 16 rows has blocks of all bands
side by side: see :func:`elements`.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from .._device import add

LOG2_E = math.log2(math.e)
MINUS_INFINITY = float("-inf")
SLACK = 8.0  # powers of two by which weights may exceed 1: see ``softmax_step``
CHAINS = 4  # of independent operations
# tanh(x / 2 / LOG2_E) / 2 / x as a polynomial in x**2, highest power first, for x / 2 / LOG2_E up to NEAR. With f32 it is exact
# to 2**-21.
NEAR = 0.8
TANH = (4.3498744e-07, -1.4752611e-05, 3.3071689e-04, -6.9362988e-03, 1.7328661e-01)


class Softmax(NamedTuple):
    """The running softmax of a thread's rows. Weights are ``2 ** (scale * score - offset)``; ``scale`` is above 0.

    With a soft cap, scores become :func:`cap_scores` first, and ``shift`` is missing in ``scale * score``.
    """

    offsets: cute.Tensor
    totals: cute.Tensor  # of the weights that this thread has seen
    scale: Float32 | None = None  # None: scores are scaled already
    inner: Float32 | None = None  # 0 without a soft cap
    shift: Float32 | None = None  # likewise

    def reset(self) -> None:
        self.offsets.fill(MINUS_INFINITY)
        self.totals.fill(0.0)

    def scaled(self, score: Float32) -> Float32:
        return score if self.scale is None else score * self.scale

    def total(self, r: int) -> Float32:
        """The weights of a row that all four threads have seen."""
        return cute.arch.warp_reduction(self.totals[r], add, threads_in_group=4)


def make_softmax(scale: Float32 | None = None, inner=None, shift=None, rows: int = 2) -> Softmax:
    offsets, totals = (cute.make_rmem_tensor(rows, Float32) for _ in range(2))
    return Softmax(offsets, totals, scale, inner, shift)


def elements(count: int, row: int, rows: int = 2) -> list[tuple[int, int]]:
    """Which of a thread's ``count`` accumulators are of a row, and their columns, counted from the thread's first column."""
    first, blocks = 4 * (row // 2) + 2 * (row % 2), count // (2 * rows)
    return [(2 * rows * n + first + c, 8 * n + c) for n in range(blocks) for c in range(2)]


@cute.jit
def softmax_step(scores, softmax):
    """A step of the running softmax: scores become weights.

    Returns by which factors to scale earlier sums, and whether this warp has a factor that is not 1. Offsets need not
    be the largest score. They only keep weights in range. So an offset stays as it is until a score exceeds it by
    more than ``SLACK``: weights up to ``2 ** SLACK`` are as exact as others, and sums are rarely scaled.
    """
    rows = cute.size(softmax.offsets)
    factors, grown = [], []
    for r in cutlass.range_constexpr(rows):
        row = [i for i, _ in elements(cute.size(scores), r, rows)]
        tops = [scores[i] for i in row[:CHAINS]]
        for place in cutlass.range_constexpr(CHAINS, len(row)):
            tops[place % CHAINS] = cute.arch.fmax(tops[place % CHAINS], scores[row[place]])
        top = cute.arch.fmax(cute.arch.fmax(tops[0], tops[1]), cute.arch.fmax(tops[2], tops[3]))
        top = softmax.scaled(cute.arch.warp_reduction(top, cute.arch.fmax, threads_in_group=4))
        old = softmax.offsets[r]
        grows = top > old + SLACK
        offset = top if grows else old
        # A row that has seen nothing yet has no offset. Any number will do: its weights are 0.
        finite = offset if offset > MINUS_INFINITY else Float32(0)
        factor = cute.math.exp2(old - finite, fastmath=True)
        parts = [Float32(0) for _ in range(CHAINS)]
        for place in cutlass.range_constexpr(len(row)):
            weight = cute.math.exp2(softmax.scaled(scores[row[place]]) - finite, fastmath=True)
            scores[row[place]] = weight
            parts[place % CHAINS] = parts[place % CHAINS] + weight
        softmax.totals[r] = softmax.totals[r] * factor + ((parts[0] + parts[1]) + (parts[2] + parts[3]))
        softmax.offsets[r] = offset
        factors.append(factor)
        grown.append(grows)
    # A vote, so that a warp branches as a whole: sums are scaled by all of its lanes, or by none.
    return factors, cute.arch.vote_any_sync(functools.reduce(operator.or_, grown))


@cute.jit
def scale_sums(sums, factors):
    """Scale accumulators by row."""
    for i in cutlass.range_constexpr(cute.size(sums)):
        sums[i] = sums[i] * factors[i // 2 % len(factors)]


def round_to(rounded: cute.Tensor, values: cute.Tensor) -> None:
    """Round values in the order of registers. Eight at a time become four instructions, however many there are."""
    size = 8
    for i in range(cute.size(values) // size):
        source = cute.make_tensor(values.iterator + i * size, cute.make_layout(size))
        target = cute.make_tensor(rounded.iterator + i * size, cute.make_layout(size))
        target.store(source.load().to(rounded.element_type))


@cute.jit
def write_row(sums, r: cutlass.Constexpr, factor, target):
    """Write a thread's accumulators of a row, two neighbours at a time, where the columns of ``target`` begin."""
    pair = cute.make_rmem_tensor(2, target.element_type)
    first = cute.arch.lane_idx() % 4
    for n in cutlass.range_constexpr(cute.size(sums) // 4):
        for c in cutlass.range_constexpr(2):
            pair[c] = (sums[4 * n + 2 * r + c] * factor).to(target.element_type)
        cute.autovec_copy(pair, cute.local_tile(target, (2,), (first + 4 * n,)))


@cute.jit
def write_row_wide(sums, r: cutlass.Constexpr, factor, target, exists):
    """As :func:`write_row`, but 16 bytes at a time: four lanes exchange what they have of four blocks. Elements have 16 bits.

    All lanes of a warp take part, those too whose row does not exist.
    """
    lane = cute.arch.lane_idx() % 4
    odd, high = lane % 2 != 0, lane >= 2
    pairs = cute.make_rmem_tensor(8, target.element_type)
    words = cute.recast_tensor(pairs, Int32)
    for n in cutlass.range_constexpr(0, cute.size(sums) // 4, 4):
        for i in cutlass.range_constexpr(8):
            pairs[i] = (sums[4 * (n + i // 2) + 2 * r + i % 2] * factor).to(target.element_type)
        # A transposition: word i of lane j becomes word j of lane i.
        for first, apart, upper in ((0, 1, odd), (2, 1, odd), (0, 2, high), (1, 2, high)):
            low, top = words[first], words[first + apart]
            received = cute.arch.shuffle_sync_bfly(low if upper else top, apart)
            words[first] = received if upper else low
            words[first + apart] = top if upper else received
        if exists:
            cute.autovec_copy(pairs, cute.local_tile(target, (8,), (n + lane,)))


@cute.jit
def inverse(total: Float32) -> Float32:
    """``1 / total``, or 0 for a row without weights: a row that may see no token is zero."""
    return 1 / total if total > 0.0 else Float32(0)


# Masks. A row sees tokens from one place to another. Scores of others become minus infinity.


@cute.jit
def mask_scores(scores, start, bound, upper: cutlass.Constexpr, rows: cutlass.Constexpr = 2):
    """Mask tokens after the last one that a row sees, or before the first one: for row ``r`` that is ``bound(r)``.

    ``start`` is the token of the first column.
    """
    start = start + cute.arch.lane_idx() % 4 * 2
    for r in cutlass.range_constexpr(rows):
        limit = bound(r) - start
        for i, column in elements(cute.size(scores), r, rows):
            inside = limit >= column if cutlass.const_expr(upper) else limit <= column
            scores[i] = scores[i] if inside else Float32(MINUS_INFINITY)


@cute.jit
def mask_marked(scores, words):
    """Mask tokens whose bits are not set. ``words``: a bit for each column, 32 in a word."""
    shift = cute.arch.lane_idx() % 4 * 2
    own = [word >> shift for word in words]
    for r in cutlass.range_constexpr(2):
        for i, column in elements(cute.size(scores), r):
            marked = own[column // 32] & (1 << column % 32) != 0
            scores[i] = scores[i] if marked else Float32(MINUS_INFINITY)


# Soft caps: ``cap * tanh(score / cap)``.


@cute.jit
def cap_scores(scores, softmax, often: cutlass.Constexpr):
    """What a hyperbolic tangent has of the score: ``tanh(x) = 1 + 2 * y`` with ``y = -1 / (e ** (2 * x) + 1)``; scores become ``y``.

    If no score of this warp exceeds ``NEAR`` parts of the cap, a polynomial gives it. Only code that runs ``often`` has this
    faster way, so that the rest is compiled sooner. The tangent of the hardware is not exact enough: its error of 2**-11,
    times a cap of 50, would change weights by 2%.
    """
    if cutlass.const_expr(often):
        tops = [Float32(0) for _ in range(CHAINS)]
        for i in cutlass.range_constexpr(cute.size(scores)):
            tops[i % CHAINS] = cute.arch.fmax(tops[i % CHAINS], cute.math.abs(scores[i]))
        top = cute.arch.fmax(cute.arch.fmax(tops[0], tops[1]), cute.arch.fmax(tops[2], tops[3]))
        # A vote: lanes that took different ways would take both, one after the other.
        if cute.arch.vote_all_sync(top * softmax.inner <= NEAR * 2 * LOG2_E):
            for i in cutlass.range_constexpr(cute.size(scores)):
                power = scores[i] * softmax.inner  # of two
                square = power * power
                factor = Float32(TANH[0])
                for coefficient in TANH[1:]:
                    factor = factor * square + coefficient
                scores[i] = power * factor - 0.5
        else:
            cap_any(scores, softmax)
    else:
        cap_any(scores, softmax)


@cute.jit
def cap_any(scores, softmax):
    """The same for all scores.

    Powers and reciprocals have a unit of their own, which is the limit here. So four reciprocals come from one, that
    of the product of all four. Powers end at 2**30, for which the result is 1 in f32 and the product in range.
    """
    for i in cutlass.range_constexpr(0, cute.size(scores), 4):
        a, b, c, d = (
            cute.math.exp2(cute.arch.fmin(scores[i + j] * softmax.inner, 30.0), fastmath=True) + 1 for j in range(4)
        )
        ab, cd = a * b, c * d
        inverse_of_all = -cute.arch.rcp_approx(ab * cd)
        ab, cd = inverse_of_all * cd, inverse_of_all * ab  # -1 over the products
        for j, capped in enumerate((ab * b, ab * a, cd * d, cd * c)):
            scores[i + j] = capped
