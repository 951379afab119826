"""What is compiled without TVM-FFI is captured, built, served, and called in CuTe DSL's own convention."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from observing import run_python
from places import TESTS
from without_frameworks import RESULTS as MAY_IMPORT

from aot.compile.messages import EXERCISE, Options

FOREIGN = TESTS / "foreign"


@pytest.fixture(scope="session")
def plain_bundle(shared_bundle: Callable[..., Path]) -> Path:
    settings = {"name": "plain", "shared_cudart": True, "archives": False, "options": Options(source=EXERCISE)}
    return shared_bundle("plain", FOREIGN / "plain_exercise.py", ("sm_90a",), **settings)


CALLS = """
import gc, sys
from pathlib import Path
import aot_runtime
from standin import Standin
bundle, directory, foreign = map(Path, sys.argv[1:])
cuda = Standin.load(directory)
cuda.reset(capabilities=[(9, 0)])
serving = aot_runtime.serve(bundle)
sys.path.insert(0, str(foreign))
import cutlass
from plainlib import arguments, compile_scale, fill_rows
x = cuda.tensor((5, 64), "float32")
served = compile_scale()
def call(how):
    how(*arguments(x, 4096, 77))
    gc.collect()
    launch = cuda.launches[-1]
    print(launch.grid[0], launch.block[0], launch.stream)
call(served)
call(served.to(0))
call(lambda *args: served.run_compiled_program(served.generate_execution_args(*args)[0]))
rows, out, sizes, bias, stream = arguments(x, 4096, 78)
for _ in range(3):  # the same tensor again: whoever takes its capsule leaves it as it was
    assert served(rows, out, sizes, bias=bias, stream=stream) == 0
print(cuda.launches[-1].stream, len(cuda.launches), serving.hits, serving.misses)
narrow = cuda.tensor((5, 32), "float32")
try:
    served(*arguments(narrow, 4096, 77))
except ValueError as error:
    print(str(error).splitlines()[0])
fill = fill_rows(4096, 9, 79)
fill.run(out, 1, rows=cutlass.Int32(9), stream=stream)  # with what tracing stored, it is the same call
print(fill.threads, serving.hits)
fill_rows(4096, 9, 79)
print(cuda.launches[-1].grid[0], cuda.launches[-1].stream, serving.hits, serving.misses)
"""


def test_a_function_without_tvm_ffi_is_served_as_callers_use_it(plain_bundle: Path, standin_directory: Path) -> None:
    variables = {MAY_IMPORT: "this is such a process"}
    printed = run_python(CALLS, plain_bundle, standin_directory, FOREIGN, variables=variables).splitlines()
    assert printed[:3] == ["5 64 77"] * 3
    assert printed[3] == "78 6 1 0"
    assert printed[4].startswith("Mismatched x.strides[0] on argument #0, expected to be 64")
    assert printed[5] == "(64, 1) 3", "tracing stores this, and nothing was traced"
    assert printed[6] == "9 79 4 0", "a host function that is called is served too"


HOSTLIB = """
import cutlass, cutlass.cute as cute


@cute.jit
def of_the_host(x: cute.Tensor):
    x[1] = x[0] + 1.0


@cute.kernel
def kernel(out: cute.Pointer):
    cute.make_tensor(out, cute.make_layout(1))[0] = 1.0


@cute.jit
def helper(out: cute.Pointer):
    kernel(out).launch(grid=[1, 1, 1], block=[1, 1, 1])


@cute.jit
def of_the_device(out: cute.Pointer):
    helper(out)
"""
HOST_CALLS = """
import sys
import aot_runtime, numpy
bundle, folder = sys.argv[1:]
serving = aot_runtime.serve(bundle)
sys.path.insert(0, folder)
import cutlass, hostlib
from cutlass.cute.runtime import from_dlpack, make_ptr
x = numpy.full(2, 3.0, dtype=numpy.float32)
hostlib.of_the_host(from_dlpack(x))
print(x[1])
try:
    hostlib.of_the_device(make_ptr(cutlass.Float32, 16, cutlass.cute.AddressSpace.gmem, assumed_align=16))
except aot_runtime.MissError as error:
    print("a miss:", "of_the_device" in str(error))
"""


@pytest.mark.compiler
def test_host_code_runs_while_a_bundle_is_served_and_a_launch_is_a_miss(plain_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "hostlib.py").write_text(HOSTLIB)
    variables = {MAY_IMPORT: "this is such a process", "CUTE_DSL_ARCH": "sm_90a"}
    printed = run_python(HOST_CALLS, plain_bundle, tmp_path, variables=variables).splitlines()
    assert printed == ["4.0", "a miss: True"]
