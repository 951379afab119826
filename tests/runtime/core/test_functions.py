"""Calling a kernel from Python: signatures, streams, launch shapes, and arguments that no variant takes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import aot_runtime
import pytest
import tvm_ffi
from aot_runtime import AotError, ArgumentError, DriverError
from observing import mapped_libraries, only_block
from standin import CPU, Standin

MakeBundle = Callable[..., aot_runtime.Bundle]


# Functions as Python sees them


def test_a_function_has_the_declared_names_and_defaults(bundle: aot_runtime.Bundle) -> None:
    assert str(inspect.signature(bundle.fill)) == "(out, value=1.0)"
    assert str(inspect.signature(bundle.fill_optional)) == "(out, bias=None)"
    assert str(inspect.signature(bundle.fill_pointer)) == "(pointer, count, stream)"
    assert str(inspect.signature(bundle.fill_epilogue)) == "(out, *, epilogue='identity')"
    assert str(inspect.signature(bundle.fill_epilogue.relu)) == "(out)"
    assert bundle.fill.__name__ == "fill"


def test_a_function_documents_itself(bundle: aot_runtime.Bundle) -> None:
    assert str(bundle.fill.__doc__).splitlines() == [
        "Fill a vector with a value.",
        "",
        "out (float16[:] or bfloat16[:] or float32[:]; written): what is filled",
        "value (float; default 1.0): with what",
    ]
    assert "bias (float32[4, :] or None; default None)" in str(bundle.fill_optional.__doc__)
    assert "weights (tuple)" in str(bundle.fill_pair.__doc__)
    assert bundle.fill_epilogue.__doc__ == (
        "A compile-time class that the caller names.\n\n"
        "out (float32[:]; written): what is filled\nepilogue: one of identity, relu."
    )


def test_kernels_are_attributes_and_items(bundle: aot_runtime.Bundle) -> None:
    assert bundle.fill is bundle["fill"] is bundle.fill
    assert list(bundle) == list(bundle.kernels)
    assert set(bundle.kernels) <= set(dir(bundle))
    assert "'bundle'" in repr(bundle) and "fill_pointer" in repr(bundle)


@pytest.mark.parametrize("name", ["full", "fill__f16", "aot__preload", "__tvm_ffi_fill", ""])
def test_what_is_not_a_kernel_is_answered_with_what_is(name: str, bundle: aot_runtime.Bundle) -> None:
    with pytest.raises(KeyError, match=re.escape(f"bundle 'bundle' has no kernel {name!r}; it has fill, ")):
        bundle[name]
    with pytest.raises(AttributeError):
        getattr(bundle, name)


def test_positions_keywords_and_defaults_make_the_same_call(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    out = cuda.tensor((1008,), "float32")
    for call in (
        lambda: bundle.fill_guarded(out, 0.5),
        lambda: bundle.fill_guarded(out, value=0.5),
        lambda: bundle.fill_guarded(value=0.5, out=out),
    ):
        assert call() is None
        assert only_block(cuda) == 128
    bundle.fill(out)
    assert only_block(cuda) == 128


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "missing 1 required positional argument: 'out'"),
        ((1, 2, 3), {}, "takes from 1 to 2 positional arguments but 3 were given"),
        ((1,), {"out": 1}, "got multiple values for argument 'out'"),
        ((1,), {"valeu": 1}, "got an unexpected keyword argument 'valeu'"),
    ],
)
def test_a_wrong_number_of_arguments_is_answered_as_python_does(
    args: tuple[Any, ...], kwargs: dict[str, Any], message: str, bundle: aot_runtime.Bundle
) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        bundle.fill(*args, **kwargs)


@pytest.mark.parametrize("count", [0, 1, 3, 70])
def test_a_wrong_number_of_arguments_is_caught_below_python_too(
    count: int, cuda: Standin, bundle: aot_runtime.Bundle
) -> None:
    (host,) = bundle.manifest.hosts.values()
    function = tvm_ffi.load_module(str(bundle.path / host.entry)).get_function("fill")
    with pytest.raises(ArgumentError, match=f"fill takes 2 arguments, got {count}\n  called as: fill"):
        function(*(cuda.tensor((8,), "float32") for _ in range(count)))


# Launches


@pytest.mark.parametrize(("length", "grid"), [(1, 1), (128, 1), (129, 2), (2**31 - 1, 2**24)])
def test_the_launch_has_the_shape_that_the_kernel_gave(
    length: int, grid: int, cuda: Standin, bundle: aot_runtime.Bundle
) -> None:
    bundle.fill(cuda.tensor((length,), "float16"))
    (launch,) = cuda.launches
    assert (launch.grid, launch.block, launch.cluster) == ((grid, 1, 1), (128, 1, 1), (1, 1, 1))
    assert (launch.device, launch.stream, launch.shared_memory) == (0, 0, 0)
    assert "write" in launch.kernel


def test_the_stream_is_the_environments_of_the_device_of_the_call(cuda: Standin, fresh_bundle: MakeBundle) -> None:
    bundle = fresh_bundle((9, 0), (8, 0))
    streams = [cuda.stream(0), cuda.stream(1)]
    tensors = [cuda.tensor((8,), "float32", device=device) for device in (0, 1)]
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:0"), streams[0]):
        with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:1"), streams[1]):
            for device in (0, 1, 0):
                bundle.fill(tensors[device])
        bundle.fill(tensors[1])
    bundle.fill(tensors[0])
    assert [(launch.device, launch.stream) for launch in cuda.launches] == [
        (0, streams[0]),
        (1, streams[1]),
        (0, streams[0]),
        (1, 0),
        (0, 0),
    ]


def test_a_kernel_that_asked_for_stream_zero_gets_it(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:0"), cuda.stream()):
        bundle.fill_stream_zero(cuda.tensor((8,), "float32"))
    assert [launch.stream for launch in cuda.launches] == [0]


def test_an_explicit_stream_goes_before_the_environments(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    stream = cuda.stream()
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:0"), cuda.stream()):
        bundle.fill_pointer(0x7F00_0000_0000, 8, stream)
    assert [launch.stream for launch in cuda.launches] == [stream]


@pytest.mark.parametrize("current", [0, 1])
def test_a_call_leaves_the_current_device_as_it_was(current: int, cuda: Standin, fresh_bundle: MakeBundle) -> None:
    bundle = fresh_bundle((9, 0), (9, 0))
    cuda.set_device(current)
    for device in (1, 0, 1):
        bundle.fill(cuda.tensor((8,), "float32", device=device))
        bundle.fill_clusters(cuda.tensor((8,), "float32", device=device))
        bundle.fill_pointer(0x7F00_0000_0000, 8, 0)
    assert [launch.device for launch in cuda.launches] == [1, 1, current, 0, 0, current, 1, 1, current]


class Foreign:
    """A tensor of a framework that TVM-FFI knows only through DLPack."""

    def __init__(self, tensor: tvm_ffi.Tensor) -> None:
        self.tensor = tensor

    def __dlpack__(self, **options: Any) -> Any:
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.tensor.__dlpack_device__()


def test_tensors_of_other_frameworks_are_taken(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    out = Foreign(cuda.tensor((100,), "float32"))
    bundle.fill(out)
    assert only_block(cuda) == 128
    bundle.fill_pair((out, out), (1.0, 2))
    assert len(cuda.launches) == 2


# Refusals


def vector(cuda: Standin) -> tvm_ffi.Tensor:
    return cuda.tensor((8,), "float32")


# Name -> kernel, arguments, and what the message must say.
REFUSALS: dict[str, tuple[str, Callable[[Standin], tuple[Any, ...]], str]] = {
    "dtype": ("fill", lambda cuda: (cuda.tensor((8,), "int32"), 1.0), "out.dtype is int32, must be float32"),
    "rank": ("fill", lambda cuda: (cuda.tensor((2, 4), "float32"), 1.0), "out.ndim is 2, must be 1"),
    "no rank": ("fill", lambda cuda: (cuda.tensor((), "float32"), 1.0), "out.ndim is 0, must be 1"),
    "fixed extent": (
        "fill_optional",
        lambda cuda: (vector(cuda), cuda.tensor((3, 8), "float32")),
        "bias.shape[0] is 3, must be 4",
    ),
    "extents that must agree": (
        "fill_optional",
        lambda cuda: (vector(cuda), cuda.tensor((4, 9), "float32")),
        "bias.shape[1] is 9, must equal out.shape[0], which is 8",
    ),
    "stride": (
        "fill",
        lambda cuda: (cuda.tensor((8,), "float32", strides=(2,)), 1.0),
        "out.strides[0] is 2, must be 1",
    ),
    "alignment of one element": (
        "fill",
        lambda cuda: (cuda.tensor((8,), "float32", address=0x7F00_0000_0002), 1.0),
        "out starts 2 bytes past a multiple of 4, must be aligned",
    ),
    "None for a tensor": (
        "fill_pair",
        lambda cuda: ((vector(cuda), None), (1.0, 2)),
        "pair[1] is None, must be a tensor",
    ),
    "None for a scalar": ("fill", lambda cuda: (vector(cuda), None), "value is None, must be a float"),
    "text for a scalar": ("fill", lambda cuda: (vector(cuda), "1.0"), "value is something else, must be a float"),
    "tensor for a scalar": ("fill", lambda cuda: (vector(cuda), vector(cuda)), "value is a tensor, must be a float"),
    "scalar for a tensor": ("fill_optional", lambda cuda: (vector(cuda), 7), "bias is an int, must be a tensor"),
    "tuple for a tensor": ("fill", lambda cuda: ((vector(cuda),), 1.0), "out is a tuple, must be a tensor"),
    "tensor for a tuple": ("fill_pair", lambda cuda: (vector(cuda), (1.0, 2)), "pair is a tensor, must be a tuple"),
    "short tuple": ("fill_pair", lambda cuda: ((vector(cuda),), (1.0, 2)), "len(pair) is 1, must be 2"),
    "long tuple": (
        "fill_pair",
        lambda cuda: ((vector(cuda), vector(cuda), vector(cuda)), (1.0, 2)),
        "len(pair) is 3, must be 2",
    ),
    "empty tuple": ("fill_pair", lambda cuda: ((vector(cuda), vector(cuda)), ()), "len(weights) is 0, must be 2"),
    "tensor for a stream": ("fill_pointer", lambda cuda: (1, 8, vector(cuda)), "stream is a tensor, must be a pointer"),
    "float for a pointer": ("fill_pointer", lambda cuda: (1.5, 8, 0), "pointer is a float, must be a pointer"),
    "another tensor on the host": (
        "fill_optional",
        lambda cuda: (vector(cuda), cuda.tensor((4, 8), "float32", device_type=CPU)),
        "bias lies on a device of type 1, must lie on a CUDA device",
    ),
    "first tensor on the host": (
        "fill_optional",
        lambda cuda: (cuda.tensor((8,), "float32", device_type=CPU), cuda.tensor((4, 8), "float32")),
        "out lies on a device of type 1, must lie on a CUDA device",
    ),
    "tensors of two devices": (
        "fill_optional",
        lambda cuda: (vector(cuda), cuda.tensor((4, 8), "float32", device=1)),
        "bias lies on device 1, the first tensor on device 0",
    ),
    "tensors of two devices in a tuple": (
        "fill_pair",
        lambda cuda: ((vector(cuda), cuda.tensor((8,), "float32", device=1)), (1.0, 2)),
        "pair[1] lies on device 1, the first tensor on device 0",
    ),
    "one without strides": (
        "fill_optional",
        lambda cuda: (vector(cuda), cuda.tensor((4, 8), "float32", null_strides=True)),
        "bias is a tensor without strides, must be a tensor",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_arguments_that_no_variant_takes_are_refused_with_the_reason(
    name: str, cuda: Standin, bundle: aot_runtime.Bundle
) -> None:
    kernel, make, reason = REFUSALS[name]
    with pytest.raises(ArgumentError, match=re.escape(reason)) as caught:
        bundle[kernel](*make(cuda))
    assert caught.value.message.startswith(f"{kernel}: no variant in bundle `bundle` takes these arguments")
    assert f"  called as: {kernel}(" in caught.value.message
    assert isinstance(caught.value, AotError) and isinstance(caught.value, TypeError)
    assert cuda.launches == []


@pytest.mark.parametrize("name", ["dtype", "tensor for a stream", "None for a scalar"])
def test_a_first_call_that_is_refused_asks_nothing_of_cuda(name: str, cuda: Standin, fresh_bundle: MakeBundle) -> None:
    bundle = fresh_bundle((9, 0))
    kernel, make, reason = REFUSALS[name]
    with pytest.raises(ArgumentError, match=re.escape(reason)):
        bundle[kernel](*make(cuda))
    assert cuda.loads == []
    assert cuda.calls("cuStreamIsCapturing") == 0
    assert "libbundle_cuda.so" not in mapped_libraries(bundle)


def test_after_a_refusal_the_next_call_works(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    for _ in range(3):
        with pytest.raises(ArgumentError):
            bundle.fill(cuda.tensor((8,), "int32"))
        bundle.fill(cuda.tensor((8,), "float32"))
    assert len(cuda.launches) == 3


@pytest.mark.parametrize("what", ["host tensor", "None", "scalar", "no strides", "empty tuple"])
def test_without_a_cuda_tensor_there_is_no_device(what: str, cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    argument, shown, hint = {
        "host tensor": (cuda.tensor((8,), "float32", device_type=CPU), "float32[8] strides (1)", "move the tensors"),
        "None": (None, "None", "pass tensors"),
        "scalar": (3, "an int", "pass tensors"),
        "no strides": (cuda.tensor((8,), null_strides=True), "a tensor without strides", "fill in the strides"),
        "empty tuple": ((), "a tuple", "pass tensors"),
    }[what]
    with pytest.raises(ArgumentError) as caught:
        bundle.fill(argument)
    assert caught.value.message == (
        f"fill: none of the tensors lies on a CUDA device\n  called as: fill(out, value) with {shown}; a float"
    )
    assert caught.value.hint is not None and caught.value.hint.startswith(hint)


@pytest.mark.parametrize(
    ("device", "message"),
    [
        (1, "device 1 was asked for, but there are 1"),
        (63, "device 63 was asked for, but there are 1"),
        (64, "device 64: a bundle serves devices 0 to 63"),
        (2**31 - 1, "device 2147483647: a bundle serves devices 0 to 63"),
    ],
)
def test_a_device_beyond_the_machine_is_named(
    device: int, message: str, cuda: Standin, bundle: aot_runtime.Bundle
) -> None:
    with pytest.raises(DriverError, match=message):
        bundle.fill(cuda.tensor((8,), "float32", device=device))
    bundle.fill(cuda.tensor((8,), "float32"))
    assert only_block(cuda) == 128


def test_no_tensor_is_kept_by_a_call_or_a_refusal(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    before = cuda.live_tensors
    for dtype in ("float32", "int32"):
        out = cuda.tensor((8,), dtype)
        for call in (lambda out=out: bundle.fill(out), lambda out=out: bundle.fill_pair((out, out), (1.0, 2))):
            try:
                call()
            except ArgumentError as error:
                error.__traceback__ = None
        bundle.explain("fill", "9.0", out)
        del out, call
    assert cuda.live_tensors == before
