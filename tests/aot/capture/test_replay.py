"""Files of a recording may come from others: a build takes from them what it can check, and says what it does not take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aot_runtime.serving.values.digests import digest
from places import TESTS

CALL = {"callable": "rowlib.scaling.Scale.__call__", "arguments": {}, "options": {}}
TENSOR = {"tensor": "Float16", "space": "gmem", "align": 2, "shape": [4, 64], "strides": [64, 1]}
RECORD: dict[str, Any] = {
    "key": digest(CALL), "call": CALL, "called_from": "rowlib.scaling:50", "options": "--opt-level 2",
    "callable": {"attributes": {"n": {"plain": 64}, "threads": {"plain": 64}}, "class": "rowlib.scaling:Scale"},
    "arguments": {
        "x": TENSOR, "weight": {"number": None}, "out": TENSOR, "alpha": {"scalar": "Float32"}, "stream": {"stream": True},
    },
}  # fmt: skip
TOUCH = {"fields": {"args": {"constant": {"list": [{"plain": "touch"}, {"plain": "touched"}]}}}}
RECORDS = {
    "sound": RECORD,
    "runs a program": {**RECORD, "arguments": {"x": {**TOUCH, "class": {"name": "subprocess:run"}}}},
    "another key": {**RECORD, "key": "../../../x"},
    "another call": {**RECORD, "call": {**CALL, "callable": "other"}},
    "no argument": {**RECORD, "arguments": {"x": {}}},
    "links a library": {**RECORD, "options": "--link-libraries x.bc"},
    "nested": "[" * 100_000,
}
READ = """
import json, pathlib, sys
from aot.capture.replay import recorded_kernels
from aot.errors import DeclarationError
answers = {}
for path in pathlib.Path.cwd().iterdir():
    try:
        answers[path.name] = [list(recorded_kernels(str(path / "__init__.py"))), ""]
    except DeclarationError as error:
        answers[path.name] = [error.message, error.hint]
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """What a build makes of each recording, and where they are. CuTe DSL stays out of this process."""
    folder = tmp_path_factory.mktemp("recordings")
    for name, record in RECORDS.items():
        (folder / name).mkdir()
        (folder / name / "call.json").write_text(record if isinstance(record, str) else json.dumps(record))
    for name in ("pipe", "endless"):
        (folder / name).mkdir()
    os.mkfifo(folder / "pipe" / "call.json")
    (folder / "endless" / "call.json").symlink_to("/dev/zero")
    environment = {**os.environ, "PYTHONPATH": str(TESTS / "foreign"), "CUTE_DSL_ARCH": "sm_90a"}
    command = [sys.executable, "-B", "-c", READ]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


def test_a_recorded_call_is_a_kernel(answers: tuple[Path, dict[str, Any]]) -> None:
    assert answers[1]["sound"][0] == [f"scale_{RECORD['key'][:10]}"]


def test_a_recording_that_is_not_trusted_brings_no_code(answers: tuple[Path, dict[str, Any]]) -> None:
    folder, said = answers
    for name in ("runs a program", "links a library"):
        assert "--trust" in said[name][1]
    assert not list(folder.rglob("touched")) and not Path("touched").exists()


@pytest.mark.parametrize("name", ["another key", "another call", "no argument", "nested", "pipe", "endless"])
def test_a_file_that_no_recording_wrote_is_named(answers: tuple[Path, dict[str, Any]], name: str) -> None:
    message, hint = answers[1][name]
    assert "call.json" in message and "record" in hint


LIBRARY = """
import cutlass, cutlass.cute as cute
from cuda.bindings.driver import CUstream

class Scale:
    @cute.jit
    def __call__(self, x: cute.Tensor, stream: CUstream, epilogue: cutlass.Constexpr = lambda value: value * 2):
        self.kernel(x, epilogue).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)

    @cute.kernel
    def kernel(self, x: cute.Tensor, epilogue: cutlass.Constexpr):
        x[0] = epilogue(x[0])
"""
RECORD_AND_READ = """
import json, pathlib
import cutlass, cutlass.cute as cute
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream
from aot.capture.replay import recorded_kernels
from aot_runtime.serving.recording import Recording
from library import Scale

recording = Recording("calls")
x = make_fake_compact_tensor(cutlass.Float32, (cute.sym_int(),))
cute.compile(Scale(), x, make_fake_stream(use_tvm_ffi_env_stream=True), options="--enable-tvm-ffi")
recording.close()
(record,) = [json.loads(path.read_text()) for path in pathlib.Path("calls").glob("*.json")]
(kernel,) = recorded_kernels("calls/__init__.py").values()
spec = kernel.make(None)
print(record["arguments"]["epilogue"], spec.state() == spec.made, spec.kwargs["epilogue"](3))
"""


def test_a_function_that_is_the_default_of_a_parameter_is_recorded(tmp_path: Path) -> None:
    """CUTLASS's GEMMs have an `epilogue_op` that is a lambda, which no name leads to."""
    (tmp_path / "library.py").write_text(LIBRARY)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "CUTE_DSL_ARCH": "sm_90a"}
    command = [sys.executable, "-c", RECORD_AND_READ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.stdout.splitlines() == ["{'default': 'epilogue'} True 6"], done.stderr


FACTORY = """
import cutlass, cutlass.cute as cute
from cuda.bindings.driver import CUstream

def make(amount, act):
    @cute.kernel
    def kernel(x: cute.Tensor):
        x[0] = act(x[0]) + amount

    @cute.jit
    def run(x: cute.Tensor, stream: CUstream, times: cutlass.Constexpr[int] = 2):
        for _ in cutlass.range_constexpr(times):
            kernel(x).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)

    return run
"""
RECORD_TWICE = """
import cutlass, cutlass.cute as cute
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream
from aot_runtime.serving.recording import Recording
from factory import make

recording = Recording("made")
x = make_fake_compact_tensor(cutlass.Float32, (cute.sym_int(),))
run = make(3, cute.math.exp)
for times in (2, 3):  # what was compiled before is another function inside
    cute.compile(run, x, make_fake_stream(use_tvm_ffi_env_stream=True), times, options="--enable-tvm-ffi")
recording.close()
"""
READ_AND_COMPILE = """
import json, pathlib
import cutlass.cute as cute
from aot.capture.replay import recorded_kernels
from aot_runtime.serving.calls import describe

records = [json.loads(path.read_text()) for path in pathlib.Path("made").glob("*.json")]
print([record.get("pickled", record.get("refused")) for record in records])
for kernel in recorded_kernels("made/__init__.py").values():
    spec = kernel.make(None)
    call = describe(None, spec.function, spec.args, {**spec.kwargs, "options": kernel.options})
    cute.compile(spec.function, **spec.kwargs, options=kernel.options)
    print(call.key == kernel.captured["key"], spec.kwargs["times"])
"""


def test_a_function_that_another_one_made_is_recorded_without_a_pickle(tmp_path: Path) -> None:
    """Liger makes its kernels so: nothing imports them, and what they enclose shapes their code."""
    (tmp_path / "factory.py").write_text(FACTORY)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "CUTE_DSL_ARCH": "sm_90a"}
    lines: list[str] = []
    for program in (RECORD_TWICE, READ_AND_COMPILE):
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        lines += done.stdout.splitlines()
    pickled, *kernels = lines
    assert pickled == "[None, None]" and sorted(kernels) == ["True 2", "True 3"]
