"""Try a version of CuTe DSL: ``python tools/canary.py 4.8.1``.

Makes a fresh environment in a temporary folder, installs this project with exactly that version, and goes on until
something fails: the names that the builder imports, a bundle of the test samples, some of the shipped kernels, the
tests of compiling and calling. A version newer than all supported ones is tried with the newest module of
``aot/compile/dsl``. See ``docs/dev/cute-dsl-versions.md``.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Step", "first_failure", "main", "requirements", "steps"]

PROJECT = Path(__file__).resolve().parents[1]
DISTRIBUTION = "nvidia-cutlass-dsl"
ARCHS = "sm80,sm90,sm100"
TESTED_WITH = ("pytest>=8", "hypothesis>=6.100", "numpy>=1.26")
TESTS = ("tests/aot/compile", "tests/runtime/core/test_functions.py")
TAIL_LINES = 25


@dataclass(frozen=True)
class Step:
    """One command; the first that fails ends the run."""

    name: str
    command: Sequence[str]
    folder: Path = PROJECT
    environment: Mapping[str, str] = field(default_factory=dict)


def requirements(version: str, pyproject: str) -> list[str]:
    """What the project needs to build, with one version of CuTe DSL whatever the project allows."""
    project = tomllib.loads(pyproject)["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *extras["tools"], *extras["build"]]
    ours = (DISTRIBUTION, project["name"])  # the extra `build` names the extra `tools` of the project itself
    others = [item for item in asked if re.split(r"[^A-Za-z0-9._-]", item, maxsplit=1)[0] not in ours]
    return [*others, f"{DISTRIBUTION}=={version}"]


def steps(version: str, python: str, place: Path) -> list[Step]:
    """All that is done for a version, in this order."""
    inside = str(place / "venv" / "bin" / "python")
    wanted = [*requirements(version, (PROJECT / "pyproject.toml").read_text()), *TESTED_WITH]
    pip = [inside, "-m", "pip", "install", "-q"]
    build = [inside, "-m", "aot", "build", "--cache", "none", "--no-archives", "--arch", ARCHS]
    samples, kernels = PROJECT / "tests" / "samples", PROJECT / "tests" / "kernels" / "products" / "small_gemm.py"
    settings = {"AOT_CACHE": "none", "PYTHONPATH": str(PROJECT)}
    return [
        Step("environment", [python, "-m", "venv", str(place / "venv")]),
        Step("install CuTe DSL", [*pip, *wanted]),
        Step("install the project", [*pip, "--no-deps", str(PROJECT)]),
        Step("names", [inside, "-m", "aot.compile.dsl"], place, settings),
        Step("samples", [*build, "--source", str(samples), "--out", str(place / "samples")], place, settings),
        Step("kernels", [*build, "--source", str(kernels), "--out", str(place / "gemm")], place, settings),
        Step("tests", [inside, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *TESTS], PROJECT, settings),
    ]


def first_failure(planned: Iterable[Step], log: Path) -> str | None:
    """Run the steps and print each; what the first one that fails has to say, or None if none does."""
    for step in planned:
        started = time.monotonic()
        with open(log, "wb") as output:
            environment = {**os.environ, **step.environment}
            done = subprocess.run(
                step.command, cwd=step.folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        result = "ok" if done.returncode == 0 else f"FAILED with exit code {done.returncode}"
        print(f"  {step.name:20} {time.monotonic() - started:6.0f} s  {result}", flush=True)
        if done.returncode != 0:
            return f"{step.name}: {_reason(log.read_text(errors='replace'))}"
    return None


def _reason(text: str) -> str:
    """Missing names if there are any, else how the output ends."""
    missing = [line for line in text.splitlines() if line.startswith("missing function ")]
    return ", ".join(missing) or "\n" + "\n".join(text.splitlines()[-TAIL_LINES:])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Try a version of CuTe DSL: build and test with it in a fresh environment."
    )
    parser.add_argument("version", help="a version of nvidia-cutlass-dsl, like 4.8.1")
    parser.add_argument("--python", default=sys.executable, help="the Python of the environment (default: this one)")
    chosen = parser.parse_args(arguments)
    print(f"CuTe DSL {chosen.version}", flush=True)
    with tempfile.TemporaryDirectory(prefix="aot-canary-") as place:
        failure = first_failure(steps(chosen.version, chosen.python, Path(place)), Path(place) / "log")
        hint = "\n\nhint: see docs/dev/cute-dsl-versions.md"
        result = "works" if failure is None else f"failed first at {failure}{hint}"
        print(f"CuTe DSL {chosen.version} {result}", flush=True)  # before the folder is removed, which takes a while
    return 0 if failure is None else 1


if __name__ == "__main__":
    sys.exit(main())
