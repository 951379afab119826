"""A plan becomes compiled variants: those in the cache are not compiled again, and what fails is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from aot_runtime.arch import Arch

from aot.cache.store import Store
from aot.compile.messages import Compiled, KernelInfo, Options, VariantInfo
from aot.errors import Failure
from aot.pipeline.events import Progress
from aot.pipeline.executing.compiling import Compilation, compile_plan
from aot.pipeline.executing.executor import CompileJob, Report, Session
from aot.pipeline.plan import KernelPlan, Plan
from aot.pipeline.settings import Settings
from aot.pipeline.workspace import Workspace
from aot.selection.subjects import VariantTable

SM80, SM90 = Arch.parse("sm_80"), Arch.parse("sm_90a")
SESSION = Session("kernels", Options())


def kernel_plan(name: str, arch: Arch, *variants: str, keys: bool = True) -> KernelPlan:
    info = KernelInfo(name, "", f"{name}.py:1", (), (), (name,), (arch,), {})
    tables = [VariantTable(variant, name, (), (), None, -1, 1, True) for variant in variants]
    infos = tuple(VariantInfo(name, {}, table, "") for table in tables)
    return KernelPlan(info, arch, infos, tuple(f"{arch}-{variant}".ljust(64, "0") for variant in variants if keys))


class FakeExecutor:
    """Writes a launcher and a kept file for each job; jobs whose variant is named fail."""

    def __init__(self, *failing: str, seconds: float = 1.0) -> None:
        self.failing, self.seconds = failing, seconds
        self.jobs: list[CompileJob] = []
        self.session: Session | None = None

    def compile(self, session: Session, jobs: Sequence[CompileJob], report: Report) -> None:
        self.session = session
        for job in jobs:
            self.jobs.append(job)
            if job.variant in self.failing:
                report(job, Failure(job.variant, "no", "its log"))
                continue
            job.launcher.write_text(f"; {job.arch} {job.variant}")
            job.launcher.with_suffix(".ptx").write_text("ptx")
            seconds = self.seconds * (1 + int(job.variant.endswith("b")))
            report(job, Compiled(job.variant, (), (), 0, seconds))

    def close(self) -> None: ...


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    (tmp_path / "scratch").mkdir()
    settings = Settings("kernels", (), options=Options(keep=("ptx",)))
    return Workspace(settings, "b", tmp_path / "out", Progress(), tmp_path / "scratch", Store(tmp_path / "store"))


def names(compilation: Compilation) -> dict[tuple[str, str], list[str]]:
    return {
        (kernel.info.name, str(kernel.arch)): [launcher.name for launcher in kernel.launchers]
        for kernel in compilation.kernels
    }


PLAN = Plan(12, (kernel_plan("add", SM80, "add__a", "add__b"), kernel_plan("add", SM90, "add__a")))


def test_every_variant_is_compiled_with_its_launcher_and_what_is_kept(workspace: Workspace) -> None:
    executor = FakeExecutor()
    made = compile_plan(PLAN, SESSION, executor, workspace)
    assert names(made) == {("add", "sm_80"): ["add__a", "add__b"], ("add", "sm_90a"): ["add__a"]}
    assert (made.cuda, made.failures) == (12, ())
    first = made.kernels[0]
    assert first.launchers[0].path.read_text() == "; sm_80 add__a"
    assert [path.name for path in first.kept] == ["add__a.ptx", "add__b.ptx"]
    assert executor.session is not None
    assert executor.session.kernels == {SM80: ("add",), SM90: ("add",)}


def test_what_the_cache_holds_is_not_compiled_again(workspace: Workspace) -> None:
    compile_plan(PLAN, SESSION, FakeExecutor(), workspace)
    for path in workspace.scratch.rglob("*.*"):
        path.unlink()
    executor = FakeExecutor()
    made = compile_plan(PLAN, SESSION, executor, workspace)
    assert executor.jobs == []
    assert len(names(made)[("add", "sm_80")]) == 2
    assert made.kernels[0].launchers[1].path.read_text() == "; sm_80 add__b"
    assert [path.name for path in made.kernels[0].kept] == ["add__a.ptx", "add__b.ptx"]


def test_what_fails_is_named_with_its_kernel_and_a_kernel_without_variants_is_left_out(workspace: Workspace) -> None:
    plan = Plan(12, (*PLAN.kernels, kernel_plan("mul", SM90, "mul")))
    made = compile_plan(plan, SESSION, FakeExecutor("add__b", "mul"), workspace)
    assert names(made) == {("add", "sm_80"): ["add__a"], ("add", "sm_90a"): ["add__a"]}
    assert made.failures == (
        Failure("add__b", "no", "its log", "add", "sm_80"),
        Failure("mul", "no", "its log", "mul", "sm_90a"),
    )


def test_what_fails_for_one_architecture_names_those_that_compiled(workspace: Workspace) -> None:
    class OnlyNew(FakeExecutor):
        def compile(self, session: Session, jobs: Sequence[CompileJob], report: Report) -> None:
            old = [job for job in jobs if job.arch == SM80]
            super().compile(session, [job for job in jobs if job not in old], report)
            for job in old:
                report(job, Failure(job.variant, "k.py:3: no such instruction\nhint: leave it out"))

    both = Plan(12, (kernel_plan("add", SM80, "add__a"), kernel_plan("add", SM90, "add__a")))
    (failure,) = compile_plan(both, SESSION, OnlyNew(), workspace).failures
    first, compared, hint = failure.message.splitlines()
    assert (first, hint) == ("k.py:3: no such instruction", "hint: leave it out")
    assert "sm_90a" in compared


def test_a_captured_kernel_that_fails_is_named_by_who_compiles_it(workspace: Workspace) -> None:
    plan = kernel_plan("scale_d429758774", SM90, "scale_d429758774")
    captured = replace(plan, info=replace(plan.info, captured={"called_from": "lib.rows:50, exercise.py:7"}))
    made = compile_plan(Plan(12, (captured,)), SESSION, FakeExecutor("scale_d429758774"), workspace)
    assert [failure.message for failure in made.failures] == ["what lib.rows:50, exercise.py:7 compiles: no"]


def test_the_longest_go_first_and_what_is_not_known_before_them(workspace: Workspace) -> None:
    compile_plan(
        Plan(12, (kernel_plan("add", SM80, "add__a", "add__b", keys=False),)), SESSION, FakeExecutor(), workspace
    )
    executor = FakeExecutor()
    plan = Plan(12, (kernel_plan("add", SM80, "add__a", "add__b", "add__c", keys=False),))
    compile_plan(plan, SESSION, executor, workspace)
    assert [job.variant for job in executor.jobs] == ["add__c", "add__b", "add__a"]


def test_kernels_that_were_never_compiled_take_turns(workspace: Workspace) -> None:
    """How long each takes is known soon then."""
    executor = FakeExecutor()
    kernels = (kernel_plan("add", SM80, "add__a", "add__b"), kernel_plan("mul", SM80, "mul__a", "mul__b"))
    compile_plan(Plan(12, kernels), SESSION, executor, workspace)
    assert [job.variant for job in executor.jobs] == ["add__a", "mul__a", "add__b", "mul__b"]
