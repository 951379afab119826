"""Arrays and streams of CuPy, Numba and cuda.core on a GPU: ``pytest tests/gpu --bundle dist/kernels``.

Each test keeps the default stream busy and works on a stream that does not wait for it. A kernel that is launched on the
default stream comes too late there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import aot_runtime
import numpy
import pytest

NEEDS = {"add": "elementwise"}
SHAPE = (1024, 1024)
pytestmark = pytest.mark.gpu


@pytest.fixture
def begin(torch: Any, bundle: aot_runtime.Bundle) -> Iterator[Callable[[], None]]:
    """Keeps the default stream busy. Tests call it when their arrays are ready."""
    bundle.preload(0)

    def keep_busy() -> None:
        torch.cuda.synchronize()
        torch.cuda._sleep(1_000_000_000)  # half a second: other tests may keep the host from its next line for long

    yield keep_busy
    torch.cuda.synchronize()


def named(stream: Any, whether: bool) -> AbstractContextManager[Any]:
    return aot_runtime.use_stream(stream) if whether else nullcontext()


@pytest.mark.parametrize("own", ["named", "current", "neither"])
def test_cupy_arrays_on_a_stream_of_their_own(torch: Any, begin: Any, bundle: aot_runtime.Bundle, own: str) -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    x = cupy.ones(SHAPE, dtype=cupy.float16)
    out = cupy.zeros_like(x)
    stream = cupy.cuda.Stream(non_blocking=True)
    begin()
    with stream:
        x *= 3
    with stream if own == "current" else named(stream, own == "named"):
        bundle.add(x, x, out)
    with stream:
        read = out.copy()
    torch.cuda.synchronize()
    assert float(read.max()) == float(read.min()) == (0.0 if own == "neither" else 6.0)


@pytest.mark.parametrize("own", ["named", "of the arrays", "neither"])
def test_numba_arrays_on_a_stream_of_their_own(torch: Any, begin: Any, bundle: aot_runtime.Bundle, own: str) -> None:
    """Arrays of Numba say which stream they belong to."""
    cuda = pytest.importorskip("numba.cuda", reason="Numba is not installed")
    side = torch.cuda.Stream()  # Numba makes only streams that wait for the default stream
    stream = cuda.external_stream(side.cuda_stream)
    x = cuda.to_device(numpy.zeros(SHAPE, numpy.float16))
    out = cuda.to_device(numpy.zeros(SHAPE, numpy.float16))
    assert not hasattr(x, "__dlpack__")  # if it has, aot_runtime.core.arrays is needed no more
    threes = cuda.pinned_array(SHAPE, numpy.float16)
    threes[:] = 3
    begin()
    if own == "of the arrays":
        x, out = x.bind(stream), out.bind(stream)
    with named(stream, own == "named"):
        with torch.cuda.stream(side):
            torch.cuda._sleep(10_000_000)  # what is launched elsewhere would read zeros
        x.copy_to_device(threes, stream=stream)
        bundle.add(x, x, out)
        read = out.copy_to_host(stream=stream)
        stream.synchronize()
    assert read.max() == read.min() == (0.0 if own == "neither" else 6.0)


def tensors_of_torch(torch: Any) -> list[Any]:
    """A summand, an output, and memory for a copy of the output."""
    return [torch.full(SHAPE, value, device="cuda", dtype=torch.float16) for value in (1.0, 0.0, 0.0)]


@contextmanager
def refused(stream: int) -> Iterator[None]:
    """A call with an array of that stream, while the default stream is torch's."""
    with pytest.raises(aot_runtime.ArgumentError, match=f"several streams: 0x0, {stream:#x}\n") as caught:
        yield
    assert "torch.cuda.ExternalStream(stream)" in str(caught.value.hint)


def test_cupy_arrays_beside_tensors_of_torch(torch: Any, begin: Any, bundle: aot_runtime.Bundle) -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    x = cupy.ones(SHAPE, dtype=cupy.float16)
    y, out, read = tensors_of_torch(torch)
    stream = cupy.cuda.Stream(non_blocking=True)
    begin()
    with stream:
        x *= 3
        with refused(stream.ptr):
            bundle.add(x, y, out)
        with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
            bundle.add(x, y, out)
            read.copy_(out)
    torch.cuda.synchronize()
    assert float(read.max()) == float(read.min()) == 4.0


def test_numba_arrays_beside_tensors_of_torch(torch: Any, begin: Any, bundle: aot_runtime.Bundle) -> None:
    cuda = pytest.importorskip("numba.cuda", reason="Numba is not installed")
    side = torch.cuda.Stream()
    stream = cuda.external_stream(side.cuda_stream)
    x = cuda.to_device(numpy.zeros(SHAPE, numpy.float16)).bind(stream)
    y, out, read = tensors_of_torch(torch)
    threes = cuda.pinned_array(SHAPE, numpy.float16)
    threes[:] = 3
    begin()
    x.copy_to_device(threes, stream=stream)
    with refused(side.cuda_stream):
        bundle.add(x, y, out)
    with torch.cuda.stream(side):
        bundle.add(x, y, out)
        read.copy_(out)
    torch.cuda.synchronize()
    assert float(read.max()) == float(read.min()) == 4.0


@pytest.mark.parametrize("is_named", [True, False])
def test_views_of_cuda_core_on_a_stream_of_their_own(begin: Any, bundle: aot_runtime.Bundle, is_named: bool) -> None:
    core = pytest.importorskip("cuda.core", reason="cuda.core is not installed")
    utils = pytest.importorskip("cuda.core.utils", reason="cuda.core is too old")
    device = core.Device(0)
    device.set_current()
    stream = device.create_stream()
    assert stream.is_nonblocking
    size = 2 * SHAPE[0] * SHAPE[1]
    host = core.LegacyPinnedMemoryResource().allocate(size)
    buffers = [device.allocate(size, stream=stream) for _ in range(2)]
    for buffer in buffers:
        buffer.fill(0, stream=stream)
    stream.sync()
    half = numpy.dtype(numpy.float16)
    x, out = (utils.StridedMemoryView.from_buffer(buffer, SHAPE, dtype=half) for buffer in buffers)
    begin()
    with named(stream, is_named):
        buffers[0].fill(half.type(3).tobytes(), stream=stream)
        bundle.add(x, x, out)
        buffers[1].copy_to(host, stream=stream)
        stream.sync()
    read = numpy.from_dlpack(host).view(half)
    assert read.max() == read.min() == (6.0 if is_named else 0.0)
