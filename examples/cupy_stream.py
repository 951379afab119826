"""A kernel with CuPy arrays, on CuPy's current stream. Needs CuPy and a GPU."""

import aot_runtime
import cupy

kernels = aot_runtime.load("dist/kernels")
stream = cupy.cuda.Stream(non_blocking=True)
with stream:
    x = cupy.ones((64, 512), dtype=cupy.float16)
    out = cupy.empty_like(x)
    kernels.add(x, x, out)
    assert bool((out == 2).all())
