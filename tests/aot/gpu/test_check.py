"""Checking judges results by the reference, says what no input reached, and writes down what passed."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aot_runtime.arch import Arch
from aot_runtime.core.explain import Candidate, Explanation
from aot_runtime.description.kernel_records import Choice, KernelRecord, Parameter

from aot.bundle.contracts import Contract
from aot.bundle.details import LaunchDetails, VariantDetails, details_text, read_details
from aot.bundle.manifest import Manifest
from aot.bundle.verifying.verify import verify
from aot.cli.main import main
from aot.cli.report import table
from aot.errors import BuildError, UsageError
from aot.gpu.check import check, compare, record, report_data, ulps_between
from aot.gpu.running import Gpu, make_outputs

CPU = Gpu("a CPU", (9, 0), "cpu")
LAUNCH = LaunchDetails("entry", 1, 0, 0, None, None, 0)


def variant(name: str, dtype: str) -> VariantDetails:
    return VariantDetails(name, "double", "double", {"dtype": dtype}, name, (name,), 1, (LAUNCH,), (), True)


class FakeBundle:
    """A bundle of one kernel, played by a Python function; vectors of even length go to one variant."""

    def __init__(self, path: Path, function: Callable[..., Any]) -> None:
        self.path, self.function = path, function
        parameters = (Parameter("x"), Parameter("out", output=True, shape="x.shape", dtype="x.dtype"))
        kernel = KernelRecord("double", "", parameters, (), ("double",), (Arch(9, 0, "a"),), 3)
        self.manifest = Manifest("fake", True, {"double": kernel}, {}, {})
        (path / "details").mkdir()
        variants = [variant("double__even", "f32"), variant("double__odd", "f32"), variant("double__never", "f32")]
        (path / "details/sm_90a.json").write_text(details_text(Arch(9, 0, "a"), variants))

    def __getitem__(self, name: str) -> Callable[..., Any]:
        assert name == "double"
        return self.function

    def explain(self, kernel: str, capability: object, x: Any, out: Any) -> Explanation:
        chosen = Candidate("sm_90a", "double__odd" if x.shape[0] % 2 else "double__even", "")
        return Explanation(chosen, (chosen,))


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for n in (0, 1, 2, 33):
        yield {"x": make.tensor((n,), dtype)}


DOUBLE = Contract(reference=lambda x: 2 * x.double(), inputs=inputs)


def good(x: Any, out: Any) -> None:
    out.copy_(2 * x)


def run(tmp_path: Path, function: Callable[..., Any]) -> Any:
    pytest.importorskip("torch", reason="checking needs torch")
    return check(FakeBundle(tmp_path, function), {"double": DOUBLE}, ["double", "other"], CPU)


@pytest.mark.torch
def test_a_right_kernel_passes_and_what_was_not_reached_is_said(tmp_path: Path) -> None:
    report = run(tmp_path, good)
    assert report.passed
    assert report.verified() == [("sm_90a", "double__even"), ("sm_90a", "double__odd")]
    assert report.unreached == (("sm_90a", "double__never"),)
    assert report.unchecked == ("other",)


@pytest.mark.torch
def test_every_variant_that_takes_a_call_can_be_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variants that selection does not choose run too: the wrong one among them is found by name."""
    pytest.importorskip("torch", reason="checking needs torch")
    bundle = FakeBundle(tmp_path, good)

    def explain(kernel: str, capability: object, x: Any, out: Any) -> Explanation:
        odd, even, never, other = (
            Candidate(arch, name, reason)
            for arch, name, reason in (
                ("sm_90a", "double__odd", ""),
                ("sm_90a", "double__even", ""),
                ("sm_90a", "double__never", ""),
                ("sm_80", "double__odd", ""),
            )
        )
        return Explanation(odd, (odd, even, never, other))

    def wrong(x: Any, out: Any) -> None:
        out.copy_(3 * x)

    def beside(x: Any, out: Any) -> None:  # the same numbers, and one more behind them
        good(x, out)
        out.as_strided((1,), (1,), out.storage_offset() + out.numel()).zero_()

    functions = {"double__even": wrong, "double__never": beside}
    monkeypatch.setattr(bundle, "explain", explain)
    monkeypatch.setattr("aot.gpu.check.variant_function", lambda of, kernel, name: functions[name])
    report = check(bundle, {"double": DOUBLE}, ["double"], CPU, every=True)
    assert [(one.variant, bool(one.problem)) for one in report.outcomes[-3:]] == [
        ("double__odd", False),
        ("double__even", True),
        ("double__never", True),
    ]
    assert "bytes beside the output" in report.outcomes[-1].problem
    assert report.verified() == [("sm_90a", "double__odd")]


