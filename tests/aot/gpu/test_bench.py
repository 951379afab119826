"""What benchmarks derive from their measurements, and how they show it."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from aot.cli.commands.bench import contenders, results_table
from aot.errors import UsageError
from aot.gpu.bench import Result, copies_beyond, read_results, results_data
from aot.gpu.plot import plot
from aot.gpu.running import Gpu

GPU = Gpu("a <GPU>", (9, 0))
RESULT = Result("add", "bf16", {}, "x 8x8, y 8x8", "add__v", {"aot": 10.0, "torch": 20.0}, 20_000, 100_000, 4e9)
PRODUCT = replace(RESULT, kernel="gemm", variant="gemm__v", operations=5_000_000)


@pytest.mark.parametrize(
    ("cache", "of_call", "memory", "copies"),
    [(50, 10, 1000, 10), (50, 1000, 10_000, 2), (50, 1000, 1500, 1), (50, 1000, 10, 1), (50, 0, 1000, 100)],
)
def test_buffers_exceed_the_cache_twice_and_memory_never(cache: int, of_call: int, memory: int, copies: int) -> None:
    assert copies_beyond(cache, of_call, memory) == copies


def test_bandwidth_and_ratios() -> None:
    assert RESULT.bandwidth == pytest.approx(2e9)
    assert RESULT.of_copy == pytest.approx(0.5)
    assert PRODUCT.teraflops == pytest.approx(0.5)
    assert (RESULT.counts_operations, PRODUCT.counts_operations) == (False, True)
    assert RESULT.speedup("torch") == 2
    assert RESULT.speedup("torch.compile") is None


def test_the_table_shows_what_was_not_measured_as_a_dash() -> None:
    header, row = results_table([RESULT], ["torch", "torch.compile"]).splitlines()
    assert header.split()[-1] == "variant"
    assert row.split()[-3:] == ["2.00", "-", "add__v"]


def test_the_table_shows_bytes_or_operations_whichever_count() -> None:
    _, bound_by_memory, bound_by_operations = results_table([RESULT, PRODUCT], ["torch"]).splitlines()
    assert bound_by_memory.split()[-5:] == ["2", "0.500", "-", "2.00", "add__v"]
    assert bound_by_operations.split()[-5:] == ["-", "-", "0.5", "2.00", "gemm__v"]


def test_a_contender_that_nobody_knows_is_refused() -> None:
    assert contenders(["torch", "torch.compile", "torch"]) == ("torch", "torch.compile")
    with pytest.raises(UsageError, match="cannot measure against 'jax'") as caught:
        contenders(["torch", "jax"])
    assert caught.value.hint == "known: torch, torch.compile, and the directories of other bundles"


def bars(picture: str) -> list[float]:
    """The widths, those of the legend left out."""
    rectangles = [e.attrib for e in ElementTree.fromstring(picture).iter() if e.tag.endswith("rect")]
    return [float(a["width"]) for a in rectangles if a.get("x") == "330.0" and float(a["y"]) > 20]


def test_the_plot_has_a_bar_per_contender_and_a_section_per_measure() -> None:
    compiled = replace(RESULT, microseconds={"aot": 10.0, "torch": 20.0, "torch.compile": 5.0})
    assert bars(plot("a <GPU>", [RESULT])) == [210.0, 105.0]
    assert bars(plot("a <GPU>", [PRODUCT])) == [420.0, 210.0]
    assert bars(plot("a <GPU>", [compiled, PRODUCT])) == [210.0, 105.0, 420.0, 420.0, 210.0]
    picture = plot("a <GPU>", [RESULT, PRODUCT])
    assert "fraction of a copy" in picture and "multiple of torch" in picture
    assert "multiple of torch" not in plot("a <GPU>", [RESULT])


def test_results_are_read_back_as_they_were_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.0"))  # which the machine's facts name
    path = tmp_path / "results.json"
    path.write_text(json.dumps(results_data(GPU, [RESULT, PRODUCT])))
    assert read_results(path) == (GPU.name, [RESULT, PRODUCT])


@pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 100_000, '{"machine": {"gpu": "x"}, "results": [{}]}'])
def test_what_is_no_result_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(text)
    with pytest.raises(UsageError, match="is not what `bench --out` writes"):
        read_results(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("microseconds", {"aot": 0.0}),
        ("microseconds", {"aot": float("nan")}),
        ("microseconds", {"aot": None}),
        ("microseconds", {"aot": 10.0, "torch": 0}),
        ("microseconds", {"torch": 10.0}),
        ("copy_bandwidth", 0),
        ("copy_bandwidth", float("inf")),
        ("bytes", -1),
        ("bytes", None),
        ("choices", ["relu"]),
    ],
)
def test_results_that_cannot_be_divided_by_are_refused(tmp_path: Path, name: str, value: object) -> None:
    path = tmp_path / "results.json"
    row = {**vars(RESULT), name: value}
    path.write_text(json.dumps({"machine": {"gpu": "H200"}, "results": [row]}))
    with pytest.raises(UsageError):
        read_results(path)
