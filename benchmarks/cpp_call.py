"""Costs of the C++ side: a call, opening a bundle, the size of a static program.

    python benchmarks/cpp_call.py [--bundle DIR] [--static-bundle DIR] [--out results.json]

Needs no GPU: calls go to the stand-in for CUDA in ``tests/standin``. Numbers are only valid on an idle machine; the
output includes the load.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

PROJECT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(PROJECT / "tests"), str(PROJECT), str(PROJECT / "runtime")]

import platformdirs  # noqa: E402
from _common import parser, report  # noqa: E402
from aot_runtime.native import include_directory  # noqa: E402
from standin import build as build_standin  # noqa: E402

from aot.pipeline.build import build  # noqa: E402
from aot.pipeline.settings import Settings  # noqa: E402

LIMITS = {"generated_over_entry_ns": 50, "first_open_ms": 1, "static_program_bytes": 1_500_000}


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--bundle", type=Path, help="of tests/samples, named `bundle`, CUDA runtime shared")
    options.add_argument("--static-bundle", type=Path, help="the same with the CUDA runtime inside")
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        bundle = arguments.bundle or bundle_of(work / "bundle", shared=True)
        static = arguments.static_bundle or bundle_of(work / "static", shared=False)
        size = program_size(static, work)
        result: dict[str, Any] = {**call_costs(bundle, work), **open_costs(bundle, work), "static_program_bytes": size}
    result |= {"load_average": os.getloadavg()[0], "limits": LIMITS}
    print(json.dumps(result, indent=1))
    report("cpp_call", result, arguments.out)
    return 0


def bundle_of(out: Path, *, shared: bool) -> Path:
    cache = Path(platformdirs.user_cache_dir("cute-aot"))
    settings = Settings(str(PROJECT / "tests/samples"), ("sm_90a",), out=out, name="bundle", select=("fill",),
                        shared_cudart=shared, cache=cache, jobs=os.cpu_count() or 1)  # fmt: skip
    return build(settings).path


def config(*words: str | Path) -> list[str]:
    command = [sys.executable, "-m", "aot", "config", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path[:3])}
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.split()


def call_costs(bundle: Path, work: Path) -> dict[str, float]:
    standin = build_standin(work / "standin")
    libraries = [str(standin / name) for name in ("libstandin.so", "libcuda.so.1", "libcudart.so.12")]
    program = work / "call"
    command = ["c++", "-std=c++17", "-O2", str(PROJECT / "benchmarks/call.cpp"), "-o", str(program),
               *config("--cflags", "--ldflags", "--libs", bundle), "-Wl,--no-as-needed", *libraries,
               f"-Wl,-rpath,{standin}"]  # fmt: skip
    subprocess.run(command, check=True)
    done = subprocess.run([program, bundle], check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def open_costs(bundle: Path, work: Path) -> dict[str, float]:
    """The median of several processes, each of which opens the bundle for the first time."""
    program = work / "open"
    libraries = config("--cflags", "--libs")
    subprocess.run(
        ["c++", "-std=c++17", "-O2", str(PROJECT / "benchmarks/open.cpp"), "-o", str(program), *libraries], check=True
    )
    tvm_ffi = next(word for word in config("--libs", bundle) if word.endswith("libtvm_ffi.so"))
    runs = [
        json.loads(subprocess.run([program, bundle, tvm_ffi], check=True, capture_output=True, text=True).stdout)
        for _ in range(21)
    ]
    return {name: median(run[name] for run in runs) for name in runs[0]}


def program_size(bundle: Path, work: Path) -> int:
    """A program with one kernel for one architecture, stripped, the CUDA runtime inside."""
    program = work / "hello"
    command = ["c++", "-std=c++17", "-O2", "-s", f"-I{include_directory()}", str(PROJECT / "tests/cpp/hello.cpp"), "-o",
               str(program), *config("--cflags", "--ldflags", "--libs", "--static", "--arch", "sm90", bundle)]  # fmt: skip
    subprocess.run(command, check=True)
    return program.stat().st_size


if __name__ == "__main__":
    sys.exit(main())
