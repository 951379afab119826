"""Arrays that have ``__cuda_array_interface__`` alone, and arrays that claim a stream, on the stand-in."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aot_runtime
import pytest
import tvm_ffi
from aot_runtime import ArgumentError
from aot_runtime.core import arrays
from standin import Standin, address_of


class Array:
    """As Numba's: no DLPack."""

    def __init__(self, shape: tuple[int, ...], typestr: str = "<f4", **facts: Any) -> None:
        data = (0x7E00_0000_0000, False)
        self.facts = {"shape": shape, "strides": None, "data": data, "typestr": typestr, "version": 3, **facts}

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.facts


@pytest.fixture(autouse=True)
def devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in has no memory whose device a driver knows."""
    monkeypatch.setattr(arrays, "_device_at", lambda address: 0)


def noted(*tensors: Any) -> list[Any]:
    """A function of a kernel that notes what arrives, and on which stream."""
    seen: list[Any] = []
    arrays.call_with_views(lambda *given: seen.extend(given), *tensors)
    return [*seen, tvm_ffi.get_raw_stream(tvm_ffi.device("cuda", 0))]


def test_a_kernel_takes_arrays_without_dlpack(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    for call in (bundle.fill, bundle.fill_epilogue, bundle.fill_epilogue.relu):
        call(Array((1008,)))
        assert len(cuda.launches) == 1
        cuda.reset(capabilities=[(9, 0)])
    with pytest.raises(ArgumentError, match=r"float32\[3, 1008\]"):
        bundle.fill(Array((3, 1008)))


def test_an_array_may_have_its_interface_on_the_instance(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    """So have proxies, and objects that are made by hand."""
    class_has_it = Array((1008,))
    instance_has_it = SimpleNamespace(__cuda_array_interface__=class_has_it.facts)
    bundle.fill(instance_has_it)
    assert len(cuda.launches) == 1
    with pytest.raises(ArgumentError), aot_runtime.use_stream(cuda.stream()):
        bundle.fill(SimpleNamespace())
    with aot_runtime.use_stream(cuda.stream()):
        bundle.fill(instance_has_it)
    assert len(cuda.launches) == 2


def test_a_view_for_which_there_is_no_memory_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "_allocate", lambda size: None)
    with pytest.raises(MemoryError):
        noted(Array((4, 6)))


OUTLIVING = """
import resource, sys
from aot_runtime.core import arrays

class Array:
    def __init__(self, rank):
        data = (0x7E00_0000_0000, False)
        self.__class__.__cuda_array_interface__ = {
            "shape": rank * (1,), "strides": None, "data": data, "typestr": "<f4", "version": 3
        }

arrays._device_at = lambda address: 0
views = []
for rank in (2000 * [2] + 20000 * [64]):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss if rank == 2 else before
    arrays.call_with_views(lambda *given: None, Array(rank))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
