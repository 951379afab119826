"""The model counts waves, is fitted to times, and gives each device a table of the variants that a bundle has."""

from __future__ import annotations

import bisect
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from aot_runtime.arch import Arch

from aot.bundle.details import RequirementDetails, VariantDetails, WorkDetails
from aot.bundle.tables.models import ModelledKernel, ModelledSet, Models, models_text, read_source
from aot.bundle.tables.tuning import TunedDevice, Tuning, tuning_text
from aot.errors import UsageError
from aot.gpu.modelling import Times, models_of_times, read_models, read_times
from aot.gpu.tune import Measured
from aot.model.parts import Part, find_part, known_parts, named_parts

np = pytest.importorskip("numpy", reason="NumPy, of the extra `build`, is not installed")

from aot.model.bins import bins_for, usual_extents  # noqa: E402
from aot.model.fit import fit, numbers_like  # noqa: E402
from aot.model.tables import tables_of  # noqa: E402
from aot.model.times import clusters_at_once, counts_of, times_of  # noqa: E402

SM90 = Arch(9, 0, "a")
H200, H100 = (find_part(name) for name in ("H200", "H100"))
BY = ("m", "n", "k")
BYTES = "2 * (m * k + n * k + m * n)"
SMALL = WorkDetails({"m": 64, "n": 64}, {"k": 64}, BYTES, 1, 128)
LARGE = WorkDetails({"m": 128, "n": 256}, {"k": 64}, BYTES, 1, 1024)
TRUTH = {"small": (3.0, 0.5, 0.09, 0.02, 0.2, 0.22, 0.02), "large": (3.0, 1.0, 0.45, 0.1, 0.2, 0.22, 0.1)}


def variant(label: str, work: WorkDetails, *limits: RequirementDetails, dtype: str = "bf16") -> VariantDetails:
    by = {"m": "a.shape[0]", "n": "b.shape[0]", "k": "a.shape[1]"}
    return VariantDetails(
        f"gemm__{dtype}__{label}", "gemm", "gemm", {"dtype": dtype}, "", (), 0, (), limits, True, (), by, "", work
    )


VARIANTS = [variant("small", SMALL), variant("large", LARGE)]


def models(devices: Sequence[str] = (), bins: tuple[tuple[int, ...], ...] = ((65, 257), (1025,), (2049,))) -> Models:
    kernel = ModelledKernel("gemm", SM90, BY, (ModelledSet({}, bins, TRUTH),))
    assert H200 is not None
    return Models(H200.device, H200.clock, (kernel,), tuple(devices))


def test_one_tile_more_than_fits_costs_a_wave() -> None:
    part = Part("a GPU", "9.0", 132, 4814, 1980)
    tiles = {name: np.array([1, 1]) if name != "m" else np.array([132 * 64, 132 * 64 + 1]) for name in BY}
    counts = counts_of(SMALL, {"m": tiles["m"], "n": np.array([64, 64]), "k": np.array([64, 64])}, part)
    assert counts.waves.tolist() == [1, 2]
    assert [clusters_at_once(part, blocks) for blocks in (1, 2, 4, 8)] == [132, 66, 30, 15]


def test_numbers_are_found_again_from_the_times_that_they_give() -> None:
    assert H200 is not None
    chance = np.random.RandomState(0)
    calls = np.stack(
        [chance.randint(1, 4096, 300), 64 * chance.randint(4, 256, 300), 64 * chance.randint(4, 128, 300)], axis=1
    )
    counts = counts_of(SMALL, dict(zip(BY, calls.T.astype(float), strict=True)), H200)
    times = times_of(TRUTH["small"], counts)
    found = times_of(fit(SMALL, BY, calls, times, H200), counts)
    assert float(np.abs(np.log(found / times)).max()) < 0.1


def test_times_of_specs_that_no_table_would_choose_count_less() -> None:
    """A spec is a fifth slower than its model if another one is the fastest by far: it need not be told how much."""
    assert H200 is not None
    chance = np.random.RandomState(0)
    calls = np.stack([64 * chance.randint(1, extent, 300) for extent in (64, 128, 128)], axis=1)
    counts = counts_of(SMALL, dict(zip(BY, calls.T.astype(float), strict=True)), H200)
    times, near = times_of(TRUTH["small"], counts), np.arange(300) % 2 == 0
    least, measured = np.where(near, times, times / 4), np.where(near, times, times * 1.2)

    def error(found: tuple[float, ...]) -> float:
        return float(np.abs(np.log(times_of(found, counts) / times)[near]).mean())

    assert 3 * error(fit(SMALL, BY, calls, measured, H200, least)) < error(fit(SMALL, BY, calls, measured, H200))


