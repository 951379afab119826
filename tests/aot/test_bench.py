"""What benchmarks derive from their measurements, and how they show it."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from aot.bench import Result, copies_beyond, plot
from aot.commands.bench import results_table
from aot.running import Gpu

GPU = Gpu("a <GPU>", (9, 0))
RESULT = Result("add", "bf16", {}, "x 8x8, y 8x8", "add__v", {"aot": 10.0, "torch": 20.0}, 20_000, 5_000_000, 4e9)


@pytest.mark.parametrize(
    ("cache", "of_call", "memory", "copies"),
    [(50, 10, 1000, 10), (50, 1000, 10_000, 2), (50, 1000, 1500, 1), (50, 1000, 10, 1), (50, 0, 1000, 100)],
)
def test_buffers_exceed_the_cache_twice_and_memory_never(cache: int, of_call: int, memory: int, copies: int) -> None:
    assert copies_beyond(cache, of_call, memory) == copies


def test_bandwidth_and_ratios() -> None:
    assert RESULT.bandwidth == pytest.approx(2e9)
    assert RESULT.of_copy == pytest.approx(0.5)
    assert RESULT.teraflops == pytest.approx(0.5)
    assert RESULT.speedup("torch") == 2
    assert RESULT.speedup("torch.compile") is None


def test_the_table_shows_what_was_not_measured_as_a_dash() -> None:
    header, row = results_table([RESULT], ["torch", "torch.compile"]).splitlines()
    assert header.split()[-1] == "variant"
    assert row.split()[-3:] == ["2.00", "-", "add__v"]


def test_the_plot_is_well_formed_and_has_a_bar_per_contender() -> None:
    root = ElementTree.fromstring(plot(GPU, [RESULT]))
    bars = [float(e.attrib["width"]) for e in root.iter() if e.tag.endswith("rect") and e.attrib.get("height") == "10"]
    assert sorted(bars)[-2:] == [105.0, 210.0]
