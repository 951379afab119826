"""The gallery: its files are what the declarations and the results say, and ratios are to the faster contender."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tools.gallery import page
from tools.gallery.comparisons import Comparison, comparisons
from tools.gallery.plot import plot
from tools.kernel_page import listed

_MACHINE = {"commit": "0" * 40, "gpu": "NVIDIA H200, 580"}


def _results(folder: Path) -> Path:
    made = {
        "h200-rows.json": {"times": {"add 2 x 3": {"ours": [1.0, 2.0], "torch.compile": [2.0, 4.0]}}},
        "h200-gemm-f32.json": {"exact": {"problems": []}, "TF32": {"problems": []}},
        "h200-attention.json": {
            "table": {"long": {"aot": 600, "cudnn": 300, "flash_attention_4": 500}, "odd": {"aot": 1}}
        },
        "h200-attention-decode.json": {"times": {}},
        "h200-mla-decode.json": {
            "shapes": {"B1": {"microseconds": {"aot": 20, "flash_mla": 10, "torch": 40}}},
            "drawn": {"B2": {"microseconds": {"aot": 20, "flash_mla": 30}}},
        },
        "h200-mla-decode-sparse.json": {"shapes": {}},
        "h200-training.json": {
            "losses": {"8 words": {"bundle": {"ms": 2}, "torch": {"ms": 4}, "torch.compile": {"ms": 3}}}
        },
    }
    scaled = ("scaled-tensor", "scaled-rows", "scaled-blocks", "grouped", "grouped-fp8")
    made |= {f"h200-{name}.json": {"problems": [["refused by torch", "tile", [1.0], []]]} for name in scaled}
    for name, results in made.items():
        (folder / name).write_text(json.dumps({"machine": _MACHINE, "results": results}))
    (folder / "h200-gemm-shapes.json").write_text(json.dumps({"machine": _MACHINE, "runs": []}))
    return folder


def test_a_ratio_is_to_the_fastest_contender_of_the_problem(tmp_path: Path) -> None:
    found = {one.kernel: one for one in comparisons(_results(tmp_path))}
    assert found.keys() == {"add", "attention", "mla_decode", "linear_cross_entropy"}, (
        "what has no contender is not compared"
    )
    assert found["add"].ratios == pytest.approx({"2 x 3": 2.0})
    assert found["attention"].ratios == pytest.approx({"long": 1.2})
    assert found["mla_decode"].ratios == pytest.approx({"B1": 0.5, "B2": 1.5})
    assert found["linear_cross_entropy"].ratios == pytest.approx({"8 words": 1.5})
    assert found["attention"].contenders == ("cuDNN", "FlashAttention-4")


def test_every_problem_is_a_dot_and_those_behind_are_marked() -> None:
    one = Comparison("k", "<bf16>", ("torch",), {"a": 0.2, "b": 0.94, "c": 1.3, "d": 40.0}, "f", "H200", "0" * 40)
    drawn = ElementTree.fromstring(plot("k", [one, one]))
    dots = [element for element in drawn.iter() if element.tag.endswith("circle")]
    assert len(dots) == 8
    assert sum(dot.get("class") == "behind" for dot in dots) == 4
    width = float(drawn.get("width", "0"))
    assert all(0 < float(dot.get("cx", "-1")) < width for dot in dots), "an outlier stands at the end of the axis"


def test_the_committed_gallery_is_what_the_results_say() -> None:
    pages = page.pages()
    assert {path: path.read_text() for path in pages if path.is_file()} == pages, "run `python tools/reference.py`"
    assert set(page.PLOTS.glob("*.svg")) == pages.keys() - {page.PAGE}, "a plot of no kernel"
    missing = [own["name"] for own in listed() if f"### `{own['name']}`" not in pages[page.PAGE]]
    assert not missing
