"""Tuning leaves out what disagrees with the contract, keeps what is the fastest, and turns calls into bins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aot_runtime.arch import Arch
from aot_runtime.core.explain import Candidate, Explanation
from aot_runtime.description.kernel_records import KernelRecord, Parameter
from hypothesis import given
from hypothesis import strategies as st

from aot.bundle.contracts import Contract
from aot.bundle.details import LaunchDetails, VariantDetails, WorkDetails, details_text
from aot.bundle.manifest import Manifest
from aot.bundle.tables.tuning import LeftOut
from aot.cli.main import main
from aot.errors import UsageError
from aot.gpu.running import Gpu
from aot.gpu.tune import Measured, TuneReport, bins_of, tune

CPU = Gpu("a CPU", (9, 0), "cpu", multiprocessors=2)
SM90 = Arch(9, 0, "a")
LAUNCH = LaunchDetails("entry", 1, 0, 0, None, None, 0)


def variant(name: str, *, tuned: bool = True) -> VariantDetails:
    by = {"n": "x.shape[0]"} if tuned else {}
    return VariantDetails(name, "double", "double", {"dtype": "f32"}, name, (name,), 1, (LAUNCH,), (), True, (), by)


class FakeBundle:
    """A bundle of one kernel with several specs, played by Python functions. The first spec runs without a table."""

    def __init__(self, path: Path, specs: Mapping[str, Callable[..., Any]], *, tuned: bool = True) -> None:
        self.path, self.specs = path, specs
        parameters = (Parameter("x"), Parameter("out", output=True, shape="x.shape", dtype="x.dtype"))
        self.kernel = KernelRecord("double", "", parameters, (), ("double",), (SM90,), len(specs))
        self.manifest = Manifest("fake", True, {"double": self.kernel}, {}, {})
        (path / "details").mkdir()
        variants = [variant(f"double__{name}", tuned=tuned) for name in specs]
        (path / "details/sm_90a.json").write_text(details_text(SM90, variants))

    def _record(self, name: str) -> KernelRecord:
        return self.kernel

    def _symbol(self, name: str) -> Callable[..., Any]:
        assert name == "aot__run_variant"
        return lambda function, variant, *values: self.specs[variant.removeprefix("double__")](*values)

    def explain(self, kernel: str, capability: object, x: Any, out: Any) -> Explanation:
        assert capability == (9, 0), "without the name of the device: no table may decide what runs without a table"
        takes = [name for name in self.specs if name != "long" or x.shape[0] >= 8]
        candidates = tuple(Candidate("sm_90a", f"double__{name}", "") for name in takes)
        return Explanation(candidates[0], candidates)


def good(x: Any, out: Any) -> None:
    out.copy_(2 * x)


def wrong(x: Any, out: Any) -> None:
    out.copy_(3 * x)


def vectors(*lengths: int) -> Callable[..., Iterator[dict[str, Any]]]:
    return lambda make, dtype: ({"x": make.tensor((n,), dtype)} for n in lengths)


def contract(checked: tuple[int, ...] = (1, 33), tuned: tuple[int, ...] = (4, 64, 1000)) -> Contract:
    return Contract(lambda x: 2 * x.double(), vectors(*checked), tune_inputs=vectors(*tuned))


def timer(costs: Mapping[str, Callable[[int], float]]) -> Callable[..., dict[str, float]]:
    """Plays the measurements: a time for each spec, by the length of the vector."""

    def time(functions: Mapping[str, Any], record: Any, arguments: Any, choices: Any, gpu: Gpu, rounds: int) -> Any:
        return {name: costs[name.removeprefix("double__")](arguments["x"].shape[0]) for name in functions}

    return time


def run(tmp_path: Path, specs: Mapping[str, Callable[..., Any]], costs: Any, **more: Any) -> TuneReport:
    pytest.importorskip("torch", reason="tuning needs torch")
    bundle = FakeBundle(tmp_path, specs)
    return tune(bundle, {"double": more.pop("contract", contract())}, ["double"], CPU, time=timer(costs), **more)


COSTS = {"usual": lambda n: 10.0, "short": lambda n: n / 4, "wrong": lambda n: 0.1, "long": lambda n: 9.0}


@pytest.mark.torch
def test_each_length_gets_the_spec_that_is_the_fastest_for_it(tmp_path: Path) -> None:
    report = run(tmp_path, {"usual": good, "short": good, "long": good}, COSTS)
    (table,) = report.tuning.kernels
    (found,) = table.sets
    assert (report.tuning.device.name, report.tuning.device.multiprocessors) == ("a CPU", 2)
    assert (table.kernel, table.arch, table.by) == ("double", SM90, ("n",))
    assert (found.function, found.point) == ("double", {"dtype": "f32"})
    assert found.variants == ("double__usual", "double__short", "double__long")
    # At 4 `short` wins, from 64 on `long`; the bin of 64 begins at the geometric mean of 4 and 64.
    assert (found.bins, found.cells) == (((17,),), (1, 2))


@pytest.mark.torch
def test_a_spec_that_disagrees_with_the_contract_is_left_out_by_name(tmp_path: Path) -> None:
    report = run(tmp_path, {"usual": good, "wrong": wrong}, COSTS)
    (table,) = report.tuning.kernels
    assert [item.variant for item in table.left_out] == ["double__wrong"]
    assert "of what f32 tolerates" in table.left_out[0].reason
    assert table.sets[0].variants == ("double__usual", "double__wrong"), "a call may still come to it by preference"
    assert set(table.sets[0].cells) == {0}
    assert all(set(one.microseconds) == {"double__usual"} for one in report.measured)


@pytest.mark.torch
def test_a_spec_beyond_the_units_that_the_contract_allows_is_left_out(tmp_path: Path) -> None:
    def rough(x: Any, out: Any) -> None:
        out.copy_(2 * x * (1 + 2**-21))  # within the tolerance, two or more units from exact

    strict = replace(contract(), ulps=lambda x: 1.0)
    report = run(tmp_path, {"usual": good, "wrong": rough}, COSTS, contract=strict)
    (left,) = report.tuning.kernels[0].left_out
    assert left.variant == "double__wrong"
    assert "units in the last place from exact, and 1 are allowed" in left.reason


@pytest.mark.torch
def test_a_spec_that_no_input_of_the_contract_reaches_is_left_out(tmp_path: Path) -> None:
    report = run(tmp_path, {"usual": good, "long": good}, COSTS, contract=contract(checked=(1, 2)))
    assert report.tuning.kernels[0].left_out == (LeftOut("double__long", "no input of the contract reaches it"),)


@pytest.mark.torch
def test_a_spec_that_raises_is_left_out(tmp_path: Path) -> None:
    def raises(x: Any, out: Any) -> None:
        raise RuntimeError("launch failed\nwith more lines")

    report = run(tmp_path, {"usual": good, "wrong": raises}, COSTS)
    assert report.tuning.kernels[0].left_out == (LeftOut("double__wrong", "RuntimeError: launch failed"),)


@pytest.mark.torch
def test_a_bundle_without_anything_to_tune_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="tuning needs torch")
    with pytest.raises(UsageError, match="nothing to tune: double declares no `tuned_by`"):
        tune(FakeBundle(tmp_path, {"usual": good}, tuned=False), {"double": contract()}, ["double"], CPU)


def test_a_spec_must_be_clearly_faster_than_the_usual_one() -> None:
    def chosen(**times: float) -> str:
        return Measured("double", "sm_90a", "double", {}, (1,), "usual", times).chosen

    assert chosen(usual=1.0, other=0.99) == "usual"
    assert chosen(usual=1.0, other=0.97) == "other"
    assert chosen(other=1.0, third=2.0) == "other", "the usual one was left out"


def test_the_command_needs_a_file_and_a_gpu(
    tmp_path: Path, small_bundle_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["tune", str(small_bundle_path)]) == 2
    assert "error: `tune` needs a file for its tables\n\nhint: pass `--out h200.json`\n" in capsys.readouterr().err
    monkeypatch.setitem(__import__("sys").modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_available=bool)))
    assert main(["tune", str(small_bundle_path), "--out", str(tmp_path / "t.json")]) == 2
    assert "error: `tune` needs an NVIDIA GPU, and torch finds none" in capsys.readouterr().err
    assert not (tmp_path / "t.json").exists()


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path, small_bundle_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = tmp_path / "absent" / "t.json"
    for arguments in (["tune", "--out"], ["check", "--out"], ["bench", "--out"], ["bench", "--plot"]):
        command, option = arguments
        assert main([command, str(small_bundle_path), option, str(absent)]) == 2
        message = f"error: there is no folder `{absent.parent}` for `{option} {absent}`\n\nhint: make it first\n"
        assert message in capsys.readouterr().err
        assert main([command, str(small_bundle_path), option, str(tmp_path)]) == 2
        assert f"error: `{option} {tmp_path}` is a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--device", "H2000"), "not a known GPU of compute capability 9.0: 'H2000'"),
        ((), "double is measured, and gemm modelled by its `work`"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is_measured(
    words: tuple[str, ...],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = WorkDetails({"n": 1}, {}, "n", 1, 1)
    both = [variant("double__a"), replace(variant("gemm__a"), kernel="gemm", work=work)]
    bundle = SimpleNamespace(manifest=None)
    opened = SimpleNamespace(bundle=bundle, kernels=["double", "gemm"], gpu=CPU, contracts={})
    monkeypatch.setattr("aot.cli.commands.tune.open_to_run", lambda *_: opened)
    monkeypatch.setattr("aot.cli.commands.tune.variants_of", lambda *_: {SM90: both})
    monkeypatch.setattr("aot.cli.commands.tune.tune", None)  # nothing is measured
    assert main(["tune", "bundle", "--out", str(tmp_path / "t.json"), *words]) == 2
    assert f"error: {said}" in capsys.readouterr().err


# Bins


def looked_up(bins: Any, cells: Any, where: tuple[int, ...]) -> int:
    """As C looks it up."""
    cell = 0
    for value, bounds in zip(where, bins, strict=True):
        cell = cell * (len(bounds) + 1) + sum(bound <= value for bound in bounds)
    return int(cells[cell])


extents = st.integers(0, 5000)


@given(st.integers(1, 3).flatmap(lambda n: st.dictionaries(st.tuples(*[extents] * n), st.integers(0, 3), min_size=1)))
def test_every_call_that_was_measured_finds_its_own_answer(fastest: dict[tuple[int, ...], int]) -> None:
    small = dict(list(fastest.items())[:12])
    bins, cells = bins_of(small)
    assert {where: looked_up(bins, cells, where) for where in small} == small


def test_what_was_not_measured_takes_the_answer_of_the_nearest_call() -> None:
    bins, cells = bins_of({(16, 4096): 0, (4096, 4096): 1, (4096, 64): 2})
    assert looked_up(bins, cells, (100, 4096)) == 0
    assert looked_up(bins, cells, (1000, 4096)) == 1
    assert looked_up(bins, cells, (2**40, 2**40)) == 1
    assert looked_up(bins, cells, (3000, 100)) == 2


def test_bins_with_the_same_answers_are_one() -> None:
    assert bins_of({(n,): int(n >= 64) for n in (1, 2, 4, 8, 64, 128, 256)}) == (((23,),), (0, 1))
    assert bins_of({(n, m): 3 for n in (1, 2) for m in (1, 2)}) == (((), ()), (3,))


def test_too_many_different_extents_are_refused() -> None:
    with pytest.raises(UsageError, match="600 x 600 different extents, too many combinations"):
        bins_of({(n, n): 0 for n in range(600)})