@pytest.mark.torch
def test_a_check_of_one_function_asks_only_for_its_variants(tmp_path: Path) -> None:
    """A kernel of many variants is checked in several processes, each with one of its choices."""
    pytest.importorskip("torch", reason="checking needs torch")
    bundle = FakeBundle(tmp_path, lambda x, out, times: good(x, out))
    functions = ("double__once", "double__twice")
    parameters = bundle.manifest.kernels["double"].parameters
    choices = (Choice("times", ("once", "twice"), None, ""),)
    kernel = KernelRecord("double", "", parameters, choices, functions, (Arch(9, 0, "a"),), 2)
    bundle.manifest = Manifest("fake", True, {"double": kernel}, {}, {})
    variants = [dataclasses.replace(variant(name, "f32"), function=name) for name in functions]
    (tmp_path / "details/sm_90a.json").write_text(details_text(Arch(9, 0, "a"), variants))

    def explain(kernel: str, capability: object, x: Any, out: Any, times: str) -> Explanation:
        chosen = Candidate("sm_90a", f"double__{times}", "")
        return Explanation(chosen, (chosen,))

    bundle.explain = explain  # type: ignore[method-assign, assignment]
    contract = Contract(reference=lambda x, times: 2 * x.double(), inputs=inputs)
    report = check(bundle, {"double": contract}, ["double"], CPU, functions=functions[1:])
    assert {one.variant for one in report.outcomes} == {"double__twice"}
    assert report.passed and report.unreached == ()


@pytest.mark.torch
def test_an_element_that_was_not_written_is_a_failure(tmp_path: Path) -> None:
    report = run(tmp_path, lambda x, out: out[:-1].copy_(2 * x[:-1]))
    assert not report.passed
    assert "1 elements were not written" in report.outcomes[-1].problem


@pytest.mark.torch
def test_a_write_beside_the_output_is_a_failure(tmp_path: Path) -> None:
    def wild(x: Any, out: Any) -> None:
        good(x, out)
        out.as_strided((1,), (1,), out.storage_offset() + out.numel()).zero_()

    assert "beside the output" in run(tmp_path, wild).outcomes[-1].problem


@pytest.mark.torch
def test_a_wrong_variant_is_not_verified_but_the_others_are(tmp_path: Path) -> None:
    report = run(tmp_path, lambda x, out: out.copy_(x * (2.001 if len(x) % 2 else 2)))
    assert report.verified() == [("sm_90a", "double__even")]
    assert "of what f32 tolerates" in report.outcomes[1].problem


@pytest.mark.torch
def test_a_call_that_raises_is_a_failure_and_the_rest_goes_on(tmp_path: Path) -> None:
    def picky(x: Any, out: Any) -> None:
        if len(x) == 1:
            raise RuntimeError("no")
        good(x, out)

    report = run(tmp_path, picky)
    assert [bool(outcome.problem) for outcome in report.outcomes] == [False, True, False, False]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("result", "expected", "fine"),
    [
        ([1.0, float("nan")], [1.0, float("nan")], True),
        ([1.0, float("inf")], [1.0, float("inf")], True),
        ([1.0, float("-inf")], [1.0, float("inf")], False),
        ([1.0, float("inf")], [1.0, float("nan")], False),
        ([1.0, 2.0], [1.0, float("nan")], False),
        ([1.0, float("nan")], [1.0, 2.0], False),
        ([0.0, 0.0], [0.0, 0.0], True),
        ([1.0, 1e-7], [1.0, 0.0], True),
        ([1.0, 1e-3], [1.0, 0.0], False),
    ],
)
def test_nan_and_infinity_must_be_where_the_reference_has_them(result: Any, expected: Any, fine: bool) -> None:
    torch = pytest.importorskip("torch", reason="checking needs torch")
    problem, _, _ = compare(torch.tensor(result), torch.tensor(expected, dtype=torch.float64))
    assert (not problem) == fine


@pytest.mark.torch
def test_what_overflows_the_outputs_type_may_be_infinite() -> None:
    torch = pytest.importorskip("torch", reason="checking needs torch")
    overflown = torch.tensor([float("inf"), 1.0], dtype=torch.float16)
    assert compare(overflown, torch.tensor([1e6, 1.0], dtype=torch.float64))[0] == ""


