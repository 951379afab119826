"""What a second host adds to a build, what a wheel adds to its bundle, and what importing a package costs.

The second host's wheels are fetched once, as a build does. The compilers' caches start with only what every build shares
(libc, compiler-rt). CPU seconds are reported beside wall-clock seconds, which other programs affect.
"""

from __future__ import annotations

import io
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import platformdirs
from _common import PROJECT, parser, print_rows, report

from aot.hosts import Host
from aot.pipeline.build import build
from aot.pipeline.settings import Settings
from aot.wheel.archive import write_wheels
from aot.wheel.identity import Identity
from aot.wheel.make import Project, wheels

PROCESSES = 21
CACHE = Path(platformdirs.user_cache_dir("cute-aot"))

# Runs in a process of its own; prints milliseconds.
IMPORT = """
import sys, time
sys.path.insert(0, sys.argv[1])
import tvm_ffi
started = time.perf_counter()
import packaged
imported = time.perf_counter()
getattr(packaged, sys.argv[2])
print(1e3 * (imported - started), 1e3 * (time.perf_counter() - started))
"""


def processor_seconds() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def timed_build(settings: Settings, warm: Path) -> tuple[float, float]:
    """Wall-clock and CPU seconds, starting from a copy of the warm cache."""
    with tempfile.TemporaryDirectory() as scratch:
        cache = Path(scratch) / "cache"
        shutil.copytree(warm, cache)
        started, used = time.perf_counter(), processor_seconds()
        build(replace(settings, cache=cache, out=Path(scratch) / "bundle"))
        return time.perf_counter() - started, processor_seconds() - used


def second_host(settings: Settings, hosts: tuple[Host, Host], rounds: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as scratch:
        warm = Path(scratch) / "cache"
        if (CACHE / "wheels").is_dir():
            shutil.copytree(CACHE / "wheels", warm / "wheels")
        sample = Settings(
            str(PROJECT / "examples" / "kernel_package" / "kernels"), ("sm_80",), select=("clip",), hosts=hosts
        )
        build(replace(sample, out=Path(scratch) / "sample", name="sample", cache=warm))
        runs = [
            [timed_build(replace(settings, hosts=chosen), warm) for chosen in (hosts[:1], hosts)] for _ in range(rounds)
        ]
    one, two = (
        [statistics.median(column) for column in zip(*builds, strict=True)] for builds in zip(*runs, strict=True)
    )
    return {
        "one host, s": one[0],
        "both hosts, s": two[0],
        "second host, %": 100 * (two[0] - one[0]) / one[0],
        "one host, processor s": one[1],
        "both hosts, processor s": two[1],
        "second host, % of processor time": 100 * (two[1] - one[1]) / one[1],
    }


def packaging(bundle: Path) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as scratch:
        made = wheels(bundle, Project(Identity.parse("packaged", "1.0")), hosts=[Host.native()])
        (wheel,) = write_wheels(made, Path(scratch))
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(Path(scratch) / "site")
            kernel = next(iter(json.loads(archive.read("packaged/_bundle/kernels.json"))["kernels"]))
            inside = [info.filename for info in archive.infolist() if "/_bundle/" in info.filename]
            packed = io.BytesIO()
            with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as alone:
                for name in inside:
                    alone.writestr(name, archive.read(name))
        command = [sys.executable, "-c", IMPORT, str(Path(scratch) / "site"), kernel]
        runs = [list(map(float, subprocess.check_output(command).split())) for _ in range(PROCESSES)]
        imported, used = (statistics.median(column) for column in zip(*runs, strict=True))
        return {
            "wheel beyond the bundle, KB": (wheel.stat().st_size - len(packed.getvalue())) / 1024,
            "import after tvm_ffi, ms": imported,
            "import and first function, ms": used,
        }


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--kernels", default=str(PROJECT / "kernels"), help="what to build (default: the project's)")
    arguments.add_argument("--arch", action="append", help="default: sm_80 and sm_90a")
    arguments.add_argument("--kernel", action="append", default=[], metavar="GLOB", help="only kernels that match")
    arguments.add_argument("--rounds", type=int, default=3)
    options = arguments.parse_args()
    native = Host.native()
    other = Host({"x86_64": "aarch64", "aarch64": "x86_64"}[native.cpu])
    settings = Settings(
        options.kernels,
        tuple(options.arch or ("sm_80", "sm_90a")),
        name="measured",
        select=tuple(options.kernel),
        jobs=2,
    )
    with tempfile.TemporaryDirectory() as scratch:
        bundle = build(replace(settings, cache=CACHE, out=Path(scratch) / "bundle")).path
        results = packaging(bundle)
    results |= second_host(settings, (native, other), options.rounds)
    print_rows(("what", ""), list(results.items()))
    report("package", results, options.out)


if __name__ == "__main__":
    main()
