"""Tests marked ``torch``, ``jax``, ``gpu`` or ``compiler`` run in other processes than the rest.

Torch, JAX, CuPy and CuTe DSL load the real CUDA libraries if there are any, and TVM-FFI imports torch if it is installed.
A process that has the real CUDA libraries cannot play the stand-in, and one that plays the stand-in cannot run a kernel.
So one more pytest runs the marked tests of a file, and another one all tests marked ``compiler``. Their results are
reported here as if they had run here.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from once import folder_of_run, once
from without_frameworks import ALLOWED, COMPILER, RESULTS

# By mark: what its tests cannot do without.
NEEDED = {"torch": "torch", "gpu": "torch", "jax": "jax", "compiler": COMPILER}


@pytest.hookimpl(trylast=True)  # after -m and -k, which look at the marks of the tests that are replaced here
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A marked test whose framework is not installed stays in this process, which reports it as skipped."""
    if ALLOWED:
        return
    marks = [mark for mark, framework in NEEDED.items() if importlib.machinery.PathFinder.find_spec(framework)]
    items[:] = [_replaced(item) if any(map(item.get_closest_marker, marks)) else item for item in items]


def _replaced(item: pytest.Item) -> _Elsewhere:
    made: _Elsewhere = _Elsewhere.from_parent(item.parent, name=item.name)  # the same identifier
    made.group = "compiler" if item.get_closest_marker("compiler") else item.nodeid.partition("::")[0]
    return made


class _FailedElsewhereError(Exception):
    """Its text is what the other process reported."""


class _Elsewhere(pytest.Item):
    """A test that runs in a process that may import frameworks, together with the others of its group."""

    group: str

    def runtest(self) -> None:
        known: dict[str, Any] = self.session.__dict__.setdefault("results_with_frameworks", {})
        if self.nodeid not in known:
            known.update(_results(self))
        outcome, text = known[self.nodeid]
        if outcome == "skipped":
            pytest.skip(text)
        if outcome != "passed":
            raise _FailedElsewhereError(text)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, _FailedElsewhereError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, self.name


def _results(item: _Elsewhere) -> dict[str, tuple[str, str]]:
    """What became of the tests of a group. If several processes have some of them, the first one runs them all."""
    others = (other for other in item.session.items if isinstance(other, _Elsewhere) and other.group == item.group)
    names = [other.nodeid for other in others]
    factory: pytest.TempPathFactory = item.config._tmp_path_factory  # type: ignore[attr-defined]
    label = hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
    folder = once(
        folder_of_run(factory) / "with_frameworks" / label, lambda folder: _run(item.config, item.path, names, folder)
    )
    results: dict[str, tuple[str, str]] = json.loads((folder / "results.json").read_text())
    return results


def _run(config: pytest.Config, file: Path, names: list[str], folder: Path) -> None:
    """Run these tests in a process that may import frameworks. Every one of them has a result afterwards."""
    folder.mkdir()
    seen_there = folder / "seen.json"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *names]
    if file.parent.name == "gpu" and file.parents[1].name == "tests":  # the only folder that has the option
        command.append(f"--bundle={config.getoption('--bundle')}")
    done = subprocess.run(
        command,
        cwd=config.rootpath, env={**os.environ, RESULTS: str(seen_there)}, capture_output=True, text=True,
    )  # fmt: skip
    seen: dict[str, tuple[str, str]] = json.loads(seen_there.read_text()) if seen_there.exists() else {}
    lost = (
        "failed",
        f"the process with frameworks ended with {done.returncode}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}",
    )
    (folder / "results.json").write_text(json.dumps({name: seen.get(name, lost) for name in names}))


class _Recorder:
    """In the process that may import frameworks: the worst outcome of each test's phases."""

    def __init__(self) -> None:
        self.results: dict[str, tuple[str, str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed" or (report.when == "call" and report.nodeid not in self.results):
            self.results[report.nodeid] = (report.outcome, _text(report))

    def pytest_sessionfinish(self) -> None:
        Path(os.environ[RESULTS]).write_text(json.dumps(self.results))


def _text(report: pytest.TestReport) -> str:
    if report.skipped and isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    return report.longreprtext


def pytest_configure(config: pytest.Config) -> None:
    if ALLOWED:
        config.pluginmanager.register(_Recorder(), "recorder-with-frameworks")