def test_every_part_that_differs_gets_a_table_and_the_measured_one_says_so() -> None:
    tables = {tuning.device.name: tuning for tuning in tables_of(models(), {("gemm", SM90): VARIANTS})}
    assert {"NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA H20"} <= set(tables)
    assert "NVIDIA H800" not in tables, "it is what an H100 is"
    assert tables["NVIDIA H200"].kernels[0].measured_on == ""
    assert tables["NVIDIA H100 PCIe"].kernels[0].measured_on == "NVIDIA H200"


def test_few_results_take_small_tiles_and_many_take_large_ones() -> None:
    (tuning,) = tables_of(models(["NVIDIA H200"], ((65, 4097), (129, 8193), (2049,))), {("gemm", SM90): VARIANTS})
    one = tuning.kernels[0].sets[0]
    assert one.variants == ("gemm__bf16__small", "gemm__bf16__large")
    assert (one.cells[0], one.cells[-1]) == (0, 1)


def test_a_bundle_with_fewer_variants_gets_tables_of_those() -> None:
    third = variant("third", LARGE)
    with_unknown = [*VARIANTS, third, variant("small", SMALL, dtype="f16"), variant("large", LARGE, dtype="f16")]
    (tuning,) = tables_of(models(["NVIDIA H200"]), {("gemm", SM90): with_unknown})
    assert [one.variants for one in tuning.kernels[0].sets] == [
        ("gemm__bf16__small", "gemm__bf16__large"),
        ("gemm__f16__small", "gemm__f16__large"),
    ]
    assert not list(tables_of(models(["NVIDIA H200"]), {("gemm", SM90): VARIANTS[:1]})), "one variant is no choice"


def chosen(tuning: Tuning, *call: int) -> int:
    """The index of the variant that the first set names for a call."""
    one, cell = tuning.kernels[0].sets[0], 0
    for bins, extent in zip(one.bins, call, strict=True):
        cell = cell * (len(bins) + 1) + bisect.bisect_right(bins, extent)
    return one.cells[cell]


def test_no_cell_names_a_variant_that_does_not_take_all_of_its_calls() -> None:
    few = variant("small", SMALL, RequirementDetails("a.shape[0]", "extent", 0, 64, 0))
    (tuning,) = tables_of(models(["NVIDIA H200"], ((65, 100), (1025,), (2049,))), {("gemm", SM90): [few, VARIANTS[1]]})
    calls = [(n, k) for n in (1, 1025) for k in (1, 2049)]
    assert all(chosen(tuning, m, *call) == 1 for m in (65, 100) for call in calls)
    assert any(chosen(tuning, 1, *call) == 0 for call in calls)


def test_neighbouring_bins_with_the_same_answers_are_one() -> None:
    """One variant is always the best of these two: there is nothing to look up."""
    numbers = {"small": TRUTH["small"], "other": tuple(2 * number for number in TRUTH["small"])}
    given = models(["NVIDIA H200"])
    given = replace(
        given, models=(replace(given.models[0], sets=(replace(given.models[0].sets[0], numbers=numbers),)),)
    )
    (tuning,) = tables_of(given, {("gemm", SM90): [variant("small", SMALL), variant("other", SMALL)]})
    assert (tuning.kernels[0].sets[0].bins, tuning.kernels[0].sets[0].cells) == (((), (), ()), (0,))


def test_a_bin_keeps_the_variant_of_the_one_before_unless_another_is_noticeably_faster() -> None:
    def choices(share: float) -> set[int]:
        """Of a variant and one with another part of its time at the start, which is faster for more rows."""
        start, *others = TRUTH["small"]
        numbers = {"small": TRUTH["small"], "other": (start + 3, *(share * number for number in others))}
        given = models(["NVIDIA H200"], ((65, 4097), (8192,), (4096,)))
        one = replace(given.models[0].sets[0], numbers=numbers)
        given = replace(given, models=(replace(given.models[0], sets=(one,)),))
        (tuning,) = tables_of(given, {("gemm", SM90): [variant("small", SMALL), variant("other", SMALL)]})
        return set(tuning.kernels[0].sets[0].cells)

    assert choices(0.995) == {0} and choices(0.9) == {0, 1}


