"""The steps of ``linear_cross_entropy``: logits of some tokens, their loss, and what these tokens add to both gradients.

A step has the logits of a few tokens at a time in scratch memory. They become their own gradient there, in one pass, and
two products spread it to the tokens and to the weight. The next tokens overwrite it.
"""

from __future__ import annotations

from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32, Int64

import aot

from .._device import WARP, KernelObject, add, await_previous, launched_early, store
from .._rows import LIMITED_TILINGS, RowTiling
from .._versions import SmemAllocator
from ..rows.softmax import LOWEST, Softmax, exponential
from ..sm90.accumulate import Accumulate
from ..sm90.epilogue import Epilogue
from ..sm90.mainloop import Mainloop
from ..sm90.product import Product
from ..sm90.tiling import Tiling

THREADS = 256  # of the block that adds up a number of each token
HEAD = 32  # floats of scratch memory before the losses of tokens: the first is what gradients are scaled by
ELEMENTS = 1 << 29  # of the logits that are in memory at the same time, about
FEW = 1 << 27  # logits that may all be in memory; of more, at most about half
ROWS = 256  # tokens: steps have multiples of these
# A block reads a long row twice. Clusters that hold one would wait for each other.
ROW_TILINGS = (*LIMITED_TILINGS["vector"][:-3], RowTiling(threads=512, unroll=4, looped=True, blocks=2))


class Numbers(NamedTuple):
    """What a loss depends on, besides logits and classes."""

    ignored: Int64
    smoothing: Float32
    z: Float32


class Target(NamedTuple):
    """What ``w`` is in a row: all elements have ``spread``, and that of the target has ``rest`` in addition."""

    chunk: Int32  # of the target
    place: Int32  # in this chunk
    rest: Float32
    spread: Float32


