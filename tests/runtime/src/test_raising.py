"""Errors that C raises: without a backtrace, which TVM-FFI takes a third of a second and a mutex to collect."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aot_runtime
import pytest
import tvm_ffi
from aot_runtime import ArgumentError, CudaError
from observing import run_python
from standin import Standin


def backtrace(error: Any) -> str:
    """What C has collected. Python's own traceback shows little of it: a library without line numbers has no frames there."""
    return str(error.__tvm_ffi_error__.backtrace)


def test_a_backtrace_of_c_would_be_seen() -> None:
    with pytest.raises(RuntimeError) as caught:
        tvm_ffi.load_module("/absent.so")
    assert "LoadFromFile" in backtrace(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda bundle, cuda: bundle.fill(1, 2.0), id="dispatch"),
        pytest.param(lambda bundle, cuda: bundle.fill(cuda.tensor((8,), "int32")), id="no variant"),
        pytest.param(lambda bundle, cuda: bundle.preload(99), id="preload"),
    ],
)
def test_errors_of_dispatch_have_no_backtrace(
    bundle: aot_runtime.Bundle, cuda: Standin, wrong: Callable[[aot_runtime.Bundle, Standin], None]
) -> None:
    with pytest.raises(ArgumentError) as caught:
        wrong(bundle, cuda)
    assert backtrace(caught.value) == ""


def test_errors_of_launchers_have_no_backtrace(bundle: aot_runtime.Bundle, cuda: Standin) -> None:
    out = cuda.tensor((8,), "float32")
    bundle.fill(out)
    cuda.fail("cudaLaunchKernelExC", 719)
    with pytest.raises(CudaError) as caught:
        bundle.fill(out)
    assert backtrace(caught.value) == ""


def test_a_launch_that_fails_names_kernel_variant_grid_and_block(bundle: aot_runtime.Bundle, cuda: Standin) -> None:
    out = cuda.tensor((1000,), "float32")
    bundle.fill(out)
    cuda.fail("cudaLaunchKernelExC", 719)
    with pytest.raises(CudaError) as caught:
        bundle.fill(out)
    assert str(caught.value) == (
        "fill: fill__f32__aligned: cudaErrorLaunchFailure (719): unspecified launch failure; "
        "grid (8, 1, 1), block (128, 1, 1), 0 bytes of dynamic shared memory"
    )
    cuda.fail("cudaGetDevice", 3)
    with pytest.raises(CudaError, match=r"^fill: fill__f32__aligned: cudaErrorInitializationError \(3\): [^;]*$"):
        bundle.fill(out)


def test_a_grid_that_cuda_refuses_is_told_by_its_numbers(bundle: aot_runtime.Bundle, cuda: Standin) -> None:
    with pytest.raises(CudaError, match=r"^fill: fill__f32__aligned: .*; grid \(0, 1, 1\), block \(128, 1, 1\)"):
        bundle.fill(cuda.tensor((0,), "float32"))
    assert not cuda.launches


FORKING = """
    import os, signal, sys, threading, time
    import aot_runtime
    bundle = aot_runtime.load(sys.argv[1])

    def fail():
        for wrong in (lambda: bundle.fill(1, 2.0), lambda: bundle.explain("fill", "9.0", None)):
            try:
                wrong()
            except aot_runtime.AotError:
                continue
            os._exit(3)

    # Errors import modules when they are first raised. Of a module that another thread imports while a process forks, the
    # child waits for ever: that is Python's own, and so it is done before.
    fail()
    stopping = threading.Event()

    def keep_failing():
        while not stopping.is_set():
            fail()

    threads = [threading.Thread(target=keep_failing) for _ in range(4)]
    for thread in threads:
        thread.start()
    hung = 0
    for _ in range(25):
        child = os.fork()
        if child == 0:
            fail()
            os._exit(0)
        for _ in range(3000):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                assert os.waitstatus_to_exitcode(status) == 0
                break
            time.sleep(0.01)
        else:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            hung += 1
            break
    stopping.set()
    print("hung:", hung)
"""


def test_a_child_forked_while_another_thread_raises_does_not_hang(standin_bundle_path: Path, tmp_path: Path) -> None:
    """One of the errors is raised while a lock is held: that of a library which is missing."""
    copy = Path(shutil.copytree(standin_bundle_path, tmp_path / "copy"))
    for library in copy.glob("lib/*/sm_*/fill.so"):
        library.unlink()
    assert run_python(FORKING, copy).splitlines()[-1] == "hung: 0"
