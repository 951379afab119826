"""Kernels are tuned on one set of shapes and reported on another: products of real models, and matrices of any size."""

from __future__ import annotations

import json
from typing import Any

import pytest
from places import PROJECT

SETS = ("gemm_tune", "gemm_report")
SMALL = 16  # rows; up to here, both sets may have the same number


def read(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((PROJECT / "benchmarks" / "shapes" / f"{name}.json").read_text())
    return data


def layers(config: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """``n`` and ``k`` of the products of a layer, for one of ``tensor_parallel`` GPUs."""
    share, attention = config["tensor_parallel"], config["heads"] * config["head_dim"]
    both = attention + 2 * config["kv_heads"] * config["head_dim"]
    gates = 2 if config["gated"] else 1
    return {
        "qkv": (both // share, config["hidden"]),
        "out": (config["hidden"], attention // share),
        "up": (gates * config["intermediate"] // share, config["hidden"]),
        "down": (config["hidden"], config["intermediate"] // share),
    }


def test_the_sets_share_no_model_and_no_number_of_rows() -> None:
    tune, report = (read(name) for name in SETS)
    assert not tune["models"].keys() & report["models"].keys()
    of_tune, of_report = ({problem[2] for problem in data["problems"]} for data in (tune, report))
    assert max(of_tune & of_report) <= SMALL


@pytest.mark.parametrize("name", SETS)
def test_a_set_has_ten_models_and_odd_numbers_of_rows_as_often_as_round_ones(name: str) -> None:
    data = read(name)
    rows = [problem[2] for problem in data["problems"]]
    assert len({problem[0] for problem in data["problems"]}) == len(data["models"]) >= 10
    assert (min(rows), max(rows) > 8192) == (1, True)
    assert 2 * sum(m % 2 for m in rows) == len(rows)
    assert len({tuple(problem[2:]) for problem in data["problems"]}) > 0.9 * len(rows)


@pytest.mark.parametrize("name", SETS)
def test_every_product_is_one_of_its_model(name: str) -> None:
    data = read(name)
    known = {model: layers(config) for model, config in data["models"].items()}
    for model, layer, _, n, k in data["problems"]:
        assert (n, k) == known[model][layer], (model, layer)
        assert n % 8 == 0 and k % 8 == 0


def test_the_sets_of_matrices_share_no_shape_and_have_odd_widths_too() -> None:
    tune, report = ([tuple(shape) for shape in read(name)["shapes"]] for name in ("rows_tune", "rows_report"))
    assert not set(tune) & set(report)
    for shapes in (tune, report):
        assert all(1 <= rows <= 65_536 and 64 <= columns <= 262_144 for rows, columns in shapes)
        assert max(rows * columns for rows, columns in shapes) <= 1 << 29
        assert 3 * sum(columns % 2 for _, columns in shapes) >= len(shapes) - 2


def test_the_sets_of_random_problems_share_none_and_have_odd_widths_and_all_dtypes() -> None:
    tune, report = ({tuple(problem) for problem in read(name)["problems"]} for name in ("rows_random", "rows_random2"))
    assert not tune & report
    for problems in (tune, report):
        assert len(problems) == 312
        assert all(1 <= rows <= 65_536 and 64 <= columns <= 262_144 for _, rows, columns, _ in problems)
        assert 2 * sum(columns % 2 for _, _, columns, _ in problems) == len(problems)
        assert {dtype for *_, dtype in problems} == {"f16", "bf16", "f32"}


def test_products_that_a_table_was_made_from_are_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PROJECT / "benchmarks"))
    import drawn

    monkeypatch.setattr(drawn, "timed", lambda: iter(()))
    first, *others = drawn.draw(7, 60)
    monkeypatch.setattr(drawn, "timed", lambda: iter([first[2:]]))
    assert drawn.draw(7, 59) == others
    monkeypatch.undo()
    monkeypatch.syspath_prepend(str(PROJECT / "benchmarks"))
    assert {len(extents) for extents in drawn.timed()} == {3}
