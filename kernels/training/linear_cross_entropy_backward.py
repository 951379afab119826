"""The gradients of ``linear_cross_entropy``: those that it has computed, times the gradient of the loss.

That is 1 if nothing follows the loss. Nothing has to be moved then, if results replace what they are computed from, and the
kernel ends at once. Otherwise memory is the limit.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32, Int64

import aot

from .._device import VECTOR_BYTES, KernelObject, await_previous, chunk_elements, launched_early, load, store
from ..contracts.training import linear_cross_entropy_backward as contract

THREADS, UNROLL, BLOCKS = 256, 4, 8  # BLOCKS: of a multiprocessor


class ScaleBoth(KernelObject):
    def __init__(self, target: aot.Target, dtype: str) -> None:
        self.early, self.chunk = launched_early(target), chunk_elements(dtype, True)

    @cute.jit
    def __call__(
        self, grad_loss: cute.Tensor, by_x: cute.Tensor, by_weight: cute.Tensor, grad_x: cute.Tensor,
        grad_weight: cute.Tensor, multiprocessors: Int32, stream: CUstream,
    ):  # fmt: skip
        for source, target in ((by_x, grad_x), (by_weight, grad_weight)):
            size = Int64(cute.size(source, mode=[0])) * Int64(cute.size(source, mode=[1]))
            line = cute.make_layout(size)
            steps = (size // self.chunk + THREADS * UNROLL - 1) // (THREADS * UNROLL)
            if size > 0:  # CUDA refuses an empty grid
                self.kernel(
                    grad_loss, cute.make_tensor(source.iterator, line), cute.make_tensor(target.iterator, line)
                ).launch(
                    grid=[cutlass.min(Int32(steps), multiprocessors * BLOCKS), 1, 1],
                    block=[THREADS, 1, 1],
                    use_pdl=self.early,
                    stream=stream,
                )

    @cute.kernel
    def kernel(self, grad_loss: cute.Tensor, source: cute.Tensor, target: cute.Tensor):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        blocks, _, _ = cute.arch.grid_dim()
        await_previous(self.early)
        factor = grad_loss[0]
        apart = source.iterator.toint() != target.iterator.toint()
        if apart or factor != Float32(1):
            self.scale(
                source, target, factor, Int64(block) * (THREADS * UNROLL) + thread, Int64(blocks) * (THREADS * UNROLL)
            )

    @cute.jit
    def scale(self, source: cute.Tensor, target: cute.Tensor, factor: Float32, start: Int64, apart: Int64):
        end = Int64(cute.size(source) // self.chunk)
        first = start
        while first < end:
            self.move(source, target, factor, first, end)
            first += apart

    @cute.jit
    def move(self, source: cute.Tensor, target: cute.Tensor, factor: Float32, first: Int64, end: Int64):
        indices = [first + i * THREADS for i in range(UNROLL)]
        loaded = [load(source, index, self.chunk) for index in indices]
        for index, chunk in zip(indices, loaded, strict=True):
            store(chunk.load().to(Float32) * factor, target, index, end, self.chunk)


@aot.kernel(
    parameters=(
        aot.In("grad_loss", "one number"),
        aot.In("by_x", "the gradient of the loss by `x`"),
        aot.In("by_weight", "that by `weight`"),
        aot.Out("grad_x", shape="by_x.shape", dtype="by_x.dtype", may_be="by_x"),
        aot.Out("grad_weight", shape="by_weight.shape", dtype="by_weight.dtype", may_be="by_weight"),
    ),
    archs=("sm_90a",),
    axes={"dtype": ("bf16",)},
    contract=contract,
)
def linear_cross_entropy_backward(target: aot.Target, dtype: str) -> aot.Spec:
    """The gradients of ``linear_cross_entropy`` by ``x`` and ``weight``, from those of its loss."""
    k = aot.Dim("k", divisible_by=VECTOR_BYTES // 2)
    by_x, by_weight = (aot.Tensor(dtype, (rows, k), align=VECTOR_BYTES) for rows in ("tokens", "words"))
    arguments = {
        "grad_loss": aot.Tensor("f32", (1,)),
        "by_x": by_x, "by_weight": by_weight, "grad_x": by_x, "grad_weight": by_weight,
        "multiprocessors": aot.Multiprocessors(), "stream": aot.Stream(),
    }  # fmt: skip
    return aot.Spec(ScaleBoth(target, dtype), arguments)