def test_a_report_is_recorded_in_the_bundle_which_stays_sound(
    small_bundle_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = Path(shutil.copytree(small_bundle_path, tmp_path / "bundle"))
    first, second = read_details(bundle / "details/sm_80.json")[:2]
    data = {
        "machine": {"gpu": "NVIDIA Test", "date": "2026-01-02"},
        "verified": [
            {"arch": "sm_80", "variant": first.name, "cubin_sha256": list(first.cubin_sha256)},
            {"arch": "sm_80", "variant": second.name, "cubin_sha256": ["other code"]},
            {"arch": "sm_120f", "variant": "absent", "cubin_sha256": []},
        ],
    }
    assert record(bundle, data) == 1
    assert record(bundle, data) == 1
    assert verify(bundle) == []
    again = read_details(bundle / "details/sm_80.json")
    assert [v.verified_on for v in again[:2]] == [("NVIDIA Test 2026-01-02",), ()]
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]
    assert main(["inspect", str(bundle)]) == 0
    shown = capsys.readouterr().out
    assert re.search(rf"^sm_80 +\S+ +{len(again)}  1 on NVIDIA Test 2026-01-02$", shown, re.MULTILINE)
    assert re.search(rf"^sm_90a +\S+ +{len(again)}  never run on a GPU$", shown, re.MULTILINE)


REPORT: dict[str, Any] = {"machine": {"gpu": "NVIDIA Test", "date": "2026-01-02"}, "verified": []}


def test_a_report_does_not_make_altered_files_right(small_bundle_path: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(small_bundle_path, tmp_path / "bundle"))
    details = bundle / "details/sm_80.json"
    details.write_text(details.read_text().replace('"epilogue": "relu"', '"epilogue": "tanh"'))
    before = verify(bundle)
    assert before
    with pytest.raises(BuildError, match="not sound, and nothing was recorded"):
        record(bundle, {**REPORT, "verified": [{"arch": "sm_80", "variant": "x", "cubin_sha256": []}]})
    assert verify(bundle) == before


