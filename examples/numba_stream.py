"""A kernel with arrays of Numba, on the stream that they belong to. Needs Numba and a GPU."""

import aot_runtime
import numpy
from numba import cuda

kernels = aot_runtime.load("dist/kernels")
stream = cuda.stream()
x = cuda.to_device(numpy.ones((64, 512), numpy.float16), stream=stream)
out = cuda.device_array_like(x, stream=stream)
kernels.add(x, x, out)

result = out.copy_to_host(stream=stream)
stream.synchronize()
assert (result == 2).all()
