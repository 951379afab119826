"""What a build would do is known before anything is compiled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from aot_runtime.arch import Arch

from aot.cache import recall
from aot.cache.store import Store
from aot.compile.messages import Closure, KernelInfo, VariantInfo
from aot.errors import Failure
from aot.pipeline.events import Progress
from aot.pipeline.outlook import Outlook, foresee
from aot.pipeline.plan import KernelPlan, Plan
from aot.pipeline.planning import earlier
from aot.pipeline.planning.planner import NewPlan
from aot.pipeline.settings import Settings
from aot.selection.subjects import VariantTable

SM80 = Arch.parse("sm_80")


def kernel(name: str, *variants: str, guards: tuple[str, ...] = (), contract: bool = False) -> KernelPlan:
    info = KernelInfo(name, "", f"{name}.py:1", (), (), (name,), (SM80,), {}, has_contract=contract)
    tables = [VariantTable(f"{name}__{one}", name, (), (), None, -1, 1, True) for one in variants]
    return KernelPlan(
        info, SM80, tuple(VariantInfo(name, {}, table, "", guards) for table in tables), tuple(f"{name}{one}" for one in variants)
    )  # fmt: skip


def foreseen(
    monkeypatch: pytest.MonkeyPatch, artifacts: Path | None, *kernels: KernelPlan, failures: tuple[Failure, ...] = ()
) -> Outlook:
    monkeypatch.setattr(earlier, "make_plan", lambda *_, **__: NewPlan(Plan(12, kernels), (), failures))
    monkeypatch.setattr(earlier, "keep_plan", lambda *_: None)
    settings = Settings("kernels", ("sm_80",), out=Path("out"), artifacts=artifacts, jobs=2)
    return foresee(settings, Progress())


def test_variants_guards_and_contracts_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    failure = Failure("", "wrong", "", "bad", "sm_80")
    add, gemm = kernel("add", "f16", "f32", contract=True), kernel("gemm", "small", "large", guards=("m <= 64",))
    found = foreseen(monkeypatch, None, add, gemm, failures=(failure,))
    assert [(one.kernel, one.arch, len(one.variants), one.guards, one.contract) for one in found.plan] == [
        ("add", "sm_80", 2, (), True),
        ("gemm", "sm_80", 2, ("m <= 64",), False),
    ]
    assert (found.path, found.variants, found.cached, found.seconds) == (Path("out"), 4, 0, None)
    assert found.failures == (failure,)


def test_a_kernel_above_its_budget_is_named_before_anything_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    warned: list[str] = []
    monkeypatch.setattr(Progress, "warn", lambda self, text: warned.append(text))
    many = kernel("gemm", "small", "large")
    variants = tuple(replace(one, arguments=one.table.name) for one in many.variants)
    many = replace(many, info=replace(many.info, variant_budget=1), variants=variants)
    foreseen(monkeypatch, None, many, kernel("add", "f16"))
    assert [text.partition(":")[0] for text in warned] == [
        "gemm has 2 variants to compile for sm_80, and a budget of 1"
    ]


def test_what_is_in_the_cache_takes_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    store.put("variants", "addf16", b"")
    recall.keep_durations(store, "kernels", {"sm_80 add__f16": 9.0, "sm_80 add__f32": 4.0, "sm_80 gemm__small": 6.0})
    found = foreseen(monkeypatch, tmp_path, kernel("add", "f16", "f32"))
    assert (found.cached, found.seconds) == (1, 4.0)
    # A new variant takes as long as the others of its kernel; of a new kernel, as long as all that is known.
    assert foreseen(monkeypatch, tmp_path, kernel("gemm", "small", "large")).seconds == 6.0
    # One worker compiles it.
    assert foreseen(monkeypatch, tmp_path, kernel("rope", "f16")).seconds == pytest.approx(19 / 3)
    store.put("variants", "addf32", b"")
    assert foreseen(monkeypatch, tmp_path, kernel("add", "f16", "f32")).seconds == 0.0


def test_declarations_that_have_not_changed_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To look at a build takes no longer than the build."""
    read: list[object] = []

    def make_plan(*arguments: object, **options: object) -> NewPlan:
        read.append(arguments)
        return NewPlan(Plan(12, (kernel("add", "f16"),)), (Closure({}, {}, {}, {}, {}),), ())

    monkeypatch.setattr(earlier, "make_plan", make_plan)
    settings = Settings("kernels", ("sm_80",), out=tmp_path / "out", artifacts=tmp_path / "cache", cache=tmp_path)
    first, second = foresee(settings, Progress()), foresee(settings, Progress())
    assert first.plan == second.plan
    assert len(read) == 1


def test_a_dry_run_looks_once_at_what_the_plan_came_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It hashes every file of the source: twice would take longer than the build, which looks once."""
    looked: list[object] = []
    unchanged = recall.unchanged
    monkeypatch.setattr(recall, "unchanged", lambda *arguments: (looked.append(arguments), unchanged(*arguments))[1])
    made = NewPlan(Plan(12, (kernel("add", "f16"),)), (Closure({}, {}, {}, {}, {}),), ())
    monkeypatch.setattr(earlier, "make_plan", lambda *_: made)
    settings = Settings("kernels", ("sm_80",), out=tmp_path / "out", artifacts=tmp_path / "cache", cache=tmp_path)
    for times in (1, 2):
        foresee(settings, Progress(), as_build=True)
        assert len(looked) == times