def test_no_command_changes_the_bundle_of_an_installed_package(
    small_bundle_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The package pins the manifest: it would load nothing from then on."""
    package = tmp_path / "small"
    package.mkdir()
    (package / "__init__.py").write_text("")
    bundle = Path(shutil.copytree(small_bundle_path, package / "_bundle"))
    manifest = (bundle / "manifest.json").read_bytes()
    report = tmp_path / "report.json"
    report.write_text(json.dumps(REPORT))
    for words in (["check", bundle, "--mark-verified", report], ["prune", bundle, "--arch", "sm_80"]):
        assert main([str(word) for word in words]) == 2
        assert "belongs to an installed package" in capsys.readouterr().err
    assert (bundle / "manifest.json").read_bytes() == manifest


@pytest.mark.torch
def test_a_report_round_trips_through_json(tmp_path: Path) -> None:
    report = run(tmp_path, good)
    data = json.loads(json.dumps(report_data(tmp_path, FakeBundleManifest, report)))
    assert data["passed"] and len(data["calls"]) == 4
    assert data["verified"][0] == {"arch": "sm_90a", "variant": "double__even", "cubin_sha256": ["double__even"]}


FakeBundleManifest: Any = SimpleNamespace(
    name="fake", files={}, archs=(Arch(9, 0, "a"),), kernels={"double": SimpleNamespace(archs=(Arch(9, 0, "a"),))}
)


@pytest.mark.parametrize("data", [{}, {"machine": {}}, {"machine": {"gpu": "x", "date": "y"}, "verified": [{}]}])
def test_what_is_no_report_is_refused(small_bundle_path: Path, data: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="not a report"):
        record(small_bundle_path, data)


@pytest.mark.parametrize(("shape", "dtype"), [("x.shape", "out.dtype"), ("out.shape", "f32")])
def test_an_output_that_only_the_caller_knows_is_refused(shape: str, dtype: str) -> None:
    parameters = (Parameter("x"), Parameter("out", output=True, shape=shape, dtype=dtype))
    record = KernelRecord("convert", "", parameters, (), ("convert",), (Arch(9, 0, "a"),), 1)
    with pytest.raises(UsageError, match="the caller picks the shape or dtype of out"):
        make_outputs(record, {"x": None}, "cpu")


@pytest.mark.torch
def test_an_output_of_a_dtype_that_the_caller_picks_gets_the_one_that_is_checked() -> None:
    torch = pytest.importorskip("torch", reason="outputs are torch's")
    parameters = (Parameter("x"), Parameter("out", output=True, shape="x.shape", dtype="out.dtype"))
    record = KernelRecord("convert", "", parameters, (), ("convert",), (Arch(9, 0, "a"),), 1)
    made = make_outputs(record, {"x": torch.zeros(3)}, "cpu", picked="f16")
    assert (made["out"].dtype, made["out"].shape) == (torch.float16, (3,))


@pytest.mark.torch
def test_an_optional_output_is_left_out_if_the_inputs_say_none() -> None:
    torch = pytest.importorskip("torch", reason="outputs are torch's")
    optional = Parameter("lse", output=True, shape="x.shape", dtype="f32", has_default=True)
    record = KernelRecord("k", "", (Parameter("x"), optional), (), ("k",), (Arch(9, 0, "a"),), 1)
    assert list(make_outputs(record, {"x": torch.zeros(2)}, "cpu")) == ["lse"]
    assert make_outputs(record, {"x": torch.zeros(2), "lse": None}, "cpu") == {}


def test_tables_align_numbers_to_the_right() -> None:
    assert table(("name", "us"), [("a", 1.5), ("bcdef", 10.25)]) == "name      us\na        1.5\nbcdef  10.25"


@pytest.mark.torch
def test_the_distance_in_units_in_the_last_place_is_that_of_the_results_dtype() -> None:
    torch = pytest.importorskip("torch", reason="checking needs torch")
    exact = torch.tensor([1.0, 1.5, -(2.0**-20), 2.0**-133, 1e39, 0.0], dtype=torch.float64)
    result = exact.to(torch.bfloat16)
    assert ulps_between(result, exact) == 0
    result[0] = 1 + 2.0**-7  # the next number
    assert ulps_between(result, exact) == 1
    result[0], result[2] = 1.0, -(2.0**-20) * (1 + 3 * 2.0**-7)
    assert ulps_between(result, exact) == 3
    result[2], result[3] = exact[2], 0.0  # the smallest number, and none
    assert ulps_between(result, exact) == 1
    assert ulps_between(torch.tensor([float("inf")]), torch.tensor([float("inf")], dtype=torch.float64)) == 0


@pytest.mark.torch
def test_an_element_that_is_too_many_units_away_fails_where_norms_pass(tmp_path: Path) -> None:
    """The largest element hides the error of a small one from a norm, but not from a bound on each."""
    torch = pytest.importorskip("torch", reason="checking needs torch")

    def small_is_wrong(x: Any, out: Any) -> None:
        out.copy_(2 * x)
        out[x == 2.0**-20] = 0.0

    values = torch.tensor([2.0**-20, 1024.0], dtype=torch.float32)
    contract = Contract(DOUBLE.reference, lambda make, dtype: [{"x": values}])
    strict = dataclasses.replace(contract, ulps=lambda x: 1.0)
    bundle = FakeBundle(tmp_path, small_is_wrong)
    assert check(bundle, {"double": contract}, ["double"], CPU).passed
    report = check(bundle, {"double": strict}, ["double"], CPU)
    assert [(o.problem, o.ulps) for o in report.outcomes] == [
        ("out: an element is 8.39e+06 units in the last place from exact, and 1 are allowed", 2.0**23)
    ]


@pytest.mark.torch
def test_a_contract_may_bound_the_error_of_each_element(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="checking needs torch")

    def coarse(x: Any, out: Any) -> None:
        out.copy_(2 * x + 0.25)

    values = torch.tensor([0.0, 1.0, 1024.0], dtype=torch.float32)
    contract = Contract(DOUBLE.reference, lambda make, dtype: [{"x": values}])
    bundle = FakeBundle(tmp_path, coarse)
    assert not check(bundle, {"double": contract}, ["double"], CPU).passed
    loose = dataclasses.replace(contract, bounds=lambda x: torch.full_like(x, 0.5))
    (outcome,) = check(bundle, {"double": loose}, ["double"], CPU).outcomes
    assert (outcome.problem, outcome.worst) == ("", 0.5)
    for bound in (0.125, 0.0):
        strict = dataclasses.replace(contract, bounds=lambda x, bound=bound: torch.full_like(x, bound))
        assert not check(bundle, {"double": strict}, ["double"], CPU).passed
