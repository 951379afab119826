"""``--cpu-times=FILE``: the CPU seconds of every fixture's setup and of every test, as JSON.

CPU time hardly depends on what else the machine does, so that two runs can be compared. It covers the process of the
tests and those of its children that have ended; a child that stays is counted where it ends. ``count`` adds what others
than children spent.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

Seconds = dict[str, float]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-times", metavar="FILE", help="write the CPU seconds of fixtures and tests to FILE")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--cpu-times"):
        config.pluginmanager.register(_CpuTimes(config), "cpu-times-recorder")


_others = 0.0


def count(seconds: float) -> None:
    global _others
    _others += seconds


def _cpu() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system + _others


class _CpuTimes:
    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.fixtures: Seconds = defaultdict(float)
        self.tests: Seconds = defaultdict(float)
        self.inner = [0.0]  # what the fixtures inside each running one took, which is theirs and not its own
        self.started = _cpu()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        start = _cpu()
        self.inner.append(0.0)
        try:
            return (yield)
        finally:
            took = _cpu() - start
            name = f"{fixturedef.baseid}::{fixturedef.argname}" if fixturedef.baseid else fixturedef.argname
            self.fixtures[name] += took - self.inner.pop()
            self.inner[-1] += took

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        start = _cpu()
        self.inner.append(0.0)
        try:
            return (yield)
        finally:
            took = _cpu() - start
            self.tests[item.nodeid] += took - self.inner.pop()
            self.inner[-1] += took

    def pytest_testnodedown(self, node: Any) -> None:
        """A worker of pytest-xdist ended: its times are added to those of the others."""
        theirs = getattr(node, "workeroutput", {}).get("cpu_times", {})
        for ours, kind in ((self.fixtures, "fixtures"), (self.tests, "tests")):
            for name, seconds in theirs.get(kind, {}).items():
                ours[name] += seconds

    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """After each file, so that a run that is cut off leaves what it had."""
        if nextitem is None or nextitem.path != item.path:
            self.write()

    def pytest_sessionfinish(self) -> None:
        self.write()

    def write(self) -> None:
        times = {"fixtures": _sorted(self.fixtures), "tests": _sorted(self.tests)}
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["cpu_times"] = times
        else:
            report = {"total": round(_cpu() - self.started, 2), **times}
            Path(self.config.getoption("--cpu-times")).write_text(json.dumps(report, indent=1) + "\n")


def _sorted(seconds: Seconds) -> Seconds:
    """The largest first; what took no time that can be measured is left out."""
    return {name: round(took, 2) for name, took in sorted(seconds.items(), key=lambda one: -one[1]) if took >= 0.01}