def tables_of_measured(slower: float, *more: tuple[int, int, int]) -> dict[str, Tuning]:
    """Of two variants, of which the second takes longer by the model, and won some calls."""
    numbers = {"small": TRUTH["small"], "other": tuple(slower * number for number in TRUTH["small"])}
    fastest = {"other": ((1, 64, 64), (300, 64, 64), *more), "small": ((300, 65, 64),)}
    given = models(["NVIDIA H200", "NVIDIA H100 PCIe"])
    one = replace(given.models[0].sets[0], numbers=numbers, fastest=fastest)
    given = replace(given, models=(replace(given.models[0], sets=(one,)),))
    tables = tables_of(given, {("gemm", SM90): [variant("small", SMALL), variant("other", SMALL)]})
    return {tuning.device.name: tuning for tuning in tables}


def test_what_was_measured_counts_more_than_the_model_on_its_own_device_alone() -> None:
    """A cell of which two variants won as many calls is left to the model."""
    tables = tables_of_measured(1.03)
    assert (chosen(tables["NVIDIA H200"], 1, 64, 64), chosen(tables["NVIDIA H100 PCIe"], 1, 64, 64)) == (1, 0)
    assert chosen(tables["NVIDIA H200"], 300, 64, 64) == 0


def test_a_cell_takes_what_won_most_of_its_measured_calls() -> None:
    assert chosen(tables_of_measured(1.03, (301, 66, 64))["NVIDIA H200"], 300, 64, 64) == 1


def test_one_measured_call_does_not_decide_for_a_cell_that_the_model_finds_far_slower() -> None:
    assert chosen(tables_of_measured(1.5)["NVIDIA H200"], 1, 64, 64) == 0


def test_bins_end_where_tiles_do_and_are_few_where_nothing_changes() -> None:
    assert H200 is not None
    calls = [(m, 128 * n, 64 * k) for m in (1, 77, 1000) for n in (3, 40, 99) for k in (8, 30, 200)]
    m, n, _ = bins_for(VARIANTS, TRUTH, calls, H200, room=1000)
    assert 50 < 2 * (len(m) + 1) * (len(n) + 1) <= 1000, "two bytes for each row of cells"
    assert all(start % 64 == 1 for start in m) and all(start % 128 == 1 for start in n)
    slower = {**TRUTH, "large": (1e4, *TRUTH["large"][1:])}
    alike = bins_for(VARIANTS, slower, calls, H200, room=5)
    assert math.prod(len(own) + 1 for own in alike) <= 8, "one of them is always the best"


def test_a_bin_ends_where_most_measured_calls_are() -> None:
    assert H200 is not None
    calls = [(m, 128 * n, 64 * k) for m in range(300, 4000, 100) for n in (3, 40, 99) for k in (8, 30, 200)]
    often = [(m, 768, 1024) for m in range(1, 4000, 7)]
    _, n, _ = bins_for(VARIANTS, TRUTH, [*calls, *often], H200, room=100)
    _, others, _ = bins_for(VARIANTS, TRUTH, calls, H200, room=100)
    assert 769 in n and 769 not in others


def test_the_usual_extent_of_a_bin_is_what_most_calls_have() -> None:
    ends = np.array([64, 128, 256])
    assert usual_extents(ends, [65, 65, 100, 130, 140, 300]).tolist() == [64, 65, 140], "of equals, the last one"
    assert usual_extents(ends, []).tolist() == ends.tolist()


def test_a_bin_ends_where_a_variant_takes_no_more() -> None:
    assert H200 is not None
    few = variant("small", SMALL, RequirementDetails("a.shape[0]", "extent", 0, 192, 0))
    calls = [(m, 128 * n, 64 * k) for m in (1, 77, 1000) for n in (3, 40, 99) for k in (8, 30, 200)]
    m, _, _ = bins_for([few, VARIANTS[1]], TRUTH, calls, H200, room=30)
    assert 193 in m