arrays.call_with_views(lambda *given: views.extend(given), Array(2))
views.append(views)
sys.kept = views
"""


def test_the_memory_of_a_view_is_freed_even_after_the_modules_of_python() -> None:
    """A traceback that is kept holds the views of a refused call."""
    done = subprocess.run([sys.executable, "-c", OUTLIVING], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 10_000  # KB; the views have 24 MB


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"typestr": "<f2"}, ((4, 6), (6, 1), "float16")),
        ({"typestr": "|u1", "strides": (1, 4)}, ((4, 6), (1, 4), "uint8")),
        ({"typestr": "<i8", "strides": (96, 8)}, ((4, 6), (12, 1), "int64")),
        ({"typestr": "|b1"}, ((4, 6), (6, 1), "bool")),
    ],
)
def test_a_view_has_the_shape_strides_and_type_of_the_array(facts: dict[str, Any], expected: Any) -> None:
    view, _ = noted(Array((4, 6), **facts))
    assert (view.shape, view.strides, str(view.dtype), view.device.index) == (*expected, 0)


@pytest.mark.parametrize(
    ("facts", "problem"),
    [
        ({"typestr": "<V2"}, "of type '<V2'"),
        ({"typestr": ">f4"}, "of type '>f4'"),
        ({"mask": 1}, "with a mask"),
        # One field of records of 6 bytes each.
        ({"strides": (36, 6)}, r"of type '<f4' whose elements lie \(36, 6\) bytes apart"),
    ],
)
def test_what_the_interface_cannot_say_is_refused(facts: dict[str, Any], problem: str) -> None:
    with pytest.raises(ArgumentError, match=f"an array {problem} cannot be passed"):
        noted(Array((4, 6), **facts))


def test_strides_of_single_elements_do_not_matter() -> None:
    view, _ = noted(Array((1, 6), strides=(7, 4)))
    assert view.shape == (1, 6) and view.strides[1] == 1


def test_classes_of_arguments_are_forgotten_at_a_certain_number() -> None:
    for i in range(arrays._MOST_CLASSES + 10):
        noted(type(f"Class{i}", (), {})())
    assert len(arrays._takes) <= arrays._MOST_CLASSES
    assert noted(1.5)[0] == 1.5


def on_stream(cuda: Standin) -> int:
    (launch,) = cuda.launches
    return int(launch.stream)


def test_the_stream_of_an_array_is_used_unless_another_is_named(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    own, other = cuda.stream(), cuda.stream()
    bundle.fill(Array((1008,), stream=own))
    assert on_stream(cuda) == own
    cuda.clear()
    with aot_runtime.use_stream(other):
        bundle.fill(Array((1008,), stream=own))
    assert on_stream(cuda) == other


def test_the_current_stream_of_cupy_is_used_for_its_arrays(
    cuda: Standin, bundle: aot_runtime.Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ndarray:
        device = SimpleNamespace(id=0)

        def __init__(self, tensor: tvm_ffi.Tensor) -> None:
            self.tensor = tensor

        def __dlpack__(self, **options: Any) -> Any:
            return self.tensor.__dlpack__(**options)

    current = SimpleNamespace(ptr=cuda.stream())
    played = SimpleNamespace(ndarray=Ndarray, cuda=SimpleNamespace(get_current_stream=lambda device: current))
    monkeypatch.setitem(sys.modules, "cupy", played)
    bundle.fill(Ndarray(cuda.tensor((1008,), "float32")))
    assert on_stream(cuda) == current.ptr
    cuda.clear()
    with aot_runtime.use_stream(0):  # the default stream, named
        bundle.fill(Ndarray(cuda.tensor((1008,), "float32")))
    assert on_stream(cuda) == 0
    cuda.clear()
    with aot_runtime.use_stream(0, device=1):
        bundle.fill(Ndarray(cuda.tensor((1008,), "float32")))
    assert on_stream(cuda) == current.ptr
    cuda.clear()
    current.ptr = 0
    bundle.fill(Ndarray(cuda.tensor((1008,), "float32")))
    assert on_stream(cuda) == 0


def test_arrays_of_several_streams_need_a_named_one() -> None:
    tensors = Array((8,), stream=0x10), Array((8,), stream=0x20)
    with pytest.raises(ArgumentError, match="several streams: 0x10, 0x20"):
        noted(*tensors)
    with aot_runtime.use_stream(0x30):
        assert noted(*tensors)[-1] == 0x30


def test_arrays_beside_tensors_of_torch_belong_to_the_stream_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM-FFI launches a call with a tensor of torch on torch's current stream, whatever stream is set."""

    class Tensor:
        device, is_cuda = SimpleNamespace(index=0), True

        def __dlpack__(self, **options: Any) -> Any: ...

    current = SimpleNamespace(cuda_stream=0)
    played = SimpleNamespace(Tensor=Tensor, cuda=SimpleNamespace(current_stream=lambda index: current))
    monkeypatch.setitem(sys.modules, "torch", played)
    with pytest.raises(ArgumentError, match="several streams: 0x0, 0x10") as caught:
        noted(Array((8,), stream=0x10), Tensor())
    assert "torch.cuda.ExternalStream" in str(caught.value.hint)
    current.cuda_stream = 0x10
    assert len(noted(Array((8,), stream=0x10), Tensor())) == 3
    current.cuda_stream = 0x20
    assert len(noted(Array((8,)), Tensor())) == 3  # the array names no stream
    with aot_runtime.use_stream(0x30):  # the caller has ordered the streams
        assert len(noted(Array((8,), stream=0x10), Tensor())) == 3


def test_a_named_stream_counts_more_than_the_claim_of_a_library(cuda: Standin) -> None:
    """TVM-FFI asks the library of such an array for its current stream; cuda.core always answers the default stream."""
    tensor = cuda.tensor((8,), "float32")
    claiming = tvm_ffi.core.DLTensorTestWrapper(tensor)
    assert hasattr(type(claiming), "__dlpack_c_exchange_api__")
    seen, _ = noted(claiming)
    assert type(seen) is tvm_ffi.Tensor and address_of(seen) == address_of(tensor)


def test_a_stream_that_is_named_through_another_copy_of_the_loader_counts_too(
    bundle: aot_runtime.Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every generated package has a copy of its own."""
    shutil.copytree(
        Path(aot_runtime.__file__).parent, tmp_path / "copied_runtime", ignore=shutil.ignore_patterns("__pycache__")
    )
    monkeypatch.syspath_prepend(tmp_path)
    copied = importlib.import_module("copied_runtime")
    seen: list[Any] = []
    monkeypatch.setitem(bundle.fill.__globals__, "_call_with_views", lambda *given: seen.append(given))
    with copied.use_stream(0x70):
        bundle.fill(Array((1008,)))
    assert len(seen) == 1
