"""What a call from C++ costs on a real GPU: through the generated function, over the compiled entry. Needs a GPU.

    python3 benchmarks/benchmark_cpp_gpu.py [--demo DIR] [--tvm-ffi LIBRARY] [--out results.json]

Compiles ``call_gpu.cpp`` against the bundle of ``cpp_demo`` (``python -m aot build --kernels cpp_demo/kernels --name demo
--arch sm90 --host all --out dist/demo``, on any machine) and runs it. Where it runs it needs a C++ compiler, a driver and
libtvm_ffi.so, of the apache-tvm-ffi that this Python has or by its path; no network, no CUDA toolkit, no CuTe DSL. The
best of several processes counts: a busy machine makes numbers larger, never smaller. Exit code 77 if it cannot run.
"""

from __future__ import annotations

import importlib.util
import json
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _common import PROJECT, parser, report

LIMIT = 1.05  # times the compiled entry
PROCESSES = 5
CANNOT_RUN = 77
DEMOS = (PROJECT / "dist" / "demo", PROJECT / "cpp_demo" / "bundle")  # of a checkout, of a kit
INCLUDES = (PROJECT / "runtime" / "include", PROJECT / "aot_runtime" / "include")


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--demo", type=Path, help="the bundle of cpp_demo (default: dist/demo)")
    arguments.add_argument("--tvm-ffi", type=Path, help="libtvm_ffi.so (default: the one that this Python has)")
    options = arguments.parse_args()
    bundle = options.demo or next((path for path in DEMOS if path.is_dir()), DEMOS[0])
    library = options.tvm_ffi or installed_tvm_ffi()
    missing = [f"`{path}` does not exist" for path in (bundle, library) if not path.exists()]
    missing += ["there is no C++ compiler, `c++`"] if shutil.which("c++") is None else []
    if missing:
        print("; ".join(missing))
        return CANNOT_RUN
    with tempfile.TemporaryDirectory() as folder:
        program = compiled(bundle.resolve(), library.resolve(), Path(folder) / "call_gpu")
        runs = [subprocess.run([program, bundle.resolve()], capture_output=True, text=True) for _ in range(PROCESSES)]
    failed = next((run for run in runs if run.returncode != 0), None)
    if failed is not None:
        print(failed.stdout.strip() or f"call_gpu ended with {failed.returncode}: {failed.stderr.strip()}")
        return failed.returncode if failed.returncode == CANNOT_RUN else 1
    results = summary([json.loads(run.stdout) for run in runs])
    print(json.dumps(results, indent=1))
    report("benchmark_cpp_gpu", results, options.out)
    return 0


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    best = min(runs, key=lambda run: run["generated_over_entry"])
    ratios = [run["generated_over_entry"] for run in runs]
    return {**best, "ratios": ratios, "limit": LIMIT, "within_limit": best["generated_over_entry"] <= LIMIT}


def installed_tvm_ffi() -> Path:
    spec = importlib.util.find_spec("tvm_ffi")
    return Path(spec.origin).parent / "lib" / "libtvm_ffi.so" if spec and spec.origin else Path("libtvm_ffi.so")


def compiled(bundle: Path, library: Path, program: Path) -> Path:
    folder = bundle / "lib" / f"{platform.machine()}-linux-gnu"
    includes = [f"-I{path}" for path in (*INCLUDES, bundle / "include") if path.is_dir()]
    link = [str(folder / "libdemo.so"), "-Wl,--no-as-needed", str(library), "-ldl", "-pthread"]
    paths = [f"-Wl,-rpath,{folder}", f"-Wl,-rpath,{library.parent}"]
    source = str(PROJECT / "benchmarks" / "call_gpu.cpp")
    subprocess.run(["c++", "-std=c++17", "-O2", *includes, source, "-o", str(program), *link, *paths], check=True)
    return program


if __name__ == "__main__":
    sys.exit(main())
