"""The scripts of `examples/capture`: each is captured and built, and a fresh process finds every call in the bundle.

Needs CuTe DSL, torch and the libraries, but no GPU. ``CUTLASS_CHECKOUT`` is a checkout of NVIDIA/cutlass:

    CUTLASS_CHECKOUT=~/cutlass python benchmarks/recipes.py --out results.json

``--recipe`` runs one of them, and ``--add`` keeps what the file of results has of the others.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _common import PROJECT, parser, print_rows, report
from aot_runtime.arch import Arch
from aot_runtime.serving.captured import CapturedCalls

from aot.bundle.manifest import Manifest
from aot.compile.messages import EXERCISE, Options
from aot.compile.process import Worker

RECIPES = {
    "quack_kernels": ("sm_90a", "sm_100f"),
    "flash_attention_4": ("sm_90a", "sm_100f"),
    "cutlass_examples": ("sm_80", "sm_90a", "sm_100f"),
    "kernel_contract": ("sm_90a", "sm_100f"),
    "flashinfer_kernels": ("sm_90a",),
    "liger_kernels": ("sm_90a",),
    "sglang_kernels": ("sm_90a",),
    "cudnn_kernels": ("sm_90a",),
    "vllm_kernels": ("sm_90a",),
    "torch_kernels": ("sm_90a",),
}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--recipe", action="append", choices=RECIPES, help="run this one, not all")
    arguments.add_argument("--add", action="store_true", help="keep the results of other recipes in the file")
    options = arguments.parse_args()
    known = json.loads(options.out.read_text())["results"] if options.add and options.out.is_file() else {}
    for recipe in options.recipe or RECIPES:
        known[recipe] = {arch: run(recipe, arch) for arch in RECIPES[recipe]}
        report("recipes", known, options.out, quiet=True)
    rows = [
        (recipe, arch, *(found[name] for name in COLUMNS))
        for recipe, archs in known.items()
        for arch, found in archs.items()
    ]
    print_rows(("recipe", "architecture", *COLUMNS), rows)
    if not all(is_complete(found) for archs in known.values() for found in archs.values()):
        sys.exit("not every call was captured, built and found again")


COLUMNS = ("calls", "captured", "built", "found again", "KB", "seconds")


def is_complete(found: dict[str, Any]) -> bool:
    return bool(found["calls"] == found["captured"] == found["built"] == found["found again"] > 0)


def run(recipe: str, arch: str) -> dict[str, Any]:
    """What became of the calls of a script: how many were captured and built, and found by another process."""
    script = PROJECT / "examples" / "capture" / f"{recipe}.py"
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / recipe
        command = ["capture", str(script), "--arch", arch, "--name", recipe, "--out", str(bundle), "--no-archives"]
        done = subprocess.run(
            [sys.executable, "-m", "aot", *command, "--json", "-q"], stdout=subprocess.PIPE, text=True
        )
        seconds = time.perf_counter() - started
        captured = json.loads(done.stdout).get("captured", {}) if done.stdout else {}
        built = read_calls(bundle) if (bundle / "manifest.json").is_file() else None
        calls, failures = called_again(script, arch, Path(folder))
        found = [call for call in calls if built is not None and is_served(built, call)]
        size = sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file()) if built is not None else 0
    counts = len(calls) + len(failures), len(captured), len(built.calls) if built is not None else 0, len(found)
    return dict(zip(COLUMNS, (*counts, size // 1000, round(seconds, 1)), strict=True))


def called_again(script: Path, arch: str, folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The calls of a script in a fresh process, with the library as it is, and why others could not be described."""
    worker = Worker(
        str(script), Arch.parse(arch), Options(source=EXERCISE), folder / "log", module="aot.capture.worker"
    )
    try:
        declared = worker.declared
    finally:
        worker.close()
    calls = [dict(kernel.captured) for kernel in declared.kernels if kernel.captured is not None]
    return calls, [failure.message for failure in declared.failures]


def read_calls(bundle: Path) -> CapturedCalls:
    return CapturedCalls(Manifest.read(bundle).kernels_content(), f"`{bundle}`")


def is_served(built: CapturedCalls, call: dict[str, Any]) -> bool:
    """Whether a bundle has a call by its key."""
    return built.find(call["key"]) is not None


if __name__ == "__main__":
    main()
