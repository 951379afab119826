"""A tensor without a batch dimension, for code that takes one: dispatch puts an extent of 1 in front."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import aot_runtime.native
import pytest
import tvm_ffi.libinfo
from standin import compiler

MOST = 8  # AOT_MAX_MADE


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Undefined behaviour ends the process."""
    library = tmp_path_factory.mktemp("batch") / "shim.so"
    native = aot_runtime.native
    folders = (native.source_directory(), native.include_directory(), tvm_ffi.libinfo.find_include_path())
    includes = [word for folder in folders for word in ("-isystem", str(folder))]
    flags = ["-std=gnu99", "-O1", "-fPIC", "-shared", "-fsanitize=undefined", "-fsanitize-undefined-trap-on-error"]
    source = Path(__file__).with_name("batch_shim.c")
    unresolved = "-Wl,--unresolved-symbols=ignore-all"  # the rest of an entry library, which is not called
    subprocess.run([*compiler(), *flags, *includes, str(source), unresolved, "-o", str(library)], check=True)
    return ctypes.CDLL(str(library), mode=1)  # RTLD_LAZY


def batch_of(shim: ctypes.CDLL, shape: list[int], strides: list[int]) -> tuple[int, int]:
    """Whether a batch was made, and how far its next element would be."""
    made = (ctypes.c_int64 * MOST)()
    used = shim.shim_batch(len(shape), (ctypes.c_int64 * MOST)(*shape), (ctypes.c_int64 * MOST)(*strides), made)
    return used, made[0]


def test_the_next_element_of_a_batch_would_begin_after_this_one(shim: ctypes.CDLL) -> None:
    used, apart = batch_of(shim, [3, 5], [5, 1])
    assert used == 1 and apart >= 15 and apart % 16 == 0


@pytest.mark.parametrize("stride", [2**63 - 1, 2**63 - 128, -(2**63), 2**62])
def test_a_stride_that_means_nothing_may_be_any(shim: ctypes.CDLL, stride: int) -> None:
    assert batch_of(shim, [1, 4], [stride, 1])[0] == 1


def test_a_tensor_of_too_many_dimensions_is_left_alone(shim: ctypes.CDLL) -> None:
    assert batch_of(shim, [1] * (MOST - 1), [1] * (MOST - 1))[0] == 1
    assert batch_of(shim, [1] * MOST, [1] * MOST)[0] == 0
