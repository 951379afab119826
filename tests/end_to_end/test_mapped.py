"""A launcher that asserts that a tensor map was made raises an error instead of ending the process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from observing import run_python
from places import TESTS

from aot.compile import dsl
from aot.compile.messages import EXERCISE, Options

CALLS = """
import sys
from pathlib import Path
import aot_runtime
from standin import Standin
bundle, directory = map(Path, sys.argv[1:])
cuda = Standin.load(directory)
cuda.reset(capabilities=[(9, 0)])
bundle = aot_runtime.load(bundle)
(kernel,) = bundle.kernels
x = cuda.tensor((8, 64), "float16")
for rows in (8, 1):
    bundle[kernel](x, rows)
    print(len(cuda.launches))
cuda.fail("cuTensorMapEncodeTiled", 1)
try:
    bundle[kernel](x, 8)
except Exception as error:
    print(type(error).__name__, str(error).splitlines()[0], len(cuda.launches))
bundle[kernel](x, 8)
print(len(cuda.launches))
"""


@pytest.mark.skipif(not dsl.version().startswith("4.8"), reason="older versions have no cutlass.experimental.cuda")
def test_a_tensor_map_that_cannot_be_made_is_an_error(
    shared_bundle: Callable[..., Path], standin_directory: Path
) -> None:
    settings = {"name": "mapped", "shared_cudart": True, "archives": False, "options": Options(source=EXERCISE)}
    bundle = shared_bundle("mapped", TESTS / "foreign" / "mapped.py", ("sm_90a",), **settings)
    first, second, failed, after = run_python(CALLS, bundle, standin_directory).splitlines()
    assert (first, second, after) == ("2", "3", "5")
    assert failed.startswith("CudaError ") and "cudaErrorInvalidValue" in failed and failed.endswith(" 3")
