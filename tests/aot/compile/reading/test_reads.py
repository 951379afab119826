"""What tracing reads is recorded, and what cannot be compared later is refused by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import pytest
from aot_runtime.arch import Arch
from aot_runtime.serving.values.libraries import MAIN

from aot.compile.messages import EXERCISE, Compiled, Options
from aot.compile.process import Worker
from aot.compile.reading.names import names_read
from aot.compile.reading.paths import functions_and_classes
from aot.errors import Failure

# Each kernel runs a function of the exercise while it is traced. Their files are known by the lines of the calls.
EXERCISE_TEXT = """
import ctypes, itertools, os, random, time
from pathlib import Path
import cutlass, cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass.base_dsl.ast_preprocessor import DSLPreprocessor

FACTOR, counter, number = 2, itertools.count(), ctypes.c_int(3)

def visit_if(self, node):
    return rewritten(self, node)

rewritten, DSLPreprocessor.visit_If = DSLPreprocessor.visit_If, visit_if

def plain(value):
    return value

def scaled(value):
    return value * FACTOR

def reads_file(value):
    with open(__file__) as file:
        return value + len(file.read())

def reads_environment(value):
    return value + len(list(os.environ))

def reads_counter(value):
    return value + (1 if counter is None else 2)

def reads_clock(value):
    return value + int(time.time())

def draws(value):
    return value + random.randint(1, 2)

def looks_for_file(value):
    return value + Path(__file__).exists()

def lists_folder(value):
    return value + len(os.listdir("."))

def reads_memory_of_c(value):
    return value + number.value

class Apply:
    def __init__(self, function, number):
        self.function, self.number, self.traced = function, number, 0

    @cute.jit
    def __call__(self, x: cute.Tensor, stream: CUstream):
        self.traced += 1
        self.kernel(x).launch(grid=[1, 1, 1], block=[self.number, 1, 1], stream=stream)

    @cute.kernel
    def kernel(self, x: cute.Tensor):
        x[0] = self.function(x[0])

def compile_it(kernel):
    x = cute.runtime.make_fake_compact_tensor(cutlass.Float32, (cute.sym_int(),))
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    cute.compile(kernel, x, stream, options="--enable-tvm-ffi")

others = (reads_clock, draws, looks_for_file, lists_folder, reads_memory_of_c)
for function in (scaled, reads_file, reads_environment, reads_counter, *others):
    compile_it(Apply(function, 32))
FACTOR = 4
compile_it(Apply(scaled, 32))
shared = Apply(plain, 32)
compile_it(shared)
shared.number = 64
compile_it(shared)
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Compiled | Failure]:
    """What became of each kernel, by the function that it runs and its number of threads."""
    folder = tmp_path_factory.mktemp("reads")
    (folder / "exercise.py").write_text(textwrap.dedent(EXERCISE_TEXT))
    options = Options(source=EXERCISE)
    exercise = str(folder / "exercise.py")
    worker = Worker(exercise, Arch.parse("sm_90a"), options, folder / "log", module="aot.capture.worker")
    found = {}
    try:
        for kernel in worker.declared.kernels:
            (variant,) = worker.expand(kernel.name)
            attributes = (kernel.captured or {})["call"]["attributes"]
            name = attributes["function"][1][0].split()[0].removeprefix("__main__.")
            outcome = worker.compile(kernel.name, variant.table.name, folder / "x.ll", folder / "log")
            found[name, attributes["number"]] = outcome
    finally:
        worker.close()
    return found


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("scaled", "__main__.FACTOR has several values in the exercise: 2, 4"),
        ("reads_file", "opens the file"),
        ("reads_environment", "reads the environment as a whole"),
        ("reads_counter", "__main__.counter is read while it is traced"),
        ("reads_clock", "__main__ calls time.time while it is traced"),
        ("draws", "random.randint"),
        ("looks_for_file", "exists while it is traced"),
        ("lists_folder", "os.listdir"),
        ("reads_memory_of_c", "__main__.number.value is read while it is traced"),
    ],
)
def test_what_cannot_be_compared_is_not_captured_and_named(
    outcomes: dict[tuple[str, int], Compiled | Failure], function: str, reason: str
) -> None:
    failed = outcomes[function, 32]
    assert isinstance(failed, Failure) and reason in failed.message


