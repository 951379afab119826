"""Captures a kernel whose host function makes a tensor map with ``cutlass.experimental.cuda``, which asserts that it succeeds."""

import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream
from cutlass.experimental import cuda


@cute.kernel
def kernel(mapped: cutlass.GridConstant[cuda.TensorMap], x: cute.Tensor):
    x[0, cute.arch.thread_idx()[0]] = cutlass.Float16(2.0)


@cute.jit
def fill(x: cute.Tensor, rows: cutlass.Int32, stream):
    mapped = cuda.create_tensor_map_tiled(
        global_address=x.iterator.toint(),
        dtype=cutlass.Float16,
        global_dims=[64, rows],
        global_strides=[8],  # in 16 bytes
        box_dims=[64, 8],
        swizzle=cuda.TensorMapSwizzle.s128b,
    )
    if rows > 1:  # what follows meets in one place
        kernel(mapped, x).launch(grid=[1, 1, 1], block=[64, 1, 1], stream=stream)
    kernel(mapped, x).launch(grid=[2, 1, 1], block=[64, 1, 1], stream=stream)


x = make_fake_compact_tensor(cutlass.Float16, (cute.sym_int64(), 64), stride_order=(1, 0), assumed_align=16)
stream = make_fake_stream(use_tvm_ffi_env_stream=True)
cute.compile(fill, x, cutlass.Int32(1), stream, options="--enable-tvm-ffi")
