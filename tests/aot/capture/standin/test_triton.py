"""While an exercise runs, Triton finds a driver, its timers return, and its kernels are neither compiled nor launched."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

# What Triton does without a GPU: the first question to its driver raises.
PLAYED = {
    "__init__.py": "from .runtime.jit import jit",
    "testing.py": """
        from .runtime.driver import driver

        def do_bench(fn, warmup=25, rep=100, grad_to_none=None, quantiles=None, return_mode="mean"):
            driver.active.get_device_interface()
    """,
    "runtime/__init__.py": "from .driver import driver",
    "runtime/driver.py": """
        def found():
            raise AssertionError("libcuda.so cannot found!")

        class DriverConfig:
            _active = None

            def __init__(self):
                self._active = None

            @property
            def active(self):
                return self._active or found()

        driver = DriverConfig()
    """,
    "runtime/jit.py": """
        from .driver import driver

        class JITFunction:
            def __init__(self, function):
                self.function = function

            def __getitem__(self, grid):
                return lambda *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs)

            def run(self, *args, grid, warmup, **kwargs):
                return driver.active.get_current_device()

        jit = JITFunction
    """,
    "backends/__init__.py": "",
    "backends/compiler.py": """
        from collections import namedtuple

        GPUTarget = namedtuple("GPUTarget", "backend arch warp_size")
    """,
}
PROGRAM = """
import triton
from aot_runtime.arch import Arch
from triton.runtime import driver

from aot.capture.standin import Notes
from aot.capture.standin.triton import triton_has_device
from aot.compile.device.devices import Device

@triton.jit
def scale(x):
    raise SystemExit("it ran")

def without_a_driver(use):
    try:
        return use()
    except AssertionError as error:
        return str(error)

notes = Notes("<string>")
with triton_has_device(Device.of(Arch.parse("sm_90a")), notes.add):
    from triton.testing import do_bench

    scale[(1,)](None)
    calls = []
    print(do_bench(lambda: calls.append(1), warmup=1), do_bench(int, quantiles=[0.5, 0.2]), len(calls))
    print(do_bench(int, return_mode="all"), driver.active.get_benchmarker()(int, quantiles=(0.5, 0.2, 0.8)))
    print(*driver.active.get_current_target(), driver.active.get_device_capability())
    print(driver.active.utils.get_device_properties(0)["multiprocessor_count"], notes.lines[0])
print(without_a_driver(lambda: scale[(1,)](None)), without_a_driver(lambda: driver.active))
"""


@pytest.fixture()
def played(tmp_path: Path) -> Path:
    for name, text in PLAYED.items():
        path = tmp_path / "triton" / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(textwrap.dedent(text))
    return tmp_path


def test_triton_has_a_driver_and_launches_nothing_within_the_context(played: Path) -> None:
    done = _run(played)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "1.0 [1.0, 1.0] 1",
        "[1.0] [1.0, 1.0, 1.0]",
        "cuda 90 32 (9, 0)",
        "132 <string>:26, 27: a timer returned a made-up time",
        "libcuda.so cannot found! libcuda.so cannot found!",
    ]


def test_a_triton_of_another_layout_is_left_as_it_is(played: Path) -> None:
    (played / "triton" / "runtime" / "jit.py").write_text("jit = lambda function: {(1,): lambda x: print('left')}")
    done = _run(played)
    assert done.stdout.splitlines()[0] == "left"
    assert "libcuda.so cannot found!" in done.stderr


def _run(folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment)
