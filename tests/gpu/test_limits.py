"""Limits of launches, scratch memory on several streams and in graphs, and printing, on a real GPU.

Needs torch, a GPU and a bundle: ``python -m aot build --kernels tests/gpu/limits.py --arch sm90 --name limits``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import aot_runtime
import aot_runtime.native
import pytest
import tvm_ffi

pytestmark = pytest.mark.gpu

PATH = Path("dist/limits")


@pytest.fixture(scope="module")
def bundle(torch: Any) -> aot_runtime.Bundle:
    if not PATH.is_dir():
        pytest.skip(f"there is no bundle at {PATH}: build tests/gpu/limits.py")
    loaded = aot_runtime.load(PATH)
    loaded.preload(0)
    return loaded


COUNT = 1 << 22


def test_two_streams_have_scratch_memory_of_their_own(bundle: aot_runtime.Bundle, torch: Any) -> None:
    streams = [torch.cuda.Stream() for _ in range(2)]
    inputs = [torch.full((COUNT,), float(i + 1), device="cuda") for i in range(2)]
    outputs = [torch.empty_like(x) for x in inputs]
    torch.cuda.synchronize()
    for _ in range(50):
        for stream, x, out in zip(streams, inputs, outputs, strict=True):
            with torch.cuda.stream(stream):
                bundle["doubled"](x, out)
    torch.cuda.synchronize()
    for x, out in zip(inputs, outputs, strict=True):
        assert torch.equal(out, 2 * x)


def captured(bundle: aot_runtime.Bundle, torch: Any, x: Any, out: Any) -> Any:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        bundle["doubled"](x, out)
    return graph


def test_two_graphs_have_scratch_memory_of_their_own(bundle: aot_runtime.Bundle, torch: Any) -> None:
    inputs = [torch.full((COUNT,), float(i + 1), device="cuda") for i in range(2)]
    outputs = [torch.empty_like(x) for x in inputs]
    graphs = [captured(bundle, torch, x, out) for x, out in zip(inputs, outputs, strict=True)]
    streams = [torch.cuda.Stream() for _ in graphs]
    torch.cuda.synchronize()
    for repeat in range(50):
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        if repeat % 10 == 0:
            torch.cuda.synchronize()
            for x, out in zip(inputs, outputs, strict=True):
                assert torch.equal(out, 2 * x)
                out.fill_(float("nan"))
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    for x, out in zip(inputs, outputs, strict=True):
        assert torch.equal(out, 2 * x)


def test_a_replay_beside_a_call_keeps_its_scratch_memory(bundle: aot_runtime.Bundle, torch: Any) -> None:
    x, y = torch.full((COUNT,), 3.0, device="cuda"), torch.full((COUNT,), 5.0, device="cuda")
    from_graph, from_call = torch.empty_like(x), torch.empty_like(y)
    graph = captured(bundle, torch, x, from_graph)
    beside = torch.cuda.Stream()
    torch.cuda.synchronize()
    for _ in range(50):
        with torch.cuda.stream(beside):
            graph.replay()
        bundle["doubled"](y, from_call)
        torch.empty(COUNT, device="cuda").fill_(7.0)  # torch hands memory out again that the calls gave back
    torch.cuda.synchronize()
    assert torch.equal(from_graph, 2 * x)
    assert torch.equal(from_call, 2 * y)


def test_xla_allocates_scratch_memory(bundle: aot_runtime.Bundle) -> None:
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    pytest.importorskip("jax_tvm_ffi", reason="jax-tvm-ffi is not installed")
    import aot_runtime.jax

    if jax.default_backend() != "gpu":
        pytest.skip("JAX sees no GPU")
    functions = aot_runtime.jax.register(bundle)
    x = jax.numpy.arange(COUNT, dtype="float32")
    both = jax.jit(lambda x: (functions.doubled(x), functions.doubled(-x)))
    for _ in range(10):
        up, down = both(x)
        assert (up == 2 * x).all()
        assert (down == -2 * x).all()


def test_a_program_in_cpp_allocates_scratch_memory(bundle: aot_runtime.Bundle, tmp_path: Path) -> None:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    program = tmp_path / "scratch"
    headers = ("-isystem", str(aot_runtime.native.include_directory()))
    source = Path(__file__).with_name("scratch.cpp")
    subprocess.run([compiler, "-std=c++17", *headers, source, "-o", program, "-ldl", "-pthread"], check=True)
    done = subprocess.run([program, PATH, tvm_ffi.libinfo.find_libtvm_ffi()], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok  :") == 4


def test_a_grid_that_is_too_large_is_refused_with_its_numbers(bundle: aot_runtime.Bundle, torch: Any) -> None:
    x = torch.zeros(65535, device="cuda")
    out = torch.empty_like(x)
    bundle["numbered"](x, out)
    assert torch.equal(out, torch.arange(65535, device="cuda", dtype=torch.float32))
    large = torch.zeros(65536, device="cuda")
    with pytest.raises(aot_runtime.CudaError) as caught:
        bundle["numbered"](large, torch.empty_like(large))
    text = str(caught.value)
    assert text.startswith("numbered: numbered: cudaError"), text
    assert "grid (1, 65536, 1), block (1, 1, 1), 0 bytes of dynamic shared memory" in text
    assert text.endswith("a grid has at most 65535 blocks in y and in z")


def test_an_empty_grid_is_refused_with_its_numbers(bundle: aot_runtime.Bundle, torch: Any) -> None:
    x = torch.zeros(0, device="cuda")
    with pytest.raises(aot_runtime.CudaError, match=r"numbered: numbered: .*grid \(1, 0, 1\), block \(1, 1, 1\)"):
        bundle["numbered"](x, torch.empty_like(x))
    torch.cuda.synchronize()  # the error is over: nothing was launched
    bundle["numbered"](torch.zeros(4, device="cuda"), torch.empty(4, device="cuda"))


PRINTING = """
import sys, torch, aot_runtime
aot_runtime.load(sys.argv[1])["printed"](torch.full((7,), 2.5, device="cuda"))
torch.cuda.synchronize()
"""


def test_a_kernel_prints(bundle: aot_runtime.Bundle) -> None:
    done = subprocess.run([sys.executable, "-c", PRINTING, str(PATH)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "the first of 7 is 2.500000"
