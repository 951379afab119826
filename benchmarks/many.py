"""A bundle of 10,000 variants, 50 kernels of 200: loading it, first use of one kernel, and looking at one.

Against the CUDA stand-in of the tests. To compile 10,000 variants takes an hour and would measure nothing more
here: 200 are compiled, those of one kernel, and an executor of its own gives them to the others under their names.
All 10,000 are linked, verified and published as in any build. Each figure is the median over processes of their own,
by the clock and in the processor's time: on a machine that others use too the two are far apart.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import platformdirs
from _common import PROJECT, interleaved_medians, parser, print_rows, report

import aot.pipeline.build
import aot.pipeline.executing.local
from aot.cli.progress import QuietProgress
from aot.compile.messages import Compiled
from aot.errors import Failure
from aot.pipeline.executing.executor import CompileJob, Report, Session
from aot.pipeline.executing.local import LocalExecutor
from aot.pipeline.settings import Settings

KERNELS, VARIANTS, PROCESSES = 50, 200, 21
SOURCE = PROJECT / "benchmarks" / "kernels" / "many.py"
LIMITS = {"load_ms": 1.0, "first_call_beyond_hashing_ms": 2.0, "resident_growth_mb": 5.0, "inspect_ms": 300.0}

# Runs in a process of its own; prints milliseconds, and bytes of memory.
MEASURE = """
import json, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import standin
cuda = standin.Standin.load(Path(sys.argv[2]))
cuda.reset(capabilities=[(9, 0)])
import tvm_ffi, aot_runtime
aot_runtime.load
def resident():
    text = Path("/proc/self/smaps_rollup").read_text()
    return 1024 * next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Rss:"))
warm = cuda.tensor((64,), "float16")
def now():
    return time.perf_counter(), time.process_time()
before = resident()
moments = [now()]
bundle = aot_runtime.load(sys.argv[3])
moments.append(now())
grown = resident() - before
moments.append(now())
function = bundle.copy7
moments.append(now())
function(warm, warm)
moments.append(now())
function(warm, warm)
moments.append(now())
steps = [(0, 1), (2, 3), (3, 4), (4, 5)]
times = [1e3 * (moments[b][clock] - moments[a][clock]) for clock in (0, 1) for a, b in steps]
print(json.dumps([*times, grown / 1e6]))
"""


class OneForAll:
    """Compiles one kernel's variants and hands them out under the names of all."""

    def __init__(self, local: LocalExecutor) -> None:
        self.local = local

    def compile(self, session: Session, jobs: Sequence[CompileJob], report: Report) -> None:
        compiled: dict[str, tuple[bytes, Compiled]] = {}

        def note(job: CompileJob, outcome: Compiled | Failure) -> None:
            assert isinstance(outcome, Compiled), outcome
            compiled[job.variant] = (job.launcher.read_bytes(), outcome)
            report(job, outcome)

        self.local.compile(session, [job for job in jobs if job.kernel == "copy0"], note)
        for job in jobs:
            if job.kernel != "copy0":
                report(job, _renamed(job, *compiled[job.variant.replace(job.kernel, "copy0", 1)]))

    def close(self) -> None:
        self.local.close()


def _renamed(job: CompileJob, launcher: bytes, compiled: Compiled) -> Compiled:
    """Another kernel's variant under this job's name, which LLVM's text holds nothing but symbols of."""
    job.launcher.write_bytes(launcher.replace(compiled.variant.encode(), job.variant.encode()))
    return replace(compiled, variant=job.variant)


def build(folder: Path, jobs: int) -> Path:
    """The bundle, unless it is there already."""
    out = folder / "many"
    if not (out / "manifest.json").is_file():
        os.environ.update(AOT_BENCHMARK_KERNELS=str(KERNELS), AOT_BENCHMARK_VARIANTS=str(VARIANTS))
        settings = Settings(
            str(SOURCE), ("sm_90a",), out=out, name="many", jobs=jobs, shared_cudart=True, archives=False,
            cache=Path(platformdirs.user_cache_dir("cute-aot")), artifacts=folder / "cache",
        )  # fmt: skip
        local = aot.pipeline.executing.local
        local.LocalExecutor = lambda *arguments, **named: OneForAll(LocalExecutor(*arguments, **named))  # type: ignore[assignment,misc]
        with QuietProgress() as progress:
            aot.pipeline.build.build(settings, progress)
    return out


