"""A library's own tests, served: record what they compile, build that, and run them again without one compile.

Needs a GPU, torch, CuTe DSL, the library and its test files, which its source distribution has:

    python examples/capture/served_tests/served_tests.py tests/test_softmax.py --keep N=1024,4096 --keep use_compile=False --out results.json

``--bundle`` takes a bundle that is there already, or several, and neither records nor builds. ``--keep`` selects tests by
the values of their parameters, as in ``--keep "d=64,128" --keep "seqlen_q,seqlen_k=(1, 1),(256, 256)"``, and ``--every 10``
runs one in ten of what is left of each function; the others are counted as deselected. ``--cases FILE`` selects several
combinations of values and has reasons for the others, as ``fa4_cases.json`` does for FlashAttention-4.

The second run is served with ``miss="raise"``, so that a call that is not in the bundle fails its test. ``--processes 8``
lets eight processes share the tests; the library is imported once. ``--add`` keeps the runs that the file of results
already has.

A machine without a GPU can build the bundle. The tests then run on tensors without memory, and compile nothing:

    python examples/capture/served_tests/served_tests.py tests/test_softmax.py --capture dist/softmax --host x86_64
    python examples/capture/served_tests/served_tests.py tests/test_softmax.py --bundle dist/softmax --out results.json
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _selected_tests import KEEP, PROCESSES, RESULTS, TESTS

HERE = Path(__file__).resolve().parent
# torch asks whether there is a GPU without touching CUDA, and compiles in the process that asks for it.
FOR_FORKS = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
NO_DISK_CACHES = {"QUACK_CACHE_ENABLED": "0", "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "0"}


def machine_facts() -> dict[str, Any]:
    """What the results depend on."""
    names = ("apache-tvm-ffi", "cute-aot", "flash-attn-4", "nvidia-cutlass-dsl", "quack-kernels", "torch", "triton")
    installed = {one.metadata["Name"].lower(): one.version for one in importlib.metadata.distributions()}
    versions = {name: installed[name] for name in names if name in installed}
    return {
        "date": datetime.date.today().isoformat(), "cpu": platform.machine(), "python": platform.python_version(),
        "versions": versions,
    }  # fmt: skip


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, help="write the results here, as JSON")
    arguments.add_argument("tests", nargs="+", help="test files of the library, or names of tests in them")
    arguments.add_argument("--keep", action="append", default=[], metavar="NAME=VALUE,...", help="parameters to run")
    arguments.add_argument("--cases", type=Path, metavar="FILE", help="combinations of parameters to run, with reasons")
    arguments.add_argument("--deselect", action="append", default=[], metavar="NAME: REASON", help="tests to leave out")
    arguments.add_argument("--every", type=int, default=1, metavar="N", help="run one in N tests of each function")
    arguments.add_argument("--arch", default="sm90")
    arguments.add_argument(
        "--bundle", type=Path, action="append", default=[], help="a bundle of what the tests compile"
    )
    arguments.add_argument("--capture", type=Path, metavar="BUNDLE", help="build a bundle of what the tests compile")
    arguments.add_argument("--host", help="of the bundle that `--capture` builds")
    arguments.add_argument("--processes", type=int, default=1, help="processes of the run that is served")
    arguments.add_argument("--workers", type=int, default=0, help="processes of the run that compiles")
    arguments.add_argument("--add", action="store_true", help="keep the runs in the file of results")
    options = arguments.parse_intermixed_args()
    if options.capture is not None:
        sys.exit(capture(options))
    known = json.loads(options.out.read_text())["results"]["runs"] if options.add and options.out.is_file() else []
    with tempfile.TemporaryDirectory() as folder:
        results = run(options, Path(folder))
    print(json.dumps({name: value for name, value in results.items() if name not in ("deselected", "cases")}, indent=1))
    if options.out is not None:
        written = {"machine": machine_facts(), "results": {"runs": [*known, results]}}
        options.out.write_text(json.dumps(written, indent=1) + "\n")
    sys.exit(complaint(results))


def complaint(results: dict[str, Any]) -> str | None:
    """What is wrong with a run. pytest's own exit code is no help: processes that share the tests have others."""
    if results["failed"] or any(count for _, count in results["served"]):
        return "not every test passed from the bundle alone"
    return None if results["passed"] else "no test passed; pytest's output is above"


