"""A step of AdamW over all parameters of a model, in one launch.

The parameters lie side by side in one buffer, and so do their gradients, their masters in f32 and both moments: tensors of
the model are views of the buffer. ``ends`` says where each of them ends, and ``decays`` how much its weights decay, so norms
and biases, which should not decay, need no launch of their own. The rate, the number of the step and the scale of the
gradients are read on the device: a captured CUDA graph may be replayed after they changed.

Memory is the limit: 28 bytes of a parameter in bf16 are read or written once. A thread has chunks of one tensor or of two,
and finds the first by bisection.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32, Int64

import aot

from .._device import ARCHS, DTYPES, VECTOR_BYTES, KernelObject, await_previous, fetch, launched_early, store
from ..contracts.training import adamw as contract

THREADS = 256
CHUNK = VECTOR_BYTES // 4  # elements: 16 bytes of f32


class AdamW(KernelObject):
    def __init__(self, target: aot.Target) -> None:
        self.early = launched_early(target)

    @cute.jit
    def __call__(
        self, grad, master, mean, square, ends, decays, rate, step, weight, master_out, mean_out, square_out, scale,
        beta1: Float32, beta2: Float32, eps: Float32, stream: CUstream,
    ):  # fmt: skip
        chunks = (Int64(cute.size(grad)) + CHUNK - 1) // CHUNK
        blocks = (chunks + THREADS - 1) // THREADS
        if blocks > 0:  # CUDA refuses an empty grid
            self.kernel(
                [grad, master, mean, square], [weight, master_out, mean_out, square_out], ends, decays, rate, step, scale,
                beta1, beta2, eps,
            ).launch(grid=[Int32(blocks), 1, 1], block=[THREADS, 1, 1], use_pdl=self.early, stream=stream)  # fmt: skip

    @cute.kernel
    def kernel(self, sources, targets, ends, decays, rate, step, scale, beta1: Float32, beta2: Float32, eps: Float32):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        size = Int64(cute.size(sources[0]))
        index = Int64(block) * THREADS + thread
        await_previous(self.early)
        steps = Float32(step[0])
        # 1 - beta ** step, and the rate by which the mean is multiplied.
        first = 1 - cute.math.exp2(steps * cute.math.log2(beta1))
        second = 1 - cute.math.exp2(steps * cute.math.log2(beta2))
        numbers = (beta1, beta2, eps, rate[0], first, second, Float32(1) if scale is None else scale[0])
        if (index + 1) * CHUNK <= size:
            self.move(sources, targets, ends, decays, index, CHUNK, numbers)
        else:
            for i in cutlass.range(index * CHUNK, size):
                self.move(sources, targets, ends, decays, i, 1, numbers)

    @cute.jit
    def move(self, sources, targets, ends, decays, index: Int64, size: cutlass.Constexpr, numbers):
        """One chunk of ``size`` elements."""
        grad, master, mean, square = [fetch(source, index, size).load().to(Float32) for source in sources]
        beta1, beta2, eps, rate, first, second, scale = numbers
        grad = grad * scale
        mean = beta1 * mean + (1 - beta1) * grad
        square = beta2 * square + (1 - beta2) * grad * grad
        decay = self.decay(ends, decays, index * size, size)
        update = (mean / first) / (cute.math.sqrt(square / second) + eps)
        master = master - rate * (update + decay.load() * master)
        for value, target in zip((master, master, mean, square), targets, strict=True):
            store(value, target, index, index + 1, size)

    @cute.jit
    def decay(self, ends: cute.Tensor, decays: cute.Tensor, start: Int64, size: cutlass.Constexpr):
        """How much each element decays: the number of its tensor is that of the ends before it."""
        low, high = Int32(0), cute.size(ends) - 1
        while low < high:
            middle = (low + high) // 2
            if ends[middle] <= start:
                low = middle + 1
            else:
                high = middle
        found = cute.make_rmem_tensor((size,), Float32)
        for i in cutlass.range_constexpr(size):
            while low < cute.size(ends) - 1 and ends[low] <= start + i:
                low += 1
            found[i] = decays[low]
        return found


def flat(dtype: str) -> aot.Tensor:
    return aot.Tensor(dtype, (aot.Dim("size", bits=64),), align=VECTOR_BYTES)


@aot.kernel(
    parameters=(
        aot.In("grad", "all gradients, side by side, in the dtype of the weights or in f32"),
        aot.In("master", "all weights in f32"),
        aot.In("mean", "the first moments, in f32"),
        aot.In("square", "the second moments, in f32"),
        aot.In("ends", "of each tensor: the element after its last one"),
        aot.In("decays", "of each tensor: how much its weights decay, in f32"),
        aot.In("rate", "the learning rate: one element of f32"),
        aot.In("step", "the number of this step, from 1 on: one element of i64"),
        aot.Out("weight", "all weights", shape="grad.shape", dtype="weight.dtype"),
        aot.Out("master_out", shape="master.shape", dtype="f32", may_be="master"),
        aot.Out("mean_out", shape="mean.shape", dtype="f32", may_be="mean"),
        aot.Out("square_out", shape="square.shape", dtype="f32", may_be="square"),
        aot.In("scale", "of the gradients, such as what clips their norm: one element of f32; or none", default=None),
        aot.In("beta1", default=0.9),
        aot.In("beta2", default=0.95),
        aot.In("eps", default=1e-8),
    ),
    archs=ARCHS,
    axes={
        "dtype": DTYPES,
        "gradients": {"same": "", "f32": "f32"},
        "scaled": {"plain": False, "scaled": True},
    },
    contract=contract,
)
def adamw(target: aot.Target, dtype: str, gradients: str, scaled: bool) -> aot.Spec | list[aot.Spec]:
    """A step of AdamW. Weights are the masters, rounded to their own dtype.

    ``master -= rate * (mean / (1 - beta1 ** step) / (sqrt(square / (1 - beta2 ** step)) + eps) + decay * master)``
    """
    if gradients and dtype == gradients:
        return []
    one = aot.Tensor("f32", (1,))
    arguments = {
        "grad": flat(gradients or dtype), "master": flat("f32"), "mean": flat("f32"), "square": flat("f32"),
        "ends": aot.Tensor("i64", ("tensors",)), "decays": aot.Tensor("f32", ("tensors",)),
        "rate": one, "step": aot.Tensor("i64", (1,)),
        "weight": flat(dtype), "master_out": flat("f32"), "mean_out": flat("f32"), "square_out": flat("f32"),
        "scale": one if scaled else None,
        "beta1": aot.Scalar("f32"), "beta2": aot.Scalar("f32"), "eps": aot.Scalar("f32"), "stream": aot.Stream(),
    }  # fmt: skip
    return aot.Spec(AdamW(target), arguments, ("tensors > 0",))
