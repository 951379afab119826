"""Running a library's own tests from a bundle: which are selected, and what the results say."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from places import PROJECT

SERVED = PROJECT / "examples" / "capture" / "served_tests"


@pytest.fixture
def served_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(SERVED)
    before = set(sys.modules)

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, SERVED / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    yield load
    for name in set(sys.modules) - before:
        if name in ("_cases", "_selected_tests"):
            del sys.modules[name]


def test_tests_are_selected_by_their_parameters_and_the_others_have_a_reason(served_module: Any) -> None:
    selected, tests = served_module("_selected_tests"), served_module("served_tests")
    keep = dict(map(tests.parsed_keep, ["N=1024,64", "seqlen_q, seqlen_k=(1, 1),(256, 256)"]))
    selection = selected.Selection({"keep": keep})
    assert selection.chosen("N", [64, 512, pytest.param(1024)]) == [64, pytest.param(1024)]
    assert selection.chosen("seqlen_q,seqlen_k", [(1, 1), (1, 2), (256, 256)]) == [(1, 1), (256, 256)]
    assert selection.chosen("M", [1, 2]) == [1, 2]
    assert selection.reasons == ["N is not 1024 or 64", "seqlen_q,seqlen_k is not (1, 1) or (256, 256)"]
    assert selection.left_out() == 3 * 3 * 2 - 2 * 2 * 2
    reason, settings = selected.reason_to_leave_out, {"left_out": {"test_tuned": "autotunes"}}
    assert reason("test_tuned[1024]", settings) == "autotunes"
    assert reason("test_tuned_more", settings) == ""


def test_every_case_is_run_or_has_a_reason(served_module: Any) -> None:
    cases = served_module("_cases")
    parameters = {"d": ["64", "128", "256"], "causal": ["False", "True"], "seqlen_q,seqlen_k": ["(1, 1)", "(3, 3)"]}
    long, rest = {"where": {"d": ["256"]}, "reason": "no memory"}, {"where": {}, "reason": "short"}
    selected = {"run": [{"d": ["64"]}, {"d": ["128"], "causal": ["True"]}], "left_out": [long, rest]}
    found = cases.counted(selected, parameters)
    assert found["cases"] == 12 and [entry["cases"] for entry in found["run"]] == [4, 2]
    assert [(entry["reason"], entry["cases"]) for entry in found["left_out"]] == [("no memory", 4), ("short", 2)]
    for run, words in (
        ([{"d": ["64"]}, {"causal": ["True"]}], "match the same cases"),
        ([{"d": ["63"]}], "no case has d=63"),
    ):
        with pytest.raises(ValueError, match=words):
            cases.counted({**selected, "run": run}, parameters)
    with pytest.raises(ValueError, match="2 cases are neither run nor"):
        cases.counted({**selected, "left_out": [long]}, parameters)


LENGTHS = {  # parameters that change no kernel
    "seqlen_q,seqlen_k", "varlen_mode", "zero_lengths_q,zero_lengths_k", "B", "min_seq_len", "max_seq_len", "softmax_scale",
}  # fmt: skip


def test_what_ran_of_flash_attention_4_is_what_the_file_of_results_says(served_module: Any) -> None:
    """Every case of the large functions ran or has a reason, and where the reason says so, every pair of values ran."""
    cases = served_module("_cases")
    selected = json.loads((SERVED / "fa4_cases.json").read_text())
    results = json.loads((SERVED / "fa4_results.json").read_text())["results"]
    assert results["cases"].keys() == selected.keys()
    for function, found in results["cases"].items():
        parameters, run = found["parameters"], selected[function]["run"]
        assert cases.counted(selected[function], parameters) == found
        ran = [run for run in results["runs"] if any(test.endswith(f"::{function}") for test in run["tests"])]
        counts = [one["passed"] + len(one["failed"]) + sum(one["skipped"].values()) for one in ran]
        assert sum(counts) == sum(entry["cases"] for entry in found["run"])
        if "every pair of values" not in found["left_out"][-1]["reason"]:
            continue
        skips = [entry["where"] for entry in found["left_out"] if "skips itself" in entry["reason"]]
        for one, other in itertools.combinations(parameters.keys() - LENGTHS, 2):
            for value, another in itertools.product(parameters[one], parameters[other]):
                pair = {one: [value], other: [another]}
                assert any(cases.size(cases.both(pair, where), parameters) for where in run) or any(
                    cases.both(pair, where) == pair for where in skips
                ), pair


SHARED = """
import os, pytest
@pytest.mark.parametrize("number", range(40))
def test_it(number):
    assert os.getpid() != int(os.environ["PARENT"])
    if number == 7:
        pytest.skip("seven")
    assert number != 30
@pytest.mark.parametrize("b, c", [(1, 1), (2, 2)])
@pytest.mark.parametrize("a", [1, 2, 3])
def test_cases(a, b, c):
    assert (a, b) in ((1, 1), (1, 2), (3, 2))
"""
CASES = {"run": [{"a": ["1"]}, {"a": ["3"], "b,c": ["(2, 2)"]}], "left_out": [{"where": {}, "reason": "short"}]}


def test_processes_share_the_selected_tests_and_each_runs_once(tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 9.0\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    (tmp_path / "test_shared.py").write_text(SHARED)
    settings = {"keep": {}, "left_out": {}, "every": 1, "cases": {"test_cases": CASES}}
    program = "import os, pytest, sys; os.environ['PARENT'] = str(os.getpid()); sys.exit(pytest.main(sys.argv[1:]))"
    plugins = ["-p", "_selected_tests", "-p", "_shared_tests", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    environment = {
        **os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(SERVED),
        "AOT_TESTS_PROCESSES": "2", "AOT_TESTS_RESULTS": str(tmp_path / "results.json"), "AOT_TESTS_KEEP": json.dumps(settings),
    }  # fmt: skip
    subprocess.run([sys.executable, "-c", program, "-s", *plugins, str(tmp_path)], env=environment, check=False)
    found = json.loads((tmp_path / "results.json").read_text())
    assert (found["passed"], found["skipped"]) == (38 + 3, {"Skipped: seven": 1})
    assert found["failed"] == ["test_shared.py::test_it[30]"]
    assert found["deselected"] == {"test_cases: short": 3}
    assert found["cases"]["test_cases"]["parameters"] == {"a": ["1", "2", "3"], "b,c": ["(1, 1)", "(2, 2)"]}


def test_the_line_of_a_served_process_is_counted(served_module: Any) -> None:
    tests = served_module("served_tests")
    line = "aot: 7 kernels served from `/a b/dist`, 2 not found, 0.50 ms each (process 12)"
    assert tests._counts(line) == (7, 2)


def test_a_run_is_sound_if_tests_passed_and_none_failed_or_missed(served_module: Any) -> None:
    complaint = served_module("served_tests").complaint
    sound = {"passed": 2, "failed": [], "served": [(3, 0)]}
    assert complaint(sound) is None
    assert complaint(sound | {"failed": ["test_it[1]"]}) == "not every test passed from the bundle alone"
    assert complaint(sound | {"served": [(3, 0), (2, 1)]}) == "not every test passed from the bundle alone"
    assert complaint(sound | {"passed": 0}) == "no test passed; pytest's output is above"
