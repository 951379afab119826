"""``use_stream`` takes the streams of every library, and restores the one before."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import aot_runtime
import pytest
import tvm_ffi


class WithProtocol:
    def __init__(self, version: int = 0) -> None:
        self.version = version
        self.device = SimpleNamespace(device_id=1)

    def __cuda_stream__(self) -> tuple[int, int]:
        return self.version, 0x70


def current(device: int) -> int:
    return tvm_ffi.get_raw_stream(tvm_ffi.device("cuda", device))


@pytest.mark.parametrize(
    ("stream", "device", "address"),
    [
        pytest.param(0x10, 0, 0x10, id="address"),
        pytest.param(SimpleNamespace(cuda_stream=0x20, device_index=1), 1, 0x20, id="torch"),
        pytest.param(SimpleNamespace(ptr=0x30, device_id=1), 1, 0x30, id="CuPy"),
        pytest.param(SimpleNamespace(ptr=0, device_id=-1), 0, 0, id="CuPy's default"),
        pytest.param(SimpleNamespace(handle=ctypes.c_void_p(0x40)), 0, 0x40, id="Numba"),
        pytest.param(SimpleNamespace(handle=ctypes.c_void_p(0)), 0, 0, id="Numba's default"),
        pytest.param(WithProtocol(), 1, 0x70, id="protocol"),
    ],
)
def test_streams_of_every_library_are_understood(stream: Any, device: int, address: int) -> None:
    before = current(device)
    with aot_runtime.use_stream(stream):
        assert current(device) == address
    assert current(device) == before


def test_the_device_can_be_named() -> None:
    with aot_runtime.use_stream(0x50, device=1):
        assert current(1) == 0x50
        assert current(0) == 0


def test_contexts_nest() -> None:
    with aot_runtime.use_stream(0x10), aot_runtime.use_stream(0x20):
        assert current(0) == 0x20
    assert current(0) == 0


@pytest.mark.parametrize("stream", ["cuda:0", None, True, -1, 1 << 64, object(), SimpleNamespace(ptr="no")])
def test_what_is_no_stream_is_refused(stream: Any) -> None:
    with pytest.raises(aot_runtime.ArgumentError, match="not a CUDA stream"):
        aot_runtime.use_stream(stream)


@pytest.mark.parametrize("device", [-1, 64, 2**31 - 1, "cuda:0"])
def test_what_is_no_device_is_refused(device: Any) -> None:
    with pytest.raises(aot_runtime.ArgumentError, match="is not one of 0 to 63"):
        aot_runtime.use_stream(0x10, device)


def test_a_later_version_of_the_protocol_is_refused() -> None:
    with pytest.raises(aot_runtime.ArgumentError, match="version 1 of the protocol"):
        aot_runtime.use_stream(WithProtocol(1))