def variables(options: Any) -> dict[str, str]:
    """The environment of tests, with what is selected of them."""
    left_out = dict(text.split(": ", 1) for text in options.deselect)
    cases = json.loads(options.cases.read_text()) if options.cases is not None else {}
    keep = dict(map(parsed_keep, options.keep))
    settings = {"keep": keep, "left_out": left_out, "every": options.every, "cases": cases}
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    return {**os.environ, **NO_DISK_CACHES, KEEP: json.dumps(settings), "PYTHONPATH": path}


def capture(options: Any) -> int:
    """Build what the tests compile, without a GPU."""
    command = [sys.executable, "-m", "aot", "capture", str(HERE / "_tests_on_fakes.py"), "--arch", options.arch]
    command += ["--no-archives", "--name", options.capture.name, "--out", str(options.capture)]
    command += ["--host", options.host] if options.host is not None else []
    tests = [str(Path(test).resolve()) for test in options.tests]
    return subprocess.run(command, env={**variables(options), TESTS: json.dumps(tests)}).returncode


def run(options: Any, folder: Path) -> dict[str, Any]:
    environment = variables(options)
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "_selected_tests", "-p", "no:cacheprovider", *options.tests]
    bundles, seconds = options.bundle, {}
    if not bundles:
        bundles = [folder / "bundle"]
        seconds = record_and_build(tests, options, folder / "calls", bundles[0], environment)
    if options.processes > 1:
        tests += ["-s", "-p", "_shared_tests"]  # what pytest captures in files would be shared, too
        environment |= {PROCESSES: str(options.processes), **FOR_FORKS}
    results = folder / "results.json"
    serve = [sys.executable, "-m", "aot_runtime", "serve", *map(str, bundles), "--report", "--", *tests]
    started = time.perf_counter()
    served = subprocess.run(serve, env={**environment, RESULTS: str(results)}, stderr=subprocess.PIPE, text=True)
    seconds["served"] = time.perf_counter() - started
    sys.stderr.write(served.stderr)
    counted = [_counts(line) for line in served.stderr.splitlines() if line.startswith("aot: ")]
    found = {
        **json.loads(results.read_text()),
        "served": counted,
        "seconds": seconds,
        "kernels": sum(map(_kernels, bundles)),
    }
    return {"tests": [Path(test).name for test in options.tests], **found}


def parsed_keep(text: str) -> tuple[str, list[str]]:
    """``a,b=(1, 2),(3, 4)`` -> the names and their values. A comma inside parentheses belongs to a value."""
    names, _, values = text.partition("=")
    return names.replace(" ", ""), re.split(r",(?![^(]*\))", values)


def record_and_build(
    tests: list[str], options: Any, calls: Path, bundle: Path, environment: dict[str, str]
) -> dict[str, float]:
    """Run the tests as they are, and build what they compiled; the seconds of both."""
    workers = ["-n", str(options.workers), "--dist", "loadgroup"] if options.workers else []
    aot = [sys.executable, "-m", "aot"]
    build = ["build", "-q", "--source", str(calls), "--arch", options.arch, "--no-archives", "--out", str(bundle)]
    return {
        "recording": timed([*aot, "capture", "--record", str(calls), "--", *tests, *workers], environment),
        "building": timed([*aot, *build], environment),
    }


def timed(command: list[str], environment: dict[str, str]) -> float:
    started = time.perf_counter()
    code = subprocess.run(command, env=environment).returncode
    print(f"exit code {code}: {' '.join(command[1:4])}", file=sys.stderr)
    return time.perf_counter() - started


def _counts(line: str) -> tuple[int, int]:
    """The kernels served and not found, of a line such as ``aot: 7 kernels served from `x`, 0 not found``."""
    words = line.split()
    return int(words[1]), int(words[words.index("not") - 1])


def _kernels(bundle: Path) -> int:
    return len(json.loads((bundle / "kernels.json").read_text())["kernels"])


if __name__ == "__main__":
    main()
