"""A kernel that only reads: how fast a GPU can read memory, beside kernels that are limited by that.

Which form is the fastest depends on how much there is to read, so a plain read is the best of them.
"""

from __future__ import annotations

from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Int32

import aot

CHUNK = 4  # numbers of 4 bytes: the widest access
WRITTEN = 512  # numbers that a caller has room for


class Form(NamedTuple):
    """Threads of a block, chunks that each of them reads at once, and blocks of a multiprocessor."""

    threads: int
    unroll: int
    blocks: int


FORMS = {
    "default": Form(256, 8, 4),
    "wide": Form(512, 4, 3),
    "many": Form(256, 4, 6),
    "short": Form(256, 1, 8),
}
MULTIPLE = max(form.threads * form.unroll * CHUNK for form in FORMS.values())


class Read:
    def __init__(self, form: Form, target: aot.Target) -> None:
        self.form, self.early = form, target.capability[0] == 9

    @cute.kernel
    def kernel(self, x: cute.Tensor, out: cute.Tensor):
        threads, unroll, _ = self.form
        block, _, _ = cute.arch.block_idx()
        blocks, _, _ = cute.arch.grid_dim()
        thread, _, _ = cute.arch.thread_idx()
        if cutlass.const_expr(self.early):  # as the products do: it is launched before the previous kernel has ended
            cute.arch.griddepcontrol_launch_dependents()
            cute.arch.griddepcontrol_wait()
        total = cute.full(CHUNK, 0, Int32)
        for step in cutlass.range(block, cute.size(x) // (threads * unroll * CHUNK), blocks, unroll=1):
            chunks = [cute.make_rmem_tensor(CHUNK, Int32) for _ in range(unroll)]
            for i in cutlass.range_constexpr(unroll):
                index = (step * unroll + i) * threads + thread
                cute.autovec_copy(cute.local_tile(x, (CHUNK,), (index,)), chunks[i])
            for i in cutlass.range_constexpr(unroll):
                total = total ^ chunks[i].load()
        # Written only if all bits are set, which nobody knows before: the reads cannot be left out.
        if (total[0] & total[1] & total[2] & total[3]) == -1:
            out[0] = total[0]

    @cute.jit
    def __call__(self, x: cute.Tensor, out: cute.Tensor, multiprocessors: Int32, stream: CUstream):
        grid = [multiprocessors * self.form.blocks, 1, 1]
        self.kernel(x, out).launch(grid=grid, block=[self.form.threads, 1, 1], use_pdl=self.early, stream=stream)


@aot.kernel(
    parameters=(aot.In("x"), aot.Out("out", shape=f"({WRITTEN},)", dtype="i32")),
    archs=("sm_80", "sm_90a"),
    choices={"form": FORMS},
    choice_defaults={"form": "default"},
)
def read(target: aot.Target, form: Form) -> aot.Spec:
    """Reads ``x`` and forgets it."""
    x = aot.Tensor("i32", (aot.Dim("n", divisible_by=MULTIPLE),), align=16)
    out = aot.Tensor("i32", (WRITTEN,))
    return aot.Spec(Read(form, target), {"x": x, "out": out, "sms": aot.Multiprocessors(), "stream": aot.Stream()})
