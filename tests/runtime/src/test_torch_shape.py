"""Shapes of outputs as ``lib<name>_torch.so`` computes them in C, against Python's own reading of the same text."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aot_runtime.native
import pytest
from aot_runtime.description.kernel_records import Parameter
from aot_runtime.frameworks.outputs import SHAPE_FUNCTIONS, shape_source
from hypothesis import given
from hypothesis import strategies as st

from aot.bundle.operators import DEEPEST, MOST, WORKSPACE, Step, shape_steps
from aot.hosts import Host

FOLDER = aot_runtime.native.source_directory() / "torch"
INPUTS = (Parameter("x", type="tensor"), Parameter("y", type="tensor?"), Parameter("n", type="int"))
OPERATIONS = re.findall(r"AOT_TORCH_(\w+),? +/\*|  AOT_TORCH_(\w+),\n", (FOLDER / "aot_torch_table.h").read_text())
# Keeps the last sentence, where the library would hand it to torch.
SHIM = """
#include "aot_torch_bundle.h"
#include <stdio.h>
char said[1024];
int aot_torch_fail(const char* format, const char* first, const char* second, const char* third) {
  snprintf(said, sizeof said, format, first, second, third);
  return -1;
}
"""


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint32), ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


class Seen(ctypes.Structure):
    _fields_ = [("tensor", ctypes.POINTER(Tensor)), ("number", ctypes.c_int64)]


class CStep(ctypes.Structure):
    _fields_ = [("operation", ctypes.c_int), ("input", ctypes.c_int32), ("number", ctypes.c_int64)]


class Output(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p), ("shape", ctypes.POINTER(CStep)), ("step_count", ctypes.c_uint32),
        ("dtype_of", ctypes.c_int32), ("dtype", ctypes.c_int32),
    ]  # fmt: skip


class Shape(ctypes.Structure):
    _fields_ = [("rank", ctypes.c_int32), ("sizes", ctypes.c_int64 * 64), ("strides", ctypes.c_int64 * 64)]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("shape")
    (folder / "shim.c").write_text(SHIM)
    sources = [str(folder / "shim.c"), str(FOLDER / "aot_torch_shape.c")]
    includes = [f"-I{FOLDER}", f"-I{aot_runtime.native.include_directory()}"]
    flags = ["-std=c99", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-format-nonliteral", "-shared", "-fPIC"]
    cc = [sys.executable, "-m", "ziglang", "cc", "-target", Host.native().zig_target]
    command = [*cc, *flags, *includes, *sources, "-o", str(folder / "shape.so")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(folder / "shape.so"))


def operation_number(name: str) -> int:
    order = [first or second for first, second in OPERATIONS]
    return order.index(name) - order.index("NUMBER")


def tensor_of(extents: tuple[int, ...]) -> Tensor:
    return Tensor(None, 2, 0, len(extents), 0, (ctypes.c_int64 * len(extents))(*extents), None, 0)


def in_c(library: ctypes.CDLL, steps: tuple[Step, ...], values: list[Any]) -> Any:
    """The shape and the strides, or the sentence that says why there is none."""
    tensors = [tensor_of(value) if isinstance(value, tuple) else None for value in values]
    seen = (Seen * len(values))(*(
        Seen(ctypes.pointer(t) if t else None, value if isinstance(value, int) else 0)
        for t, value in zip(tensors, values, strict=True)
    ))  # fmt: skip
    rows = (CStep * len(steps))(*(CStep(operation_number(s.operation), s.input, s.number) for s in steps))
    output, shape = Output(b"out", rows, len(steps), -1, 0), Shape()
    operator = ctypes.create_string_buffer(256)
    ctypes.cast(operator, ctypes.POINTER(ctypes.c_char_p))[0] = b"kernel"
    if library.aot_torch_compute_shape(operator, ctypes.byref(output), seen, ctypes.byref(shape)) != 0:
        return (ctypes.c_char * 1024).in_dll(library, "said").value.decode().rpartition(": ")[2]
    return tuple(shape.sizes[: shape.rank]), tuple(shape.strides[: shape.rank])


def in_python(text: str, values: list[Any]) -> Any:
    names = {
        p.name: SimpleNamespace(shape=v) if isinstance(v, tuple) else v for p, v in zip(INPUTS, values, strict=True)
    }
    shape = eval(shape_source(text, [p.name for p in INPUTS]), dict(SHAPE_FUNCTIONS), names)
    strides, stride = [], 1
    for extent in reversed(shape):
        strides.insert(0, stride)
        stride *= max(extent, 1)
    return tuple(shape), tuple(strides)


EXTENT = st.recursive(
    st.one_of(
        st.integers(-5, 20).map(str), st.just("n"), st.sampled_from(["x.shape[0]", "x.shape[-1]", "x.shape[1]", "y.shape[-2]"])
    ),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(lambda t: f"{t[0]}({t[1]}, {t[2]})"),
    ),
    max_leaves=6,
)  # fmt: skip
SPREAD = st.sampled_from(
    [
        "*x.shape",
        "*x.shape[:-1]",
        "*x.shape[:1]",
        "*x.shape[:-9]",
        "*y.shape[:9]",
        "*x.shape[1:]",
        "*x.shape[-1:]",
        "*y.shape[9:]",
        "*y.shape[-9:]",
    ]
)


@given(
    elements=st.lists(st.one_of(EXTENT, SPREAD), max_size=4),
    x=st.lists(st.integers(0, 9), min_size=2, max_size=4).map(tuple),
    y=st.lists(st.integers(0, 9), min_size=2, max_size=3).map(tuple),
    n=st.integers(-40, 40),
)
def test_c_computes_the_shapes_that_python_computes(
    library: ctypes.CDLL, elements: list[str], x: Any, y: Any, n: int
) -> None:
    text = f"({''.join(f'{element}, ' for element in elements)})"
    got = in_c(library, shape_steps(text, INPUTS), [x, y, n])
    try:
        expected = in_python(text, [x, y, n])
    except ZeroDivisionError:
        # C stops at the first extent that is wrong, Python computes all of them first.
        assert got in ("it divides by zero", "an extent is negative")
        return
    assert got == ("an extent is negative" if min(expected[0], default=0) < 0 else expected)


@pytest.mark.parametrize(
    ("text", "values", "said"),
    [
        ("(y.shape[0],)", [(1,), None, 0], "an argument is None"),
        ("y.shape", [(1,), None, 0], "an argument is None"),
        ("(x.shape[2],)", [(1,), None, 0], "an argument has too few dimensions"),
        ("(x.shape[-2],)", [(1,), None, 0], "an argument has too few dimensions"),
        ("(n // 0,)", [(1,), None, 7], "it divides by zero"),
        ("(n + n,)", [(1,), None, 2**62], "a number is beyond 64 bits"),
        ("(n // -1,)", [(1,), None, -(2**63)], "a number is beyond 64 bits"),
        ("(n * n,)", [(1,), None, 2**32], "a number is beyond 64 bits"),
        ("(n, n, 2)", [(1,), None, 2**31], "it has more than 2^63 elements"),
        (f"({'*x.shape, ' * 22})", [(1, 1, 1), None, 0], "it has more than 64 dimensions"),
    ],
)
def test_a_shape_that_cannot_be_is_refused_with_the_reason(
    library: ctypes.CDLL, text: str, values: list[Any], said: str
) -> None:
    assert in_c(library, shape_steps(text, INPUTS), values) == said


def test_the_lowest_number_has_a_remainder(library: ctypes.CDLL) -> None:
    assert in_c(library, shape_steps("(n % -1,)", INPUTS), [(1,), None, -(2**63)]) == ((0,), (1,))


def test_limits_are_those_of_the_header() -> None:
    header = Path(FOLDER / "aot_torch_table.h").read_text()
    assert f"AOT_TORCH_MAX_ARGUMENTS = {MOST}," in header
    assert f"AOT_TORCH_MAX_DEPTH = {DEEPEST} " in header
    assert f"AOT_TORCH_WORKSPACE (INT32_MIN + {WORKSPACE + 2**31})" in header
