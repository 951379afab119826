"""The score: CUTLASS's CuTe DSL examples as the scripts that they are, captured, built, and looked up by a fresh process.

Needs CuTe DSL, torch and a checkout of NVIDIA/cutlass, but no GPU. ``--libraries`` adds the scripts of `examples/capture`,
each of which needs its library:

    python benchmarks/scripts.py --checkout ~/cutlass --libraries --jobs 8 --out benchmarks/results/scripts.json

A script works if every call that it makes is captured and built for the script's architecture without an edit, and a
fresh process that runs the script again finds every one of them. ``--only`` runs those whose paths contain a text, and
``--add`` keeps what the file of results has of the others, and does not repeat what works. ``--table`` prints a file of results.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from _common import PROJECT, parser, print_rows, report
from aot_runtime.arch import Arch

from aot.compile.device.devices import library_variables

LIBRARIES = "libraries"
NO_KERNEL = "it compiles no code for a GPU"
FOLDERS = ("cute", "cute_ext", "dsl_tutorials")
# What a script is written for, by a part of its path; the first that fits.
ARCHS = {
    "sm103": "sm_103a",
    "blackwell_geforce": "sm_120a",
    "/blackwell/": "sm_100a",
    "iket": "sm_100a",
    "/ampere/": "sm_80",
    "": "sm_90a",
}
# Scripts that need the parts that are named, by a part of their paths. They are not run.
NEEDS = {"/distributed/": "several GPUs", "jax": "JAX with CUDA", "aot_use": "the output of another script"}
# Why a script cannot go on, by its path and a part of the error that it ends with.
EXPLAINED = {
    "cooperative_launch.py": ("AssertionError", "it expects that a launch fails, and an exercise launches nothing"),
    "export_to_c.py": ("gcc", "it links what CuTe DSL exports, and an exercise compiles nothing"),
    "aot_export.py": ("gcc", "it links what CuTe DSL exports, and an exercise compiles nothing"),
    "jit_argument.py": ("cmake", "CMake, and a C++ module that it builds"),
    "load_in_python.py": ("build/", "the output of another script"),
    "launch_completion": ("cudaEvent_t", "CuTe DSL passes no event through TVM-FFI"),
    "dense_gemm_ptr_array.py": ("incorrect number of operands", "CuTe DSL 4.8.1 compiles it without TVM-FFI alone"),
    "call_from_jit.py": ("c_void_p", "CuTe DSL passes no object of a class of the script's own through TVM-FFI"),
    "": ("compiled nothing for", NO_KERNEL),
}
_FOLDERS = re.compile(r"(?<![\w.])/(?:[\w.+-]+/)+")


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--checkout", type=Path, help="a checkout of NVIDIA/cutlass")
    arguments.add_argument("--jobs", type=int, default=2, help="scripts at a time (default: 2)")
    arguments.add_argument("--seconds", type=int, default=600, help="the longest that one may take (default: 600)")
    arguments.add_argument("--libraries", action="store_true", help="the scripts of examples/capture, too")
    arguments.add_argument("--only", default="", help="scripts whose paths contain this")
    arguments.add_argument(
        "--add", action="store_true", help="keep the file's results of other scripts, and of those that work"
    )
    arguments.add_argument("--table", type=Path, help="print this file of results, and run nothing")
    options = arguments.parse_args()
    if options.table is not None:
        return show(json.loads(options.table.read_text())["results"])
    listed = scripts(options.checkout / "examples" / "python" / "CuTeDSL") if options.checkout is not None else {}
    if options.libraries:
        listed |= {f"{LIBRARIES}/{path.name}": path for path in sorted((PROJECT / "examples" / "capture").glob("*.py"))}
    known = _kept(json.loads(options.out.read_text())) if options.add and options.out.is_file() else {}
    chosen = [name for name in listed if options.only in name and known.get(name, {}).get("verdict") != "works"]
    with ThreadPoolExecutor(options.jobs) as pool:
        for path, found in pool.map(lambda name: (name, run(listed[name], options.seconds)), chosen):
            known[path] = found
            report("scripts", dict(sorted(known.items())), options.out, quiet=True)
            print(path, found["verdict"], found["reason"][:200], flush=True)
    show(known)


def _kept(data: dict[str, Any]) -> dict[str, Any]:
    """Results of an earlier run, each with the commit that it was made with."""
    commit = data["machine"].get("commit", "")
    return {name: {"commit": commit, **one} for name, one in data["results"].items()}


def scripts(root: Path) -> dict[str, Path]:
    """The files that are programs, by their paths in a folder."""
    files = (path for folder in FOLDERS for path in (root / folder).rglob("*.py"))
    return {str(path.relative_to(root)): path for path in sorted(files) if "__main__" in path.read_text()}


def run(script: Path, seconds: int) -> dict[str, Any]:
    """What became of a script."""
    arch = next(arch for part, arch in ARCHS.items() if part in str(script))
    needed = next((text for part, text in NEEDS.items() if part in str(script)), None)
    if needed is not None:
        return {"arch": arch, "kernels": 0, "found": 0, "missed": 0, "verdict": "fails", "reason": needed, "seconds": 0}
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / "bundle"
        place = {"arch": arch, "bundle": bundle, "folder": folder, "seconds": seconds}
        try:
            captured = _captured(script, **place)
            looked_up = _looked_up(script, **place) if (bundle / "manifest.json").is_file() else {}
        except subprocess.TimeoutExpired:
            captured, looked_up = {"failures": [{"message": f"took more than {seconds} s"}]}, {}
    found = {
        "arch": arch,
        "kernels": len(captured.get("captured", {})),
        "found": looked_up.get("found", 0),
        "missed": len(looked_up.get("missed", ())),
    }
    reasons = [*(failure["message"] for failure in captured.get("failures", ())), *looked_up.get("missed", ())]
    reasons += filter(None, [looked_up.get("ended")])
    reason = _explained(script, reasons) or _short(reasons)
    return {
        **found,
        "verdict": verdict(found, reason),
        "reason": reason,
        "seconds": round(time.perf_counter() - started),
    }


def verdict(found: Mapping[str, Any], reason: str) -> str:
    if not found["kernels"]:
        return "fails"
    return "in part" if reason or found["missed"] or not found["found"] else "works"


def _explained(script: Path, reasons: list[str]) -> str:
    """The known reason why a script cannot go on, if it ended as that has it; nothing otherwise."""
    for part, (words, why) in EXPLAINED.items():
        if reasons and part in str(script) and words in reasons[0]:
            return why
    return ""


def _short(reasons: list[str]) -> str:
    """The first line of the first reason, without folders."""
    return _FOLDERS.sub("", reasons[0].strip().splitlines()[0])[:300] if reasons else ""


def _captured(script: Path, arch: str, bundle: Path, folder: str, seconds: int) -> dict[str, Any]:
    options = ["--arch", arch, "--name", "script", "--out", bundle, "--jobs", "1", "--no-archives", "--json", "-q"]
    command = [sys.executable, "-m", "aot", "capture", script, *options]
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, cwd=folder, timeout=seconds, env=_environment(arch)
    )
    try:
        result: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        result = {"failures": [{"message": done.stderr.strip() or f"exit code {done.returncode}"}]}
    if "error" in result and not result.get("failures"):
        result["failures"] = [{"message": str(result["error"]["message"])}]
    return result


def _looked_up(script: Path, arch: str, bundle: Path, folder: str, seconds: int) -> dict[str, Any]:
    command = [sys.executable, PROJECT / "benchmarks" / "_look_up.py", bundle, arch, script]
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, cwd=folder, timeout=seconds, env=_environment(arch)
    )
    try:
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        result = {"missed": [done.stderr.strip()[-300:] or f"exit code {done.returncode}"]}
    return result


def _environment(arch: str) -> dict[str, str]:
    return {**os.environ, **library_variables(Arch.parse(arch)), "CUTE_DSL_ARCH": arch, "CUDA_VISIBLE_DEVICES": ""}


def show(known: Mapping[str, Any]) -> None:
    print_rows(("script", "architecture", "kernels", "verdict", "reason"), list(_rows(known)))
    counts = Counter(found["verdict"] for found in known.values())
    print(", ".join(f"{counts[word]} {word}" for word in ("works", "in part", "fails")), f"of {len(known)}")


def _rows(known: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    for path, found in sorted(known.items()):
        yield path, found["arch"], found["kernels"], found["verdict"], found["reason"][:120]


if __name__ == "__main__":
    main()
