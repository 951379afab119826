"""What selection in C adds to a call of the compiled entry, against the CUDA stand-in of the tests.

The compiled entry of the variant is called directly, then through the bundle's entry library. The difference is the
cost of finding the device, selecting the variant, and checking that it is loaded.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from _common import PROJECT, interleaved_medians, parser, print_rows, report

sys.path.insert(0, str(PROJECT / "tests"))
CALLS, ROUNDS = 20_000, 101
COUNTS = (1, 64, 256)


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


class Any_(ctypes.Structure):
    _fields_ = [("type_index", ctypes.c_int32), ("padding", ctypes.c_uint32), ("value", ctypes.c_uint64)]


BF16, F16, F32, F8 = (4, 16), (2, 16), (2, 32), (10, 8)  # code and bits of DLPack
TENSOR, NONE = 7, 0  # of TVM-FFI
Given = tuple[tuple[int, int], tuple[int, ...]] | None  # kind and shape of a tensor


class Arguments:
    """The arguments of a call in C: row-major tensors, far from each other, or None."""

    def __init__(self, *tensors: Given) -> None:
        self.kept: list[Any] = []  # the arguments point to them
        self.count = len(tensors)
        self.array = (Any_ * self.count)()
        for i, tensor in enumerate(tensors):
            self.array[i] = Any_(NONE, 0, 0) if tensor is None else Any_(TENSOR, 0, self._place(i, *tensor))

    def _place(self, number: int, kind: tuple[int, int], shape: tuple[int, ...]) -> int:
        strides = [1]
        for extent in shape[:0:-1]:
            strides.insert(0, strides[0] * extent)
        numbers = [(ctypes.c_int64 * len(shape))(*values) for values in (shape, strides)]
        addresses = [ctypes.addressof(values) for values in numbers]
        tensor = DLTensor((number + 1) << 44, 2, 0, len(shape), *kind, 1, *addresses, 0)
        self.kept += [*numbers, tensor]
        return ctypes.addressof(tensor)


def build(
    kernels: Path, out: Path, archs: str, tuning: Path | None = None, only: Sequence[str] = (), **environment: str
) -> Path:
    """Build a bundle to measure, of ``only`` these kernels if there are some, unless it already exists."""
    if out.is_dir():
        return out
    command = [sys.executable, "-m", "aot", "build", "--source", str(kernels), "--arch", archs, "--cudart", "shared"]
    command += ["--name", "bundle", "--out", str(out), *(["--tuning", str(tuning)] if tuning else [])]
    command += [word for name in only for word in ("--kernel", name)]
    subprocess.run(
        command,
        check=True,
        env={**os.environ, **environment},
        cwd=PROJECT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return out


def compile_loop(folder: Path) -> Any:
    import standin
    import tvm_ffi.libinfo

    library = folder / "loop.so"
    include = tvm_ffi.libinfo.find_include_path()
    source = Path(__file__).with_name("dispatch_loop.c")
    command = [*standin.compiler(), "-O2", "-shared", "-fPIC", "-isystem", include, str(source), "-o", str(library)]
    subprocess.run(command, check=True, env=standin.compiler_environment(folder))
    loop = ctypes.CDLL(str(library)).nanoseconds_per_call
    loop.restype = ctypes.c_double
    loop.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64]
    return loop


def measure(
    loop: Any, bundle: Path, function: str, arch: str, kernel: str, variant: str, arguments: Arguments
) -> dict[str, float]:
    host = bundle / "lib" / f"{platform.machine()}-linux-gnu"
    entry = ctypes.CDLL(str(host / "libbundle.so"))
    through = ctypes.cast(getattr(entry, f"__tvm_ffi_{function}"), ctypes.c_void_p).value
    assert loop(through, arguments.array, arguments.count, 1) > 0, "the first call opens and binds the kernel's library"
    compiled = ctypes.CDLL(str(host / arch / f"{kernel}.so"))
    direct = ctypes.cast(getattr(compiled, f"__tvm_ffi_{variant}"), ctypes.c_void_p).value

    def run(address: int | None) -> Callable[[], float]:
        return lambda: loop(address, arguments.array, arguments.count, CALLS)

    medians = interleaved_medians({"entry": run(direct), "dispatched": run(through)}, ROUNDS)
    return {**medians, "added": medians["dispatched"] - medians["entry"]}


BINS = 15  # bounds of each extent: 16 bins, 4096 cells


def measure_tuned(loop: Any, folder: Path, results: dict[str, dict[str, float]]) -> None:
    """A product of eight tilings: chosen by preference, and by a table of three extents that names the same variant."""
    kernels = PROJECT / "benchmarks" / "tuned_kernels"
    plain = build(kernels, folder / "plain", "sm_90a")
    variants = [f"product__bf16__t{threads}" for threads in range(64, 289, 32)]
    one = {"function": "product", "point": {"dtype": "bf16"}, "variants": variants}
    bins = [[256 * (i + 1) for i in range(BINS)]] * 3
    table = {"kernel": "product", "arch": "sm_90a", "by": ["m", "n", "k"]}
    table["sets"] = [{**one, "bins": bins, "cells": [4] * (BINS + 1) ** 3}]
    device = {"name": "Stand-in 9.0", "multiprocessors": 132, "capability": "9.0"}
    file = folder / "table.json"
    file.write_text(json.dumps({"schema": 1, "device": device, "kernels": [table]}))
    tuned = build(kernels, folder / "tuned", "sm_90a", file)
    arguments = Arguments((BF16, (1000, 4096)), (BF16, (5120, 4096)), (BF16, (1000, 5120)))
    for name, bundle in (("by preference", plain), ("by a table of 16 x 16 x 16 bins", tuned)):
        results[f"8 tilings of a product, {name}"] = measure(
            loop, bundle, "product", "sm_90a", "product", "product__bf16__t192", arguments
        )


def main() -> None:
    command = parser(__doc__)
    command.add_argument("--bundles", type=Path, help="keep the bundles here, to measure them elsewhere")
    command.add_argument("--counts", type=int, nargs="+", default=COUNTS, help="numbers of variants")
    options = command.parse_args()
    import standin

    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        cuda = standin.Standin.load(standin.build(folder / "standin"))
        cuda.reset(capabilities=[(9, 0)])
        cuda.set_recording(False)
        import tvm_ffi  # noqa: F401  its library must be in the process before a bundle is

        loop = compile_loop(folder)
        several = build(
            PROJECT / "benchmarks" / "kernels",
            (options.bundles or folder) / "several",
            "sm_80,sm_90a,sm_100f",
            AOT_BENCHMARK_KERNELS="4",
            AOT_BENCHMARK_VARIANTS="3",
        )
        results["4 kernels x 3 dtypes x 3 architectures"] = measure(
            loop, several, "copy2", "sm_90a", "copy2", "copy2__bf16__n64", Arguments((BF16, (64,)), (BF16, (64,)))
        )
        for count in options.counts:
            many = build(
                PROJECT / "benchmarks" / "kernels",
                (options.bundles or folder) / f"many{count}",
                "sm_90a",
                AOT_BENCHMARK_VARIANTS=str(count),
            )
            length = 64 * max(count // 8, 1)
            arguments = Arguments((F16, (length,)), (F16, (length,)))
            results[f"1 kernel of {count} variants"] = measure(
                loop, many, "copy0", "sm_90a", "copy0", f"copy0__f16__n{length}", arguments
            )
        measure_tuned(loop, options.bundles or folder, results)
    print_rows(
        ("bundle", "entry ns", "dispatched ns", "added ns"), [(name, *row.values()) for name, row in results.items()]
    )
    report("dispatch", results, options.out)


if __name__ == "__main__":
    main()
