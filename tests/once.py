"""What the processes of one run of the tests make together, once. Nothing here outlives the run, unless it is told to."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

__all__ = ["folder_of_run", "once"]


def folder_of_run(factory: pytest.TempPathFactory) -> Path:
    """A folder that the processes of this run share; a worker of pytest-xdist has its own folder inside the run's.

    ``AOT_TESTS_RUN`` names one that an earlier run has filled, for `tools/mutants`, which runs a few tests many times.
    """
    if kept := os.environ.get("AOT_TESTS_RUN"):
        return Path(kept)
    own = factory.getbasetemp()
    return (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "shared"


def once(path: Path, make: Callable[[Path], object]) -> Path:
    """``path``, made by the first process that asks for it; the others wait. After a failure the next one tries."""
    path.parent.mkdir(parents=True, exist_ok=True)
    finished = path.with_name(f"{path.name}.finished")
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not finished.exists():
            shutil.rmtree(path, ignore_errors=True)
            make(path)
            finished.touch()
    return path
