"""What is compiled follows from the declarations and the settings; what is wrong with one kernel stops no other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from aot_runtime.arch import Arch
from aot_runtime.description.kernel_records import Parameter

from aot.compile.messages import Closure, Declared, KernelClosure, KernelInfo, VariantInfo
from aot.compile.process import WorkerLost
from aot.errors import BuildError, DeclarationError, Failure, UsageError
from aot.pipeline.events import Progress
from aot.pipeline.plan import KernelPlan, Plan
from aot.pipeline.planning.planner import NewPlan, check_function, in_families, make_plan, over_budget, select_kernels
from aot.pipeline.settings import Settings
from aot.selection.subjects import Requirement, Subject, VariantTable

SM80, SM90 = Arch.parse("sm_80"), Arch.parse("sm_90a")


def kernel(name: str, *archs: Arch) -> KernelInfo:
    return KernelInfo(name, "", f"{name}.py:1", (Parameter("x"),), (), (name,), archs or (SM80, SM90), {})


def variant(name: str, low: int = 0, high: int = 9) -> VariantInfo:
    """A variant that takes calls whose first extent lies in an interval."""
    function = name.partition("__")[0]
    requirement = Requirement(Subject("extent", (0,), label="x.shape[0]"), low, high)
    return VariantInfo(function, {}, VariantTable(name, function, (requirement,), (), None, -1, 1, True), "")


class FakeWorker:
    def __init__(self, arch: Arch | None, declared: Declared, answers: dict[str, object]) -> None:
        self.arch, self.declared, self.answers = arch, declared, answers
        self.closed = False

    def backend(self) -> int:
        return 12

    def expand(self, name: str) -> tuple[VariantInfo, ...]:
        answer = self.answers.get(name, (variant(f"{name}__a"),))
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[return-value]

    def expand_core(self, name: str) -> tuple[tuple[VariantInfo, ...], tuple[str, ...]]:
        return self.expand(name), ()

    def closure(self) -> Closure:
        kernels = {info.name: KernelClosure({info.name: "aa"}, {}, {}) for info in self.declared.kernels}
        return Closure(kernels, {}, {}, {}, {})

    def close(self) -> None:
        self.closed = True


class FakeWorkers:
    """Stands for the worker processes of a build; ``answers`` are what kernels expand to, or raise."""

    def __init__(self, *kernels: KernelInfo, failures: tuple[Failure, ...] = (), **answers: object) -> None:
        self.all, self.answers = Declared(kernels, failures), answers
        self.by_arch: dict[Arch, FakeWorker] = {}
        self.started: list[Arch | None] = []
        self.unread: list[Failure] = []

    def start(self, arch: Arch | None) -> FakeWorker:
        self.started.append(arch)
        return FakeWorker(arch, self.all, self.answers)

    def of(self, arch: Arch) -> FakeWorker:
        if arch not in self.by_arch:
            self.by_arch[arch] = self.start(arch)
        return self.by_arch[arch]

    def declared(self) -> Declared:
        return self.all

    def drop(self, arch: Arch) -> None:
        self.by_arch.pop(arch).close()

    def take_failures(self) -> tuple[Failure, ...]:
        taken, self.unread = tuple(self.unread), []
        return taken


def plan(workers: FakeWorkers, *archs: str, select: tuple[str, ...] = ()) -> NewPlan:
    return make_plan(Settings("kernels", archs, select=select), workers, Progress())  # type: ignore[arg-type]


def pairs(made: NewPlan) -> list[tuple[str, str]]:
    return [(one.info.name, str(one.arch)) for one in made.plan.kernels]


def test_every_kernel_is_planned_for_every_architecture_that_it_is_written_for() -> None:
    workers = FakeWorkers(kernel("add"), kernel("gemm", SM90))
    made = plan(workers, "sm80,sm90")
    assert pairs(made) == [("add", "sm_80"), ("add", "sm_90a"), ("gemm", "sm_90a")]
    assert made.plan.cuda == 12
    assert workers.started == [SM80, SM90]  # one each, kept to compile


def test_each_architecture_is_announced_before_it_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process takes seconds to start."""
    workers, told = FakeWorkers(kernel("add"), kernel("gemm", SM90)), []
    monkeypatch.setattr(Progress, "stage", lambda self, text: told.append((text, list(workers.started))))
    plan(workers, "sm80,sm90")
    assert [started for text, started in told] == [[], [], [SM80]]
    assert [name in text for (text, _), name in zip(told[1:], ("sm_80", "sm_90a"), strict=True)] == [True, True]


