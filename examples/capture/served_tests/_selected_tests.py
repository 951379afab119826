"""A plugin of pytest for ``served_tests.py``: it selects tests by their parameters, and writes what became of them.

Values are left out before tests are made of them: some files have hundreds of thousands of combinations.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from _cases import counted, may_match

KEEP, RESULTS, TESTS, PROCESSES = "AOT_TESTS_KEEP", "AOT_TESTS_RESULTS", "AOT_TESTS", "AOT_TESTS_PROCESSES"
SHAPES = frozenset({"M", "seqlen_q", "seqlen_k", "seqlen", "num_splits"})  # these change no kernel
_found: dict[str, Any] = {"passed": 0, "failed": [], "skipped": Counter(), "deselected": Counter(), "cases": {}}
_settings: dict[str, Any] = json.loads(os.environ.get(KEEP, '{"keep": {}, "left_out": {}, "every": 1, "cases": {}}'))


def reason_to_leave_out(name: str, settings: dict[str, Any]) -> str:
    """Why a test is not run; empty if it is."""
    for test, reason in settings["left_out"].items():
        if name == test or name.startswith(f"{test}["):
            return str(reason)
    return ""


class Selection:
    """The values that a function of tests is run with, and how many combinations that leaves of how many."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.keep: dict[str, list[str]] = settings["keep"]
        self.before: list[int] = []
        self.after: list[int] = []
        self.reasons: list[str] = []

    def chosen(self, names: str, values: list[Any]) -> list[Any]:
        wanted = self.keep.get(names)
        kept = [value for value in values if wanted is None or shown(value) in wanted]
        self.before.append(len(values))
        self.after.append(len(kept))
        if wanted is not None and len(kept) < len(values):
            self.reasons.append(f"{names} is not {' or '.join(wanted)}")
        return kept

    def left_out(self) -> int:
        return math.prod(self.before) - math.prod(self.after)


def shown(value: Any) -> str:
    """A value as the command line has it."""
    values = getattr(value, "values", None)  # of `pytest.param`
    if isinstance(values, tuple):
        value = values[0] if len(values) == 1 else values
    return str(value)


class SelectedCases:
    """The cases of a function that the file of ``--cases`` selects."""

    def __init__(self, selected: dict[str, Any]) -> None:
        self.selected = selected
        self.parameters: dict[str, list[str]] = {}

    def remove_others(self, names: str, values: list[Any], calls: list[Any]) -> None:
        """Leave the cases out that no selection can match any more, now that some parameters have their values."""
        self.parameters[names] = list(map(shown, values))
        calls[:] = [call for call in calls if self._may_run(call.params)]

    def _may_run(self, params: dict[str, Any]) -> bool:
        known = {names: _together([params[name] for name in names.split(",")]) for names in self.parameters}
        return any(may_match(where, known) for where in self.selected["run"])

    def count(self, function: str) -> None:
        _found["cases"][function] = found = counted(self.selected, self.parameters)
        for entry in found["left_out"]:
            _found["deselected"][f"{function}: {entry['reason']}"] += entry["cases"]


def _together(values: list[Any]) -> str:
    return shown(values[0] if len(values) == 1 else tuple(values))


@pytest.hookimpl(hookwrapper=True)
def pytest_generate_tests(metafunc: Any) -> Iterator[None]:
    selection, parametrize = Selection(_settings), metafunc.parametrize
    selected = _settings["cases"].get(metafunc.function.__name__)
    cases = SelectedCases(selected) if selected is not None else None

    def with_chosen(names: Any, values: Any, *args: Any, **kwargs: Any) -> None:
        text = (names if isinstance(names, str) else ",".join(names)).replace(" ", "")
        chosen = selection.chosen(text, list(values))
        parametrize(names, chosen, *args, **kwargs)
        if cases is not None:
            cases.remove_others(text, chosen, metafunc._calls)

    metafunc.parametrize = with_chosen
    yield
    if cases is not None:
        cases.count(metafunc.function.__name__)
    if selection.reasons:
        reason = f"{metafunc.function.__name__}: {', '.join(selection.reasons)}: to keep the run short"
        _found["deselected"][reason] += selection.left_out()


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    every, chosen, others = _settings["every"], [], []
    numbers: Counter[str] = Counter()
    for item in items:
        function = item.name.partition("[")[0]
        reason = reason_to_leave_out(item.name, _settings)
        if not reason and every > 1:
            reason = "" if numbers[function] % every == 0 else f"not one of every {every}: to keep the run short"
            numbers[function] += 1
        (others if reason else chosen).append(item)
        _group(item)
        if reason:
            _found["deselected"][f"{function}: {reason}"] += 1
    items[:] = chosen
    config.hook.pytest_deselected(items=others)


def _group(item: Any) -> None:
    """Tests that compile the same kernels share a process, if there are several."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    kernels = {name: str(value) for name, value in parameters.items() if name not in SHAPES}
    item.add_marker(pytest.mark.xdist_group(f"{item.name.partition('[')[0]} {sorted(kernels.items())}"))


def pytest_runtest_logreport(report: Any) -> None:
    if report.failed:
        _found["failed"].append(report.nodeid)
    elif report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        _found["skipped"][reason] += 1
    elif report.when == "call":
        _found["passed"] += 1


def results() -> dict[str, Any]:
    """What this process found."""
    return _found


def add_results(others: dict[str, Any]) -> None:
    """Count what another process ran. Both have left out the same tests."""
    _found["passed"] += others["passed"]
    _found["failed"] += others["failed"]
    _found["skipped"].update(others["skipped"])


def pytest_sessionfinish() -> None:
    if RESULTS in os.environ:
        Path(os.environ[RESULTS]).write_text(json.dumps(_found, indent=1))
