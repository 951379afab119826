"""Run what this kit holds, on the machine it is for, and write down what came out.

    python3 run.py [--results results.json]

Needs no network and installs nothing outside this folder: wheels are unpacked beside this file. What the
GPU tests need of the machine is a driver and torch. The results are rewritten after every step, so that
a run that is cut off leaves what it had.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KIT = Path(__file__).resolve().parent
TAIL = 4000  # characters of a step's output that are kept
SKIPPED = 77  # what a step ends with where this machine is not one it can run on; its last line says why
# What the results depend on, as the steps find it; prints JSON.
VERSIONS = """
import importlib.metadata, json
versions = {}
for name in ("apache-tvm-ffi", "numpy", "nvidia-cutlass-dsl", "pytest", "torch", "triton"):
    try:
        versions[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(versions))
"""


@dataclass
class Run:
    """One run of the kit."""

    plan: dict[str, Any]
    work: Path
    results: Path
    report: dict[str, Any] = field(default_factory=dict)

    def execute(self) -> int:
        unpack(sorted((KIT / "wheels").glob("*.whl")), self.work / "site")
        self.report = {
            "kit": {key: self.plan[key] for key in ("bundle", "host", "python", "made_with")},
            "machine": machine(self.environment()),
            "steps": [],
        }
        self.save()
        for step in self.plan["steps"]:
            self.report["steps"].append(self.step(step))
            self.save()
        passed = all(step["passed"] for step in self.report["steps"] if "skipped" not in step)
        self.report["passed"] = passed
        self.save()
        print(f"{'passed' if passed else 'FAILED'}: {self.results}", file=sys.stderr)
        return 0 if passed else 1

    def step(self, step: dict[str, Any]) -> dict[str, Any]:
        """Run one step in a process of its own; a time limit ends it, not the run."""
        missing = [tool for tool in step.get("tools", ()) if shutil.which(tool) is None]
        if missing:
            return skipped(step, f"not installed: {', '.join(missing)}")
        places = {"kit": str(KIT), "work": str(self.work), "python": sys.executable}
        command = [part.format(**places) for part in step["command"]]
        print(f"{step['name']}: {' '.join(command)}", file=sys.stderr, flush=True)
        started = time.monotonic()
        code, output = execute(command, self.environment(), float(step["timeout"]))
        if code == SKIPPED:
            return {**skipped(step, (output.strip().splitlines() or ["no reason given"])[-1]), "output": output[-TAIL:]}
        done = {
            "name": step["name"],
            "command": step["command"],
            "passed": code == 0,
            "returncode": code,
            "seconds": round(time.monotonic() - started, 3),
            "output": output[-TAIL:],
        }
        if "junit" in step:
            done["tests"] = read_junit(Path(step["junit"].format(**places)))
            # Where all are skipped nothing was shown.
            done["passed"] = code == 0 and any(test["outcome"] == "passed" for test in done["tests"])
        if "json" in step:
            done["results"] = read_json(Path(step["json"].format(**places)))
        print(output[-TAIL:], file=sys.stderr, flush=True)
        return done

    def environment(self) -> dict[str, str]:
        paths = [str(KIT), str(self.work / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]
        own = {
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # of what else is installed there
            "CUDA_DISABLE_PTX_JIT": "1",  # a bundle holds machine code, and must not lean on the driver's compiler
        }
        return {**os.environ, **own}

    def save(self) -> None:
        unfinished = self.results.with_name(self.results.name + ".partial")
        unfinished.write_text(json.dumps(self.report, indent=1) + "\n")
        unfinished.replace(self.results)


def skipped(step: dict[str, Any], reason: str) -> dict[str, Any]:
    print(f"{step['name']}: skipped: {reason}", file=sys.stderr, flush=True)
    return {"name": step["name"], "command": step["command"], "passed": False, "skipped": reason}


def execute(command: list[str], environment: dict[str, str], timeout: float) -> tuple[int, str]:
    try:
        done = subprocess.run(
            command, cwd=KIT, env=environment, timeout=timeout, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except subprocess.TimeoutExpired as error:
        return 124, (error.stdout or b"").decode(errors="replace") + f"\nended after {timeout:g} s"
    except OSError as error:
        return 127, f"{command[0]}: {error.strerror}"
    return done.returncode, done.stdout.decode(errors="replace")


def unpack(wheels: list[Path], site: Path) -> None:
    """Install without pip: these wheels are plain files, but for what lies in a ``.data`` folder."""
    shutil.rmtree(site, ignore_errors=True)
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    for data in site.glob("*.data"):
        for scheme in ("purelib", "platlib"):
            if (data / scheme).is_dir():
                shutil.copytree(data / scheme, site, dirs_exist_ok=True)


def machine(environment: dict[str, str]) -> dict[str, Any]:
    gpus = execute(
        ["nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"], environment, 60
    )
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": platform.machine(),
        "glibc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
        "gpus": gpus[1].strip().splitlines() if gpus[0] == 0 else [],
        "versions": json.loads(execute([sys.executable, "-c", VERSIONS], environment, 120)[1] or "{}"),
    }


def read_junit(path: Path) -> list[dict[str, Any]]:
    """Each test's name, outcome and time."""
    try:
        cases = ElementTree.parse(path).getroot().iter("testcase")
    except (OSError, ElementTree.ParseError):
        return []
    return [_case(case) for case in cases]


def _case(case: ElementTree.Element) -> dict[str, Any]:
    outcome = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
    found = {
        "name": f"{case.get('classname')}::{case.get('name')}",
        "outcome": "passed" if outcome is None else outcome.tag,
        "seconds": float(case.get("time") or 0),
    }
    return found if outcome is None else {**found, "message": (outcome.get("message") or "")[:TAIL]}


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def unsuitable(plan: dict[str, Any]) -> str | None:
    """Why this machine cannot run the kit, if it cannot."""
    host = f"{platform.machine()}-{sys.platform}-gnu"
    if host != plan["host"]:
        return f"this kit is for {plan['host']}, this machine is {host}; make one with `--host {platform.machine()}`"
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if python != plan["python"]:
        return f"this kit is for Python {plan['python']}, this is {python}; make one with `--python {python}`"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=KIT / "results.json", help="where the results go, as JSON")
    parser.add_argument("--work", type=Path, default=KIT / "work", help="a folder for what is unpacked and written")
    options = parser.parse_args()
    plan = json.loads((KIT / "kit.json").read_text())
    reason = unsuitable(plan)
    if reason is not None:
        print(f"error: {reason}", file=sys.stderr)
        return 2
    options.work.mkdir(parents=True, exist_ok=True)
    options.results.parent.mkdir(parents=True, exist_ok=True)
    return Run(plan, options.work.resolve(), options.results.resolve()).execute()


if __name__ == "__main__":
    sys.exit(main())