def test_an_object_is_compiled_with_the_attributes_of_each_call(
    outcomes: dict[tuple[str, int], Compiled | Failure],
) -> None:
    for number in (32, 64):
        compiled = outcomes["plain", number]
        assert isinstance(compiled, Compiled) and compiled.launches[0].block == (number, 1, 1)
        assert compiled.reads is not None and "plain" in compiled.reads["modules"]["__main__"]["values"]


def test_a_library_that_rewrites_functions_is_compared_for_every_kernel(
    outcomes: dict[tuple[str, int], Compiled | Failure],
) -> None:
    """CuTe DSL rewrites a function once in a process, whichever kernel comes first."""
    for number in (32, 64):
        compiled = outcomes["plain", number]
        assert isinstance(compiled, Compiled) and compiled.reads is not None
        values = compiled.reads["modules"]["cutlass.base_dsl.ast_preprocessor"]["values"]
        assert list(values) == ["DSLPreprocessor@visit_If"]


def test_a_script_that_another_script_runs_is_compared_by_its_own_globals(tmp_path: Path) -> None:
    (tmp_path / "inner.py").write_text(textwrap.dedent(EXERCISE_TEXT).partition("others =")[0] + RUNS)
    exercise = tmp_path / "exercise.py"
    exercise.write_text("import runpy\nrunpy.run_path(__file__.replace('exercise', 'inner'), run_name='__main__')\n")
    options = Options(source=EXERCISE)
    worker = Worker(str(exercise), Arch.parse("sm_90a"), options, tmp_path / "log", module="aot.capture.worker")
    try:
        (kernel,) = worker.declared.kernels
        (variant,) = worker.expand(kernel.name)
        outcome = worker.compile(kernel.name, variant.table.name, tmp_path / "x.ll", tmp_path / "log")
    finally:
        worker.close()
    assert isinstance(outcome, Compiled) and outcome.reads is not None
    assert outcome.reads["modules"]["__main__"]["values"]["FACTOR"] == "2"


RUNS = "compile_it(Apply(scaled, 32))\n"


def test_names_are_read_with_the_attributes_that_follow_them_at_once() -> None:
    code = compile("lambda x: (a.b.c(x), d, e[f.g].h, x.y)", "", "eval").co_consts[0]
    assert names_read(code) == {"a.b.c", "d", "e", "f.g"}


SCRIPT = """
import cutlass
from cutlass._mlir.ir import IntegerType
from aot.compile.reading.reads import Reads
from aot_runtime.serving.reading.reads import text_of

class Kind:
    def make(self):
        IntegerType.get_signless
        return Kind()

reads, kind = Reads(), Kind()
with reads.noted():
    kind.make()
print(reads.record([kind])["modules"]["__main__"]["values"]["Kind"])
print(text_of("__main__", "Kind"))
"""


def test_a_class_of_a_script_has_the_form_that_a_look_up_gives_it(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True)
    recorded, looked_up = done.stdout.splitlines()
    assert recorded == looked_up and "Kind" in looked_up


ASKS_TORCH = """
import torch
from aot.compile.reading.reads import Reads
from aot.errors import BuildError

def by_python():
    return torch.are_deterministic_algorithms_enabled()

def by_c():
    return torch.is_grad_enabled()

def by_an_import():
    import torch

    return torch.is_grad_enabled()

def by_a_private_name():
    return torch._C._get_cublas_allow_tf32()

def draws():
    return torch.rand(1).item()

def draws_into_a_tensor():
    return torch.zeros(1, dtype=torch.float32).uniform_().item()

def names_a_dtype():
    return torch.float16

for function in (by_python, by_c, by_an_import, by_a_private_name, draws, draws_into_a_tensor, names_a_dtype):
    reads = Reads()
    with reads.noted():
        function()
    try:
        reads.record([])
        print("compared")
    except BuildError as error:
        print(error.message.rpartition(": ")[2])
"""