def measure_loading(standin: Path, bundle: Path) -> dict[str, float]:
    command = [sys.executable, "-c", MEASURE, str(PROJECT / "tests"), str(standin), str(bundle)]
    runs = [json.loads(subprocess.check_output(command)) for _ in range(PROCESSES)]
    steps = ("load", "first_attribute", "first_call", "second_call")
    names = (*(f"{step}_ms" for step in steps), *(f"{step}_cpu_ms" for step in steps), "resident_growth_mb")
    return {name: statistics.median(column) for name, column in zip(names, zip(*runs, strict=True), strict=True)}


def measure_hashing(bundle: Path) -> float:
    """Milliseconds to hash what a first call opens: the kernel's own library, and the support library."""
    host = bundle / "lib" / f"{platform.machine()}-linux-gnu"
    contents = [(host / name).read_bytes() for name in ("sm_90a/copy7.so", "libmany_cuda.so")]
    samples = []
    for _ in range(PROCESSES):
        started = time.perf_counter()
        for content in contents:
            hashlib.sha256(content).digest()
        samples.append(1e3 * (time.perf_counter() - started))
    return statistics.median(samples)


def measure_inspect(bundle: Path) -> dict[str, float]:
    """Looking at one kernel, and an interpreter that does nothing, in turns."""
    inspect = [sys.executable, "-m", "aot", "inspect", str(bundle), "--kernel", "copy7"]
    medians = interleaved_medians(
        {"inspect": lambda: _seconds(inspect), "nothing": lambda: _seconds([sys.executable, "-c", ""])}, PROCESSES
    )
    cpu = interleaved_medians(
        {"inspect": lambda: _cpu_seconds(inspect), "nothing": lambda: _cpu_seconds([sys.executable, "-c", ""])}, 9
    )
    return {
        "inspect_ms": 1e3 * (medians["inspect"] - medians["nothing"]),
        "inspect_cpu_ms": 1e3 * (cpu["inspect"] - cpu["nothing"]),
        "interpreter_ms": 1e3 * medians["nothing"],
    }


def _seconds(command: Sequence[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def _cpu_seconds(command: Sequence[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--bundle", type=Path, help="keep the bundle below this folder, or find it there")
    arguments.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments.add_argument("--build-only", action="store_true")
    options = arguments.parse_args()
    sys.path.insert(0, str(PROJECT / "tests"))
    import standin

    with tempfile.TemporaryDirectory() as scratch:
        bundle = build(options.bundle or Path(scratch), options.jobs)
        if options.build_only:
            return
        results = measure_loading(standin.build(Path(scratch) / "standin"), bundle)
        results["hashing_ms"] = measure_hashing(bundle)
        for clock in ("ms", "cpu_ms"):
            results[f"first_call_beyond_hashing_{clock}"] = results[f"first_call_{clock}"] - results["hashing_ms"]
        results |= measure_inspect(bundle)
    print_rows(("what", "measured", "limit"), [(k, f"{v:.3f}", LIMITS.get(k, "")) for k, v in results.items()])
    manifest = bundle / "manifest.json"
    sizes = {"manifest_bytes": manifest.stat().st_size, "library_bytes": _library_bytes(bundle)}
    facts = {"kernels": KERNELS, "variants": VARIANTS, "load_average": os.getloadavg()[0], **sizes}
    report("many", {**facts, **results, "limits": LIMITS}, options.out)


def _library_bytes(bundle: Path) -> int:
    return next(bundle.glob(f"lib/{platform.machine()}-*/sm_90a/copy7.so")).stat().st_size


if __name__ == "__main__":
    main()