def test_all_are_the_architectures_that_kernels_are_written_for() -> None:
    workers = FakeWorkers(kernel("add", SM90), kernel("fill", SM80))
    assert pairs(plan(workers, "all")) == [("fill", "sm_80"), ("add", "sm_90a")]
    assert workers.started == [SM80, SM90]


def test_globs_select_kernels_and_a_wrong_one_is_answered_with_what_there_is() -> None:
    workers = FakeWorkers(kernel("add"), kernel("gemm"), kernel("gemm_fp8"))
    assert pairs(plan(workers, "sm90", select=("gemm*",))) == [("gemm", "sm_90a"), ("gemm_fp8", "sm_90a")]
    with pytest.raises(UsageError, match=r"no kernel matches gem\nhint: ") as caught:
        plan(workers, "sm90", select=("gem", "add"))
    assert caught.value.hint == "there are: add, gemm, gemm_fp8"


def test_families_that_are_not_core_are_built_on_request_or_if_a_kernel_is_named() -> None:
    rows, loose = replace(kernel("norm"), family="rows"), kernel("fill")
    late = replace(kernel("norm_backward"), family="backward", core=False)
    every = (rows, loose, late)
    assert select_kernels(every, ()) == [rows, loose]
    assert select_kernels(every, (), ("all",)) == [rows, loose, late]
    assert select_kernels(every, (), ("backward", "rows")) == [rows, late]
    assert select_kernels(every, ("norm*",)) == [rows, late]
    assert select_kernels(every, ("norm*",), ("rows",)) == [rows]
    with pytest.raises(UsageError, match="no kernel in rows matches norm_backward") as caught:
        select_kernels(every, ("norm_backward",), ("rows",))
    assert caught.value.hint == "there are: norm"
    with pytest.raises(UsageError, match="no kernel is in a core family") as caught:
        select_kernels([late], ())
    assert caught.value.hint == "pass `--family` with some of backward, or all"
    with pytest.raises(UsageError, match="there is no family of kernels called 'cols'") as caught:
        in_families(every, ("cols",))
    assert caught.value.hint == "there are: backward, rows; `all` takes every kernel"


def test_an_architecture_that_no_kernel_is_written_for_is_refused() -> None:
    with pytest.raises(UsageError, match="no kernel is written for sm_80") as caught:
        plan(FakeWorkers(kernel("gemm", SM90)), "sm80")
    assert caught.value.hint == "they are written for sm_90a"


def test_a_wrong_declaration_is_a_failure_of_its_kernel_alone() -> None:
    made = plan(FakeWorkers(kernel("bad"), kernel("good"), bad=DeclarationError("bad.py:1: no")), "sm80,sm90")
    assert pairs(made) == [("good", "sm_80"), ("good", "sm_90a")]
    assert made.failures == tuple(Failure("", "bad.py:1: no", kernel="bad", arch=arch) for arch in ("sm_80", "sm_90a"))


def test_a_lost_worker_is_replaced_for_the_next_kernel() -> None:
    workers = FakeWorkers(kernel("bad"), kernel("good"), bad=WorkerLost("was ended by SIGSEGV", "last words"))
    first = workers.of(SM90)
    made = plan(workers, "sm90")
    assert pairs(made) == [("good", "sm_90a")]
    message = "bad.py:1: the process that runs its declaration was ended by SIGSEGV"
    assert made.failures == (Failure("", message, "last words", "bad", "sm_90a"),)
    assert first.closed and workers.started == [SM90, SM90]


def test_files_that_cannot_be_read_are_failures_without_a_kernel() -> None:
    unread, broken = Failure("", "reading `a.py`: hangs"), Failure("", "b.py:3: SyntaxError")
    workers = FakeWorkers(kernel("good"), failures=(broken,))
    workers.unread = [unread]
    assert plan(workers, "sm90").failures == (unread, broken)
    with pytest.raises(BuildError, match="no kernel could be read") as caught:
        plan(FakeWorkers(failures=(broken,)), "sm90")
    assert caught.value.failures == (broken,)
    with pytest.raises(BuildError, match=r"no kernel matches b\nhint: ") as caught:
        plan(FakeWorkers(kernel("good"), failures=(broken,)), "sm90", select=("b",))
    assert caught.value.failures == (broken,)


