"""What the benchmarks share: facts about the machine, medians, results as JSON."""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent


def parser(description: str | None) -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(description=description)
    arguments.add_argument("--out", type=Path, help="write the results here, as JSON")
    return arguments


def load_example(folder: str, file: str) -> ModuleType:
    """A file of ``examples/``, which is in no package."""
    spec = importlib.util.spec_from_file_location(f"{folder}_example", PROJECT / "examples" / folder / file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def interleaved_samples(runs: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """A sample of each measurement per round. They take turns, so that a busy moment affects all of them."""
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            samples[name].append(run())
    return samples


def medians_of(samples: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in samples.items()}


def interleaved_medians(runs: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """The median of each measurement."""
    return medians_of(interleaved_samples(runs, rounds))


def paired_difference(samples: Mapping[str, list[float]], name: str, other: str) -> float:
    """The median of what one measurement takes more than another in the same round.

    If the clock of the processor changes from round to round, this changes less than the difference of two medians.
    """
    return statistics.median(one - two for one, two in zip(samples[name], samples[other], strict=True))


def machine_facts() -> dict[str, Any]:
    """Facts about the machine, and the versions that a result depends on."""
    names = (
        "cute-aot", "apache-tvm-ffi", "nvidia-cutlass-dsl", "torch", "triton", "ziglang", "quack-kernels", "flash-attn-4", "sgl-flash-mla",
    )  # fmt: skip
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": platform.machine(),
        "processor": _processor(),
        "python": platform.python_version(),
        "gpu": _gpu(),
        "versions": {name: version for name in names if (version := _version(name))},
        "commit": _output(["git", "-C", str(PROJECT), "rev-parse", "HEAD"]),
    }


def report(name: str, results: Any, out: Path | None, *, quiet: bool = False) -> None:
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps({"benchmark": name, "machine": machine_facts(), "results": results}, indent=1) + "\n")
        if not quiet:
            print(f"written to {out}", file=sys.stderr)


def print_rows(columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    cells = [columns, *[tuple(f"{item:.1f}" if isinstance(item, float) else str(item) for item in row) for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    for row in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _output(command: list[str]) -> str | None:
    try:
        result = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def _processor() -> str | None:
    for line in (_output(["lscpu"]) or "").splitlines():
        if line.startswith("Model name:"):
            return line.partition(":")[2].strip()
    return None


def _gpu() -> str | None:
    return _output(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"])