class RowLoss(Softmax):
    """Losses of rows, whose logits become gradients if ``gradients``.

    With ``w = (1 - smoothing) * one_hot(target) + smoothing / n``, the loss is ``lse - sum(w * x) + z * lse ** 2``, and its
    gradient is ``softmax(x) * (1 + 2 * z * lse) - w``.
    """

    reductions = 3
    gradients = True

    @cute.jit
    def __call__(self, x: cute.Tensor, classes: cute.Tensor, scale: cute.Tensor, losses, numbers: Numbers, stream):
        self.launch(x, lambda own: own.loss_kernel(x, classes, scale, losses, numbers), stream)

    @cute.kernel
    def loss_kernel(
        self, x: cute.Tensor, classes: cute.Tensor, scale: cute.Tensor, losses: cute.Tensor, numbers: Numbers
    ):
        row, first, end = self.place(x)
        # If this does not hold, elements are read one by one.
        assert x[row, None].iterator.max_alignment * 8 >= self.chunk * x.element_type.width
        wanted, columns = classes[row], cute.size(x[row, None])
        ignored, exists = wanted == numbers.ignored, wanted >= 0 and wanted < columns
        place, spread = Int32(wanted), numbers.smoothing / Float32(columns)
        target = Target(place // self.chunk, place % self.chunk, 1 - numbers.smoothing, spread)
        scaled = scale[0] if exists else Float32(float("nan"))
        if cutlass.const_expr(self.tiling.looped):
            lse, dot = self.looped_loss(x[row, None], target, scaled, numbers.z, ignored, first, end)
        else:
            lse, dot = self.held_loss(x[row, None], target, scaled, numbers.z, ignored, first, end)
        if first == 0 and end > 0:
            value = lse - dot + numbers.z * lse * lse
            value = value if exists else Float32(float("nan"))
            losses[row] = Float32(0) if ignored else value

    @cute.jit
    def held_loss(self, x: cute.Tensor, target: Target, scale: Float32, z: Float32, ignored, first, end):
        scratch = self.scratch()
        held = self.load(x, first)
        largest = self.over_row(cute.arch.fmax, self.largest(held, Float32(LOWEST)), Float32(LOWEST), scratch, 0)
        powers = [exponential(chunk.load().to(Float32) - largest) for chunk in held]
        total = self.over_row(add, self.total(self.add_up(powers, first, end)), Float32(0), scratch, 1)
        dot = self.over_row(add, self.weighed(held, target, first, end), Float32(0), scratch, 2)
        lse = largest + cute.math.log(total)
        self.store_gradient(held, lse, z, target, scale, ignored, x, first, end)
        return lse, dot

    @cute.jit
    def looped_loss(self, x: cute.Tensor, target: Target, scale: Float32, z: Float32, ignored, lane, end):
        scratch = self.scratch()
        steps = self.steps(cute.size(x))
        largest, total, dot = Float32(LOWEST), Float32(0), Float32(0)
        for step in cutlass.range(steps):
            first = step * self.span() + lane
            held = self.load(x, first)
            largest, total = self.accumulate(held, largest, total, first, end)
            dot += self.weighed(held, target, first, end)
        overall, total = self.combine(largest, total, scratch)
        dot = self.over_row(add, dot, Float32(0), scratch, 2)
        lse = overall + cute.math.log(total)
        # Backwards: the caches still have what was read last.
        for step in cutlass.range(steps):
            first = (steps - 1 - step) * self.span() + lane
            self.store_gradient(self.load(x, first), lse, z, target, scale, ignored, x, first, end)
        return lse, dot

    @cute.jit
    def weighed(self, held: list[cute.Tensor], target: Target, first, end) -> Float32:
        """The part of ``sum(w * x)`` that a thread holds. Without smoothing, an infinite logit is no part of it."""
        dot = Float32(0)
        for index, chunk in zip(self.indices(first), held, strict=True):
            values = chunk.load().to(Float32)
            if target.spread != 0 and index < end:
                dot += target.spread * values.reduce(cute.ReductionOp.ADD, Float32(0), 0)
            if index == target.chunk:
                for i in cutlass.range_constexpr(self.chunk):
                    dot += Float32(cutlass.select_(target.place == i, target.rest * values[i], Float32(0)))
        return dot

    @cute.jit
    def store_gradient(self, held, lse: Float32, z: Float32, target: Target, scale: Float32, ignored, out, first, end):
        """Powers are computed again: registers for all of them would leave room for one block, not two."""
        if cutlass.const_expr(self.gradients):
            of_power, of_all, of_target = scale * (1 + 2 * z * lse), scale * target.spread, scale * target.rest
            for index, chunk in zip(self.indices(first), held, strict=True):
                gradient = cute.make_rmem_tensor((self.chunk,), Float32)
                gradient.store(exponential(chunk.load().to(Float32) - lse) * of_power - of_all)
                if index == target.chunk:
                    for i in cutlass.range_constexpr(self.chunk):
                        gradient[i] -= Float32(cutlass.select_(target.place == i, of_target, Float32(0)))
                if ignored:
                    gradient.fill(0.0)
                store(gradient.load(), out, index, end, self.chunk)


class Totals(KernelObject):
    """Sums over all tokens, by one block: how many count, and their loss."""

    def __init__(self, target: aot.Target) -> None:
        self.early = launched_early(target)

    @cute.jit
    def launch(self, kernel, stream: CUstream, blocks: Int32 = 1):
        kernel.launch(grid=[blocks, 1, 1], block=[THREADS, 1, 1], use_pdl=self.early, stream=stream)

    @cute.kernel
    def scale_kernel(self, classes: cute.Tensor, scale: cute.Tensor, ignored: Int64, mean: Int32):
        """What each gradient is scaled by: 1, or 1 / the number of tokens that count."""
        thread, _, _ = cute.arch.thread_idx()
        await_previous(self.early)
        count = Float32(0)
        for i in cutlass.range(thread, cute.size(classes), THREADS):
            count += Float32(0) if classes[i] == ignored else Float32(1)
        count = self.total(count, thread)
        if thread == 0:
            scale[0] = 1 / count if mean == 1 else Float32(1)

    @cute.kernel
    def loss_kernel(self, losses: cute.Tensor, scale: cute.Tensor, loss: cute.Tensor):
        thread, _, _ = cute.arch.thread_idx()
        await_previous(self.early)
        total = Float32(0)
        for i in cutlass.range(thread, cute.size(losses), THREADS):
            total += losses[i]
        total = self.total(total, thread)
        if thread == 0:
            loss[0] = total * scale[0]

    @cute.kernel
    def zero_kernel(self, matrix: cute.Tensor):
        """The gradient of a weight that no token has met. A block has a row."""
        thread, _, _ = cute.arch.thread_idx()
        row, _, _ = cute.arch.block_idx()
        await_previous(self.early)
        for i in cutlass.range(thread, matrix.shape[1], THREADS):
            matrix[row, i] = matrix.element_type(0.0)

    @cute.jit
    def total(self, value: Float32, thread: Int32) -> Float32:
        """The sum over a block, in its first warp."""
        warps = SmemAllocator().allocate_tensor(Float32, cute.make_layout(THREADS // WARP))
        value = cute.arch.warp_reduction(value, add)
        if thread % WARP == 0:
            warps[thread // WARP] = value
        cute.arch.sync_threads()  # the values of all warps are there
        return cute.arch.warp_reduction(warps[thread % (THREADS // WARP)], add, threads_in_group=THREADS // WARP)


def rows_from(matrix: cute.Tensor, first: Int32, count: Int32) -> cute.Tensor:
    """Some rows of a matrix, which are 16 bytes apart or a multiple."""
    start = (matrix.iterator + Int64(first) * matrix.stride[0]).align(16)
    return cute.make_tensor(start, cute.make_layout((count, matrix.shape[1]), stride=matrix.stride))


def transposed(matrix: cute.Tensor) -> cute.Tensor:
    return cute.make_tensor(matrix.iterator, cute.select(matrix.layout, mode=[1, 0]))


class LinearCrossEntropy(KernelObject):
    def __init__(self, tilings: tuple[Tiling, Tiling, Tiling], target: aot.Target, chunk: int, gradients: bool) -> None:
        logits, by_x, by_weight = tilings
        self.logits = Product(Mainloop(logits), Epilogue(logits), target)
        self.by_x = Product(Mainloop(by_x), Epilogue(by_x), target)
        self.by_weight = Product(Mainloop(by_weight), Accumulate(by_weight, together=2), target)
        self.rows = RowLoss(ROW_TILINGS, target, chunk)
        self.rows.gradients = gradients
        self.totals = Totals(target)

    @cute.jit
    def __call__(
        self, x: cute.Tensor, weight: cute.Tensor, target: cute.Tensor, loss: cute.Tensor, by_x, by_weight,
        ignored: Int64, smoothing: Float32, z: Float32, mean: Int32, scratch: cute.Tensor, multiprocessors: Int32,
        stream: CUstream,
    ):  # fmt: skip
        tokens, words = x.shape[0], weight.shape[0]
        half = cutlass.max((tokens // 2 + ROWS - 1) // ROWS * ROWS, FEW // words // ROWS * ROWS)
        most = cutlass.max(ROWS, cutlass.min(half, ELEMENTS // words // ROWS * ROWS))
        most = cutlass.max(cutlass.min(tokens, most), 1)
        scale = cute.make_tensor(scratch.iterator, cute.make_layout(1))
        losses = cute.make_tensor(scratch.iterator + HEAD, cute.make_layout(tokens))
        start = (scratch.iterator + (HEAD + (tokens + HEAD - 1) // HEAD * HEAD)).align(128)
        buffer = cute.recast_ptr(start, dtype=x.element_type)
        self.totals.launch(self.totals.scale_kernel(target, scale, ignored, mean), stream)
        numbers = Numbers(ignored, smoothing, z)
        apart = cute.assume(Int64(words), divby=self.rows.chunk)
        for i in cutlass.range(cute.ceil_div(tokens, most)):
            first = i * most
            count = cutlass.min(most, tokens - first)
            logits = cute.make_tensor(buffer, cute.make_layout((count, words), stride=(apart, 1)))
            own = rows_from(x, first, count)
            self.logits.launch(own, weight, logits, (), None, multiprocessors // self.logits.tiling.blocks, stream)
            classes = cute.make_tensor(target.iterator + first, cute.make_layout(count))
            of_rows = cute.make_tensor(losses.iterator + first, cute.make_layout(count))
            self.rows(logits, classes, scale, of_rows, numbers, stream)
            if cutlass.const_expr(by_x is not None):
                self.by_x.launch(
                    logits, transposed(weight), rows_from(by_x, first, count), (), None,
                    multiprocessors // self.by_x.tiling.blocks, stream,
                )  # fmt: skip
            if cutlass.const_expr(by_weight is not None):
                # The first tokens find nothing to add to.
                before = words if i > 0 else 0
                layout = cute.make_layout((before, by_weight.shape[1]), stride=by_weight.stride)
                addend = cute.make_tensor(by_weight.iterator, layout)
                self.by_weight.launch(
                    transposed(logits), transposed(own), by_weight, (addend,), None,
                    multiprocessors // self.by_weight.tiling.blocks, stream,
                )  # fmt: skip
        if cutlass.const_expr(by_weight is not None):  # noqa: SIM102  decided when compiling
            if tokens == 0:
                self.totals.launch(self.totals.zero_kernel(by_weight), stream, words)
        self.totals.launch(self.totals.loss_kernel(losses, scale, loss), stream)