@pytest.mark.torch
def test_what_torch_is_asked_for_is_not_captured(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    (tmp_path / "script.py").write_text(ASKS_TORCH)
    done = subprocess.run([sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, check=True)
    by_python, by_c, by_an_import, private, *drawn, dtype = done.stdout.splitlines()
    assert "_get_cublas_allow_tf32" in private and "torch.rand" in drawn[0] and "uniform_" in drawn[1]
    assert "are_deterministic_algorithms_enabled" in by_python and "torch.is_grad_enabled" in by_c
    assert "torch.is_grad_enabled" in by_an_import
    assert dtype == "compared"


DEFAULT_DTYPE = """
import torch
from aot.compile.reading.reads import Reads
from aot_runtime.serving.reading.reads import changes

def made():
    return torch.tensor(0.5).dtype

def asked():
    from torch import finfo
    return finfo().bits

def told():
    return torch.finfo(torch.float16).bits

for function in (made, asked, told):
    reads = Reads()
    with reads.noted():
        function()
    record = reads.record([])
    torch.set_default_dtype(torch.float64)
    print(*changes(record), sep="; ")
    torch.set_default_dtype(torch.float32)
"""


@pytest.mark.torch
def test_the_default_dtype_is_compared_if_it_decides_something(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    (tmp_path / "script.py").write_text(DEFAULT_DTYPE)
    done = subprocess.run([sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, check=True)
    made, asked, told = done.stdout.split("\n")[:3]
    assert "default dtype" in made and made == asked and told == ""


# Each function asks the device of sm_90a, as a library does while a kernel is traced; then another device answers.
ASKS_DEVICE = """
import ctypes, functools, json, sys
from aot.compile.device.devices import Device
from aot.compile.device.hardware_info import answer_for
from aot_runtime.arch import Arch
answer_for(Device.of(Arch.parse("sm_90a")))
TORCH
import cuda.bindings.driver as driver
import cuda.bindings.runtime as runtime
from aot.compile.reading.reads import Reads
from aot.errors import BuildError
from aot_runtime.serving.reading.reads import changes

def attribute(name):
    return driver.cuDeviceGetAttribute(getattr(driver.CUdevice_attribute, "CU_DEVICE_ATTRIBUTE_" + name), driver.CUdevice(0))[1]

def multiprocessors():
    return attribute("MULTIPROCESSOR_COUNT")

def threads():
    return runtime.cudaDeviceGetAttribute(runtime.cudaDeviceAttr.cudaDevAttrMaxThreadsPerMultiProcessor, 0)[1]

def capability():
    return driver.cuDeviceComputeCapability(driver.CUdevice(0))[1:]

def model():
    return driver.cuDeviceGetName(64, driver.CUdevice(0))[1]

def clock():
    return attribute("CLOCK_RATE")

def memory():
    return driver.cuMemGetInfo()[1]

def version():
    return driver.cuDriverGetVersion()[1]

def properties():
    return runtime.cudaGetDeviceProperties(0)[1].multiProcessorCount

LIBRARY = ctypes.CDLL("libcuda.so.1")
ASK = LIBRARY.cuDeviceGetAttribute

def by_library():
    return LIBRARY.cuDriverGetVersion(ctypes.byref(ctypes.c_int()))

def by_function():
    return ASK(ctypes.byref(ctypes.c_int()), 16, 0)

records = {}
for name in sys.argv[1:]:
    reads, function = Reads(), globals()[name]
    with reads.noted():
        function()
    try:
        records[name] = reads.record([])
    except BuildError as error:
        records[name] = error.message.rpartition(": ")[2]
now = {name: record if isinstance(record, str) else list(changes(record)) for name, record in records.items()}
assert not any(lines for name, lines in now.items() if not isinstance(records[name], str)), now
answer_for(Device.of(Arch.parse("sm_120f")))
print(json.dumps({name: record if isinstance(record, str) else list(changes(record)) for name, record in records.items()}))
"""


def what_differs(tmp_path: Path, names: list[str], torch: str = "") -> dict[str, Any]:
    (tmp_path / "script.py").write_text(ASKS_DEVICE.replace("TORCH", torch))
    command = [sys.executable, str(tmp_path / "script.py"), *names]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_what_a_driver_answers_while_it_is_traced_is_compared_with_the_device_that_serves(tmp_path: Path) -> None:
    found = what_differs(tmp_path, ["multiprocessors", "threads", "capability", "model"])
    assert "get_device_multiprocessor_count() of this device: captured 132, now 170" in found["multiprocessors"]
    assert "get_attribute(MAX_THREADS_PER_MULTIPROCESSOR) of this device: captured 2048, now 1536" in found["threads"]
    assert "get_attribute(COMPUTE_CAPABILITY_MAJOR) of this device: captured 9, now 12" in found["capability"]
    assert any("RTX 5090" in line for line in found["model"])


def test_libraries_of_cuda_that_code_opens_are_refused_by_name(tmp_path: Path) -> None:
    found = what_differs(tmp_path, ["by_library", "by_function"])
    assert "reads LIBRARY.cuDriverGetVersion" in found["by_library"]
    assert found["by_function"].startswith("__main__.ASK is a ")


NVML = """
import cuda.bindings.nvml as nvml

def nvml_capability():
    return nvml.device_get_cuda_compute_capability(nvml.device_get_handle_by_index_v2(0))

def nvml_memory():
    return nvml.device_get_memory_info_v2(0).total
"""
CORE = """
import cuda.core
HELD = cuda.core.Device()

def core_multiprocessors():
    return cuda.core.Device().properties.multiprocessor_count

def core_devices():
    return len(cuda.core.Device.get_all_devices())

def core_held():
    return HELD.arch
"""


def test_what_nvml_answers_by_cuda_bindings_is_compared_or_refused(tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvml", reason="this cuda-bindings has no interface to NVML")
    found = what_differs(tmp_path, ["nvml_capability", "nvml_memory"], NVML)
    assert "get_attribute(COMPUTE_CAPABILITY_MAJOR) of this device: captured 9, now 12" in found["nvml_capability"]
    assert "nvmlDeviceGetMemoryInfo" in found["nvml_memory"]


def test_what_cuda_core_answers_is_compared_or_refused(tmp_path: Path) -> None:
    pytest.importorskip("cuda.core", reason="cuda.core is not installed")
    found = what_differs(tmp_path, ["core_multiprocessors", "core_devices", "core_held"], CORE)
    assert "get_device_multiprocessor_count() of this device: captured 132, now 170" in found["core_multiprocessors"]
    assert "cuda.core.Device.get_all_devices" in found["core_devices"]
    assert "HELD" in found["core_held"] and isinstance(found["core_held"], str)


def test_what_no_look_up_could_ask_a_device_is_refused_by_name(tmp_path: Path) -> None:
    found = what_differs(tmp_path, ["clock", "memory", "version", "properties"])
    names = {
        "clock": "CLOCK_RATE",
        "memory": "cuMemGetInfo",
        "version": "cuDriverGetVersion",
        "properties": "cudaGetDeviceProperties",
    }
    assert found == {
        name: f"it asks the device for {asked}, which no look-up compares" for name, asked in names.items()
    }


TORCH_DEVICE = """
import torch
from torch.cuda import get_device_capability

def of_torch():
    return torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count if torch.cuda.is_available() else 0

@functools.lru_cache(None)
def kept():
    return torch.cuda.get_device_properties("cuda").shared_memory_per_multiprocessor

def before():
    return kept()

def capability_of_torch():
    return torch.cuda.get_device_capability()

def count():
    return torch.cuda.device_count()

def whole_memory():
    return torch.cuda.get_device_properties(0).total_memory
"""


@pytest.mark.torch
def test_what_torch_says_of_the_device_is_compared_or_refused(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    names = ["of_torch", "before", "capability_of_torch", "count", "whole_memory"]
    found = what_differs(tmp_path, names, TORCH_DEVICE)
    assert found["of_torch"] == ["get_device_multiprocessor_count() of this device: captured 132, now 170"]
    assert found["before"] == [
        "get_attribute(MAX_SHARED_MEMORY_PER_MULTIPROCESSOR) of this device: captured 233472, now 102400"
    ]
    assert "get_attribute(COMPUTE_CAPABILITY_MAJOR) of this device: captured 9, now 12" in found["capability_of_torch"]
    assert "torch.cuda.device_count" in found["count"] and "total_memory" in found["whole_memory"]


ASKS_FOR_ARCH = """
import functools, json, os
from aot.compile.reading.reads import Reads

def arch():
    return os.environ.get("CUTE_DSL_ARCH", "unset")

@functools.cache
def cached():
    return [os.getenv("QUACK_ARCH")]

def before():
    return cached()

def both():
    return arch(), before()

cached()
reads = Reads()
with reads.noted():
    found = both()
print(found[0], json.dumps(reads.record([])["environment"]), os.environ["CUTE_DSL_ARCH"])

def everything():
    return dict(os.environ)

with Reads().noted():
    print("CUTE_DSL_ARCH" in everything(), "PATH" in everything())
"""


def test_a_library_does_not_find_the_variables_that_only_a_worker_has(tmp_path: Path) -> None:
    """Code that was traced with them would be another process's code, and never be served: FlashInfer reads one."""
    (tmp_path / "script.py").write_text(ASKS_FOR_ARCH)
    command = [sys.executable, str(tmp_path / "script.py")]
    environment = {**os.environ, "CUTE_DSL_ARCH": "sm_90a"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    one_by_one, listed = done.stdout.splitlines()
    assert one_by_one == 'unset {"CUTE_DSL_ARCH": null, "QUACK_ARCH": null} sm_90a' and listed == "False True"


EDITED = """
import sys
from pathlib import Path
from aot.compile.reading.reads import Reads
from aot.compile.reading.watching import loads_seen
from aot.errors import BuildError

loads_seen()
path = Path(sys.argv[1], "edited_kernels.py")
path.write_text("def scale(v):\\n    return v * 2\\n")
sys.path.insert(0, sys.argv[1])
from edited_kernels import scale
if sys.argv[2] == "edited":
    path.write_text("def scale(v):\\n    return v * 345\\n")
reads = Reads()
with reads.noted():
    scale(3)
try:
    print(list(reads.record([])["modules"]))
except BuildError as error:
    print(error.message.rpartition(": ")[2])
"""


@pytest.mark.parametrize(
    ("edit", "said"),
    [("no", "['edited_kernels']"), ("edited", "the source of edited_kernels was edited after it was imported")],
)
def test_a_source_that_is_edited_while_a_kernel_is_captured_is_refused(tmp_path: Path, edit: str, said: str) -> None:
    (tmp_path / "script.py").write_text(EDITED)
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path), edit]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == said


def test_a_function_that_a_script_defines_later_under_the_same_name_is_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = types.ModuleType(MAIN)
    exec(
        "def scaled(value): return value * 2\nfirst = scaled\ndef scaled(value, by=3): return value * by", vars(module)
    )
    monkeypatch.setitem(sys.modules, MAIN, module)
    first, later = ({function.__code__: MAIN} for function in (module.first, module.scaled))
    assert list(functions_and_classes(first)) == []
    assert list(functions_and_classes(later)) == [(MAIN, "scaled")]  # for its default