def test_every_variant_has_a_key_for_each_architecture() -> None:
    workers = FakeWorkers(kernel("add"), add=(variant("add__a", 0, 4), variant("add__b", 5, 9)))
    made = plan(workers, "sm80,sm90")
    keys = [key for one in made.plan.kernels for key in one.keys]
    assert len(set(keys)) == 4
    assert len(made.closures) == 2


def test_a_variant_that_no_call_can_reach_is_refused() -> None:
    info = kernel("add")
    check_function(info, SM90, "add", (variant("add__a", 0, 4), variant("add__b", 5, 9)))
    with pytest.raises(DeclarationError, match=r"add\.py:1: add for sm_90a: add__b can never be chosen"):
        check_function(info, SM90, "add", (variant("add__a", 0, 9), variant("add__b", 5, 9)))


def test_more_arguments_than_the_tables_hold_are_refused() -> None:
    info = replace(kernel("add"), parameters=tuple(Parameter(f"x{number}") for number in range(65)))
    with pytest.raises(DeclarationError, match="add has 65 arguments, tuples' elements included; 64 is the limit"):
        check_function(info, SM90, "add", (variant("add__a"),))


def built(workers: FakeWorkers, *archs: str) -> list[tuple[str, str]]:
    return [(item.info.name, str(item.arch)) for item in plan(workers, *archs).plan.kernels]


def test_a_gpu_is_resolved_for_each_kernel() -> None:
    portable, tuned = kernel("portable", SM80), kernel("tuned", SM80, SM90)
    assert built(FakeWorkers(portable, tuned), "H100") == [("portable", "sm_90"), ("tuned", "sm_90a")]
    assert built(FakeWorkers(portable, tuned), "L40S,9.0") == [
        ("portable", "sm_80"), ("tuned", "sm_80"), ("portable", "sm_90"), ("tuned", "sm_90a"),
    ]  # fmt: skip
    assert built(FakeWorkers(tuned), "sm_90a,H200") == [("tuned", "sm_90a")]


def test_a_gpu_that_no_kernel_runs_on_is_named() -> None:
    with pytest.raises(UsageError, match=r"no kernel is written for B200 \(compute capability 10\.0\)") as caught:
        built(FakeWorkers(kernel("hopper", SM90)), "B200")
    assert caught.value.hint == "they are written for sm_90a"


def test_more_variants_than_a_declaration_allows_are_named() -> None:
    """Numbers that dispatch passes are not compiled: variants that differ only in them count once."""
    arguments = ("Tensor(f16)", "Tensor(bf16), Fixed(value=0)", "Tensor(bf16), Fixed(value=1)", "Tensor(f32)")
    variants = tuple(replace(variant(f"gemm__{i}"), arguments=text) for i, text in enumerate(arguments))
    plans = [
        KernelPlan(replace(kernel("gemm"), variant_budget=budget), arch, variants, ())
        for budget, arch in ((2, SM90), (3, SM80), (0, SM80))
    ]
    (warning,) = over_budget(Plan(12, tuple(plans)))
    assert warning.startswith("gemm has 3 variants to compile for sm_90a, and a budget of 2: ")


def test_what_only_a_table_can_choose_is_accepted_in_a_tuned_kernel() -> None:
    """The second takes exactly what the first takes: no call finds it, but a measured table may choose it."""
    same = [variant("gemm__a"), variant("gemm__b")]
    with pytest.raises(DeclarationError, match="gemm__b can never be chosen"):
        check_function(kernel("gemm"), SM90, "gemm", same)
    tuned = replace(kernel("gemm"), is_tuned=True)
    check_function(tuned, SM90, "gemm", same)
    elsewhere = [same[0], replace(same[1], point={"dtype": "f16"})]
    with pytest.raises(DeclarationError, match="gemm__b can never be chosen"):
        check_function(tuned, SM90, "gemm", elsewhere)
