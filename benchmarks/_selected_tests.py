"""A plugin of pytest for ``served_tests.py``: it selects tests by their parameters, and writes what became of them."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

KEEP, RESULTS = "AOT_TESTS_KEEP", "AOT_TESTS_RESULTS"
SHAPES = frozenset({"M", "seqlen_q", "seqlen_k", "seqlen", "num_splits"})  # these change no kernel
_found: dict[str, Any] = {"passed": 0, "failed": [], "skipped": Counter(), "deselected": Counter()}


def reason_to_leave_out(name: str, parameters: dict[str, Any], settings: dict[str, Any]) -> str:
    """Why a test is not run; empty if it is."""
    for test, reason in settings["left_out"].items():
        if name == test or name.startswith(f"{test}["):
            return str(reason)
    for parameter, values in settings["keep"].items():
        if parameter in parameters and str(parameters[parameter]) not in values:
            return f"{parameter} is not {' or '.join(values)}: to keep the run short"
    return ""


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    settings = json.loads(os.environ[KEEP])
    chosen, others = [], []
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        reason = reason_to_leave_out(item.name, parameters, settings)
        (others if reason else chosen).append(item)
        # Tests that compile the same kernels share a process, if there are several.
        kernels = {name: str(value) for name, value in parameters.items() if name not in SHAPES}
        item.add_marker(pytest.mark.xdist_group(f"{item.name.partition('[')[0]} {sorted(kernels.items())}"))
        if reason:
            _found["deselected"][f"{item.name.partition('[')[0]}: {reason}"] += 1
    items[:] = chosen
    config.hook.pytest_deselected(items=others)


def pytest_runtest_logreport(report: Any) -> None:
    if report.failed:
        _found["failed"].append(report.nodeid)
    elif report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        _found["skipped"][reason] += 1
    elif report.when == "call":
        _found["passed"] += 1


def pytest_sessionfinish() -> None:
    if RESULTS in os.environ:
        Path(os.environ[RESULTS]).write_text(json.dumps(_found, indent=1))
