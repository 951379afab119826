"""A kernel with memory of cuda.core, on a stream of cuda.core's. Needs cuda.core and a GPU."""

import aot_runtime
import numpy
from cuda.core import Device, LegacyPinnedMemoryResource
from cuda.core.utils import StridedMemoryView

kernels = aot_runtime.load("dist/kernels")
device = Device()
device.set_current()
stream = device.create_stream()
half = numpy.dtype(numpy.float16)
buffers = [device.allocate(64 * 512 * half.itemsize, stream=stream) for _ in range(2)]
x, out = (StridedMemoryView.from_buffer(buffer, (64, 512), dtype=half) for buffer in buffers)
buffers[0].fill(half.type(1).tobytes(), stream=stream)
with aot_runtime.use_stream(stream):
    kernels.add(x, x, out)

result = LegacyPinnedMemoryResource().allocate(buffers[1].size)
buffers[1].copy_to(result, stream=stream)
stream.sync()
assert (numpy.from_dlpack(result).view(half) == 2).all()
