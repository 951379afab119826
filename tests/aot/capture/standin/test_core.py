"""While an exercise runs, ``cuda.core`` has one device that answers for the architecture."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
from aot_runtime.arch import Arch
from aot.capture.standin import Notes, standin_device
from aot.compile.device.devices import Device
from aot.compile.device.driver import play_driver
import cuda.core

chosen, original = Device.of(Arch.parse("sm_100f")), cuda.core.Device
play_driver(chosen, lambda question, arguments, answer: answer)
with standin_device(chosen, print, Notes("?")):
    from cuda.core import Device, Program, launch
    device = Device()
    device.set_current()
    print(device.arch, *device.compute_capability, device.compute_capability.major, Device(device.device_id).device_id)
    print(device.properties.multiprocessor_count, device.properties.warp_size, int(device.default_stream.handle))
    assert device.create_stream().__cuda_stream__() != device.create_stream().__cuda_stream__()
    launch(device.default_stream, None, Program("", code_type="c++").compile("cubin").get_kernel("nothing"))
    try:
        device.properties.colour
    except AttributeError as error:
        print(error)
assert cuda.core.Device is original
"""


def test_the_device_of_cuda_core_answers_for_the_architecture() -> None:
    pytest.importorskip("cuda.core", reason="cuda.core is not installed")
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "100 10 0 10 0",
        "148 32 0",
        "the properties of a device of CUDA have no 'colour'",
    ]


def test_an_exercise_goes_on_where_cuda_core_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "cuda" / "core").mkdir(parents=True)
    (tmp_path / "cuda" / "core" / "__init__.py").write_text("raise RuntimeError('made for other bindings')\n")
    program = """
from aot_runtime.arch import Arch
from aot.capture.standin.core import core_has_device
from aot.compile.device.devices import Device

with core_has_device(Device.of(Arch.parse("sm_90a"))):
    try:
        import cuda.core
    except RuntimeError as error:
        print(error)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["made for other bindings"]
