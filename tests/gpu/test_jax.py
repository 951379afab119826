"""A bundle's functions of JAX on a GPU: ``pytest tests/gpu --bundle dist/kernels``."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import aot_runtime
import pytest
import tvm_ffi

NEEDS = {"rmsnorm": "rows", "add": "elementwise"}
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(scope="module")
def jax() -> Any:
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    pytest.importorskip("jax_tvm_ffi", reason="jax-tvm-ffi is not installed")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX sees no GPU")
    return jax


@pytest.fixture(scope="module")
def functions(jax: Any, bundle: aot_runtime.Bundle) -> Any:
    import aot_runtime.jax

    return aot_runtime.jax.register(bundle)


def normal(jax: Any, *shape: int) -> Any:
    return jax.random.normal(jax.random.key(len(shape)), shape, jax.numpy.bfloat16)


def normalized(jax: Any, x: Any, weight: Any) -> Any:
    """What rmsnorm computes, in f32."""
    wide = x.astype("float32")
    return wide / jax.numpy.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * weight.astype("float32")


def check(got: Any, exact: Any) -> None:
    assert abs(got.astype("float32") - exact).max() < 0.02 * abs(exact).max()


def test_functions_under_jit(jax: Any, functions: Any) -> None:
    if not {"quantize_fp8", "gemm", "softmax"} <= set(functions):
        pytest.skip("the bundle lacks kernels of this test: build the shipped ones")
    x, weight = normal(jax, 64, 256), normal(jax, 256)

    @jax.jit
    def program(x: Any, weight: Any) -> Any:
        normed = functions.rmsnorm(x * 1, weight, in_place="x")
        _, scale = functions.quantize_fp8(normed)
        return functions.gemm(normed, normed, epilogue="relu"), functions.softmax(x), scale

    product, soft, scale = program(x, weight)
    exact = normalized(jax, x, weight)
    assert abs(soft.astype("float32") - jax.nn.softmax(x.astype("float32"))).max() < 4e-3
    assert abs(scale * 448 / abs(exact).max(-1) - 1).max() < 0.02
    check(product, jax.numpy.maximum(exact @ exact.T, 0))


def test_a_donated_argument_becomes_the_result(jax: Any, functions: Any) -> None:
    x, weight = normal(jax, 64, 256), normal(jax, 256)
    exact, memory = normalized(jax, x, weight), x.unsafe_buffer_pointer()
    program = jax.jit(lambda x, weight: functions.rmsnorm(x, weight, in_place="x"), donate_argnums=0)
    out = program(x, weight)
    assert x.is_deleted() and out.unsafe_buffer_pointer() == memory
    check(out, exact)
    # Without a donation the argument stays as it was, and the result gets memory of its own.
    kept = normal(jax, 64, 256)
    out = jax.jit(lambda x, weight: functions.rmsnorm(x, weight, in_place="x"))(kept, weight)
    assert out.unsafe_buffer_pointer() != kept.unsafe_buffer_pointer() and (kept == normal(jax, 64, 256)).all()
    check(out, exact)


# Another process, which traces nothing: it has the exported program and a bundle of the same name.
LOADS_A_PROGRAM = """
import sys, aot_runtime, aot_runtime.jax, jax, jax.export, numpy
functions = aot_runtime.jax.register(aot_runtime.load(sys.argv[1]))
program = jax.export.deserialize(bytearray(open(sys.argv[2], "rb").read()))
given = {name: jax.numpy.asarray(value, "bfloat16") for name, value in numpy.load(sys.argv[3]).items()}
out = {name: program.call(given[name], given["weight"]).astype("float32") for name in ("few", "many")}
numpy.savez(sys.argv[4], **out)
"""


def test_an_exported_program_runs_in_another_process(
    jax: Any, functions: Any, bundle: aot_runtime.Bundle, tmp_path: Path
) -> None:
    import aot_runtime.jax
    import numpy
    from jax import export

    pytest.importorskip("flatbuffers", reason="JAX serializes programs with flatbuffers, which is not installed")
    (rows,) = export.symbolic_shape("rows")
    shapes = jax.ShapeDtypeStruct((rows, 256), "bfloat16"), jax.ShapeDtypeStruct((256,), "bfloat16")
    program = jax.jit(lambda x, weight: functions.rmsnorm(2 * x, weight))
    exported = export.export(program, disabled_checks=aot_runtime.jax.export_checks(functions))(*shapes)
    given = {"few": normal(jax, 3, 256), "many": normal(jax, 1000, 256), "weight": normal(jax, 256)}
    (tmp_path / "program").write_bytes(exported.serialize())
    numpy.savez(tmp_path / "given.npz", **{name: value.astype("float32") for name, value in given.items()})
    files = [bundle.path, *(tmp_path / name for name in ("program", "given.npz", "out.npz"))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", LOADS_A_PROGRAM, *map(str, files)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    out = numpy.load(tmp_path / "out.npz")
    for name in ("few", "many"):
        check(out[name], numpy.asarray(normalized(jax, 2 * given[name], given["weight"])))


class Watched:
    """A bundle that notes each call of a kernel from XLA, and whether XLA recorded a CUDA graph meanwhile."""

    def __init__(self, bundle: aot_runtime.Bundle) -> None:
        self.bundle, self.name, self.path = bundle, "watched", bundle.path
        self.kernels = ("add",)
        self.recorded: list[bool] = []

    def _record(self, name: str) -> Any:
        return self.bundle._record(name)

    def _call(self, name: str) -> int:
        return 1005  # the protocol of a bundle that cannot be asked about calls without memory

    def _symbol(self, name: str) -> Any:
        function = self.bundle._symbol(name)

        def call(*arguments: Any) -> None:
            self.recorded.append(is_recording(tvm_ffi.get_raw_stream(tvm_ffi.device("cuda", 0))))
            function(*arguments)

        return tvm_ffi.convert(call)


def is_recording(stream: int) -> bool:
    status = ctypes.c_int()
    driver = ctypes.CDLL("libcuda.so.1")
    assert driver.cuStreamIsCapturing(ctypes.c_void_p(stream), ctypes.byref(status)) == 0
    return status.value == 1


def test_xla_records_calls_in_cuda_graphs_and_replays_them(jax: Any, bundle: aot_runtime.Bundle) -> None:
    import aot_runtime.jax

    bundle.preload(0)
    watched = Watched(bundle)
    functions = aot_runtime.jax.register(watched)  # type: ignore[arg-type]

    @jax.jit
    def program(x: Any) -> Any:
        for _ in range(8):  # XLA records sequences of at least five
            x = functions.add(x, x)
        return x

    x = jax.numpy.ones((64, 256), jax.numpy.float32)
    runs = 20
    for number in range(runs):
        out = program(x * number)
        assert (out == 256 * number).all()
        del out
    assert any(watched.recorded), "XLA recorded no call"
    assert len(watched.recorded) < 8 * runs  # the others were replays, which call nothing