def test_axes_that_were_measured_at_one_value_do_not_matter(tmp_path: Path) -> None:
    assert H200 is not None
    shapes = [(16 * i, 256 * i, 128 * i) for i in range(1, 12)]
    measured = [
        Measured(
            "gemm",
            "sm_90a",
            "gemm",
            {"dtype": "bf16"},
            shape,
            "",
            {f"gemm__bf16__{label}": 10.0 + i for label in TRUTH},
        )
        for i, shape in enumerate(shapes)
    ]
    file = tmp_path / "times.json"
    device = {"name": "NVIDIA H200", "multiprocessors": 132, "capability": "9.0", "bandwidth": 4814}
    rows = [{**vars(one), "extents": list(one.extents), "chosen": ""} for one in measured]
    file.write_text(json.dumps({"device": device, "clock": 1980, "measured": rows, "untuned": []}))
    times = read_times([file])
    assert times == Times(TunedDevice("NVIDIA H200", 132, "9.0", 4814), 1980, tuple(measured))
    found = models_of_times(times, {SM90: VARIANTS}, ["NVIDIA H100 PCIe"])
    assert found.models[0].sets[0].point == {} and set(found.models[0].sets[0].numbers) == set(TRUTH)
    out = tmp_path / "models.json"
    out.write_text(models_text(found))
    read = read_source(out)
    assert isinstance(read, Models) and read.devices == ("NVIDIA H100 PCIe",)
    assert isinstance(next(iter(tables_of(read, {("gemm", SM90): VARIANTS}))), Tuning)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "schema 2"),
        ({"clock": 0}, "no such device"),
        ({"models": [{"kernel": "gemm", "arch": "sm_90a", "by": ["m"], "sets": [{"point": {}, "bins": [[]], "numbers": {"a": [1]}}]}]}, "7 finite numbers"),
        ({"models": [{"kernel": "gemm", "arch": "sm_90a", "by": ["m"], "sets": [{"point": {}, "bins": [], "numbers": {}}]}]}, "bins of m"),
    ],
)  # fmt: skip
def test_models_with_a_mistake_are_refused_in_one_line(tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = tmp_path / "models.json"
    path.write_text(json.dumps({**json.loads(models_text(models())), **change}))
    with pytest.raises(UsageError, match=message):
        read_source(path)


def test_a_device_that_nobody_knows_is_refused() -> None:
    with pytest.raises(UsageError, match="not a known GPU"):
        named_parts(["NVIDIA H1000"], "9.0")


def test_parts_are_found_by_name_and_by_capability() -> None:
    assert len({part.name for part in known_parts()}) == len(known_parts())
    found = [find_part(text) for text in ("H100 PCIe", "NVIDIA H20", "9.0", "A100")]
    assert [part and part.name for part in found] == ["NVIDIA H100 PCIe", "NVIDIA H20", "NVIDIA H100 80GB HBM3", None]


def test_a_call_counts_as_won_if_no_spec_that_was_not_timed_may_be_faster() -> None:
    shapes = [(16 * i, 256 * i, 128 * i) for i in range(1, 12)]
    times = {label: {f"gemm__bf16__{label}": took} for label, took in (("small", 10.0), ("large", 9.0))}
    measured = [
        Measured("gemm", "sm_90a", "gemm", {"dtype": "bf16"}, shape, "", {**times["small"], **times["large"]})
        for shape in shapes
    ]
    alone = Measured("gemm", "sm_90a", "gemm", {"dtype": "bf16"}, (100, 1000, 1000), "", times["small"])
    assert H200 is not None
    given = Times(H200.device, H200.clock, (*measured, alone))
    fastest = models_of_times(given, {SM90: VARIANTS}, ["NVIDIA H200"]).models[0].sets[0].fastest
    assert fastest == {"large": tuple(shapes)}


def measured_calls(shapes: list[tuple[int, ...]], took: dict[str, float], dtype: str = "bf16") -> tuple[Measured, ...]:
    times = {f"gemm__{dtype}__{label}": microseconds for label, microseconds in took.items()}
    return tuple(Measured("gemm", "sm_90a", "gemm", {"dtype": dtype}, shape, "", times) for shape in shapes)


def test_times_refine_models_and_leave_what_was_not_measured_again() -> None:
    assert H200 is not None
    shapes = [(16 * i, 256 * i, 128 * i) for i in range(1, 12)]
    first = models_of_times(
        Times(H200.device, H200.clock, measured_calls(shapes, {"small": 10.0, "large": 9.0})),
        {SM90: VARIANTS},
        ["NVIDIA H200"],
    )
    new = [(24 * i, 512, 256 * i) for i in range(1, 12)]
    again = Times(H200.device, H200.clock, measured_calls(new, {"small": 8.0}))
    refined = models_of_times(again, {SM90: VARIANTS}, known=first)
    before, after = first.models[0].sets[0], refined.models[0].sets[0]
    assert refined.devices == ("NVIDIA H200",)
    assert after.numbers["large"] == before.numbers["large"], "it was not measured again"
    assert after.numbers["small"] != before.numbers["small"]
    assert after.fastest["large"] == before.fastest["large"] == tuple(shapes)

    def error(models: Models) -> float:
        counts = counts_of(SMALL, dict(zip(BY, np.array(new).T, strict=True)), H200)  # type: ignore[arg-type]
        return float(np.abs(np.log(times_of(models.models[0].sets[0].numbers["small"], counts) / 8.0)).mean())

    assert error(refined) < error(first)


def refined_by_a_new_spec(took: float, rows: int = 2048) -> ModelledSet:
    """Models of two specs, and then a third, like the small one, that three calls were timed with."""
    assert H200 is not None
    shapes = [(16 * i, 256 * i, 128 * i) for i in range(1, 12)]
    first = models_of_times(
        Times(H200.device, H200.clock, measured_calls(shapes, {"small": 10.0, "large": 11.0})), {SM90: VARIANTS}
    )
    few = measured_calls([(rows, 512, 256 * i) for i in (2, 3, 4)], {"new": took, "large": 11.0})
    listed = {SM90: [*VARIANTS, variant("new", replace(SMALL, tile={"m": 72, "n": 64}, cycles=144))]}
    return models_of_times(Times(H200.device, H200.clock, few), listed, known=first).models[0].sets[0]


def test_a_new_spec_begins_with_the_numbers_of_those_most_like_it_and_needs_few_times() -> None:
    assert H200 is not None
    alike = replace(SMALL, tile={"m": 72, "n": 64}, cycles=144)
    numbers = numbers_like(alike, [(SMALL, TRUTH["small"]), (LARGE, TRUTH["large"])], H200)
    counts = counts_of(SMALL, {name: np.array([512.0]) for name in BY}, H200)
    assert 0.9 < times_of(numbers, counts)[0] / times_of(TRUTH["small"], counts)[0] < 1.5
    assert "new" in refined_by_a_new_spec(10.0).numbers, "three times are enough"


def test_earlier_wins_do_not_count_where_a_new_spec_is_faster() -> None:
    slow, fast = refined_by_a_new_spec(20.0), refined_by_a_new_spec(4.0)
    assert len(slow.fastest["small"]) == 11
    assert len(fast.fastest.get("small", ())) < 11


def test_earlier_wins_of_larger_calls_than_were_timed_again_still_count() -> None:
    found = refined_by_a_new_spec(4.0, rows=16).fastest["small"]
    assert {(16 * i, 256 * i, 128 * i) for i in range(3, 12)} <= set(found)


def test_models_of_another_gpu_or_of_other_points_are_not_refined() -> None:
    assert H200 is not None
    shapes = [(16 * i, 256 * i, 128 * i) for i in range(1, 12)]
    took = {"small": 10.0, "large": 9.0}
    known = models_of_times(Times(H200.device, H200.clock, measured_calls(shapes, took)), {SM90: VARIANTS})
    other = Times(TunedDevice("NVIDIA H100 PCIe", 114, "9.0", 2039), 1755, measured_calls(shapes, took))
    with pytest.raises(UsageError, match="fitted to times of NVIDIA H200"):
        models_of_times(other, {SM90: VARIANTS}, known=known)
    of_bf16 = replace(known.models[0].sets[0], point={"dtype": "bf16"})
    apart = replace(known, models=(replace(known.models[0], sets=(of_bf16,)),))
    of_f16 = Times(H200.device, H200.clock, measured_calls(shapes, took, dtype="f16"))
    with pytest.raises(UsageError, match="have none for f16"):
        models_of_times(of_f16, {SM90: VARIANTS}, known=apart)


def test_tables_that_were_measured_are_no_models(tmp_path: Path) -> None:
    path = tmp_path / "tables.json"
    path.write_text(tuning_text(Tuning(TunedDevice("NVIDIA H200", 132, "9.0", 4814), ())))
    with pytest.raises(UsageError, match="and no models"):
        read_models(path)


def test_a_small_tile_that_was_timed_on_few_rows_alone_is_not_taken_to_be_fast_for_many() -> None:
    """Few rows are a matter of memory. How fast small tiles multiply, they do not tell."""
    assert H200 is not None
    tiny = WorkDetails({"m": 16, "n": 128}, {"k": 64}, BYTES, 1, 64)
    calls = np.array([(16, 128 * n, 128 * k) for n in (20, 60, 100, 200) for k in (8, 20, 40, 100)])
    times = 4.0 + np.prod(calls[:, 1:], axis=1) * 2e-6 / 4.0
    many = {"m": np.array([8192.0]), "n": np.array([8192.0]), "k": np.array([8192.0])}
    tiny_time = times_of(fit(tiny, BY, calls, times, H200), counts_of(tiny, many, H200))
    assert tiny_time > 2 * times_of(TRUTH["large"], counts_of(LARGE, many, H200))
