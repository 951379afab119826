"""An exercise whose kernel takes numbers of 4 bits: callers pass pairs, torch's `float4_e2m1fn_x2`."""

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream


@cute.kernel
def copy_kernel(x: cute.Tensor, out: cute.Tensor):
    row, thread = cute.arch.block_idx()[0], cute.arch.thread_idx()[0]
    x8, out8 = cute.recast_tensor(x, cutlass.Int8), cute.recast_tensor(out, cutlass.Int8)
    if thread < cute.size(x8, mode=[1]):
        out8[row, thread] = x8[row, thread]


@cute.jit
def copy(x: cute.Tensor, out: cute.Tensor, stream: CUstream):
    copy_kernel(x, out).launch(grid=[cute.size(x, mode=[0]), 1, 1], block=[64, 1, 1], stream=stream)


rows = cute.sym_int()
x = make_fake_compact_tensor(cutlass.Float4E2M1FN, (rows, 128), stride_order=(1, 0), assumed_align=16)
cute.compile(copy, x, x, make_fake_stream(use_tvm_ffi_env_stream=True), options="--enable-tvm-ffi")
