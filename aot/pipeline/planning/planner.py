"""From declarations to a plan: which variants of which kernels to compile for which architectures, and their keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from aot_runtime.arch import Arch

from ...bundle.globs import matching
from ...cache.keys import variant_keys
from ...compile import dsl
from ...compile.messages import Closure, Declared, KernelInfo, VariantInfo
from ...compile.process import WorkerLost
from ...errors import BuildError, DeclarationError, Failure, UsageError, counted
from ...selection.decision import decide, unreachable
from ...selection.tables import MAX_ARGUMENTS
from ..events import Progress
from ..executing.workers import Workers
from ..plan import KernelPlan, Plan
from ..settings import Settings, Tilings
from ..sources import kernel_sources
from ..spellings import targets

__all__ = ["NewPlan", "comment", "depth_of", "in_families", "make_plan", "over_budget", "select_kernels"]


@dataclass(frozen=True)
class NewPlan:
    """A plan, what its source came from, and what is wrong with its files and declarations."""

    plan: Plan
    closures: tuple[Closure, ...]  # one per architecture
    failures: tuple[Failure, ...]
    notes: tuple[str, ...] = ()


def make_plan(settings: Settings, workers: Workers, progress: Progress) -> NewPlan:
    """Ask the author's source for everything that the settings select."""
    progress.stage("reading declarations")
    declared, failures = _declared(workers)
    kernels = declared.kernels
    try:
        selected = select_kernels(kernels, settings.select, settings.families)
    except UsageError as error:
        if not failures:
            raise
        raise BuildError(error.message, hint=error.hint, failures=failures) from None  # a file of these may declare it
    found = targets(settings.archs, {kernel.name: kernel.archs for kernel in selected})
    planned = [
        _plan_arch(settings, workers, arch, [kernel for kernel in selected if kernel.name in names], progress)
        for arch, names in found.items()
    ]
    return NewPlan(
        Plan(
            planned[-1].plan.cuda if planned else 0,
            tuple(kernel for part in planned for kernel in part.plan.kernels),
            {kernel.name: kernel.archs for kernel in kernels},
        ),
        tuple(closure for part in planned for closure in part.closures),
        (*failures, *workers.take_failures(), *(failure for part in planned for failure in part.failures)),
        declared.notes,
    )


def comment(plan: Plan, progress: Progress) -> None:
    """Name the kernels that nobody can check, and those with too many variants.

    Kernels of other libraries are checked by these libraries.
    """
    for warning in filter(None, (dsl.warning(dsl.version()), *over_budget(plan))):
        progress.warn(warning)
    if depth := depth_of(plan):
        progress.note(depth)
    infos = [kernel.info for kernel in plan.kernels]
    names = sorted({info.name for info in infos if not info.has_contract and info.captured is None})
    if names:
        progress.note(f"without a contract, so that `check` and `bench` pass over: {', '.join(names)}")


def depth_of(plan: Plan) -> str:
    """How much of what is declared is in a plan, and what `--tilings` would change; "" if nothing."""
    planned = sum(len(kernel.variants) for kernel in plan.kernels)
    left_out = sum(len(kernel.left_out) for kernel in plan.kernels)
    names = sorted({kernel.info.name for kernel in plan.kernels if kernel.left_out})
    if left_out:
        return f"core tilings: {planned} of {planned + left_out} variants; `--tilings all` adds {left_out} of {', '.join(names)}"
    extra = [(kernel.info.name, sum(not variant.core for variant in kernel.variants)) for kernel in plan.kernels]
    count = sum(own for _, own in extra)
    names = sorted({name for name, own in extra if own})
    return (
        f"all tilings: {planned} variants; `--tilings core` leaves out {count} of {', '.join(names)}" if count else ""
    )


def over_budget(plan: Plan) -> list[str]:
    """A sentence for each kernel with more variants than its declaration allows. Those of the same code count once."""
    counts = [(kernel, len({variant.code for variant in kernel.variants})) for kernel in plan.kernels]
    return [
        f"{kernel.info.name} has {count} variants to compile for {kernel.arch}, and a budget of "
        f"{kernel.info.variant_budget}: each takes time to build and space to ship; merge axes whose variants are "
        "equally fast, or pass `variant_budget` to aot.kernel"
        for kernel, count in counts
        if 0 < kernel.info.variant_budget < count
    ]


def _declared(workers: Workers) -> tuple[Declared, tuple[Failure, ...]]:
    declared = workers.declared()
    failures = (*workers.take_failures(), *declared.failures)
    if not declared.kernels:
        raise BuildError("no kernel could be read", failures=failures)
    return declared, failures


def select_kernels(
    kernels: Sequence[KernelInfo], globs: Sequence[str], families: Sequence[str] = ()
) -> list[KernelInfo]:
    """The kernels of the families whose names match one of the globs; all of these kernels if there is no glob.

    A glob that matches none is an error: the bundle would lack what was asked for.
    If no family is named, globs look for kernels in all families, and without globs the core families are taken.
    """
    among = in_families(kernels, families or (["all"] if globs else []))
    where = f" in {', '.join(families)}" if families and "all" not in families else ""
    chosen = set(matching([kernel.name for kernel in among], globs, where))
    if not among:
        known = ", ".join(sorted({kernel.family for kernel in kernels}))
        raise UsageError("no kernel is in a core family", hint=f"pass `--family` with some of {known}, or all")
    return [kernel for kernel in among if kernel.name in chosen]


def in_families(kernels: Sequence[KernelInfo], families: Sequence[str]) -> list[KernelInfo]:
    """The kernels of those families; of the core families if none is named, of every family for ``all``."""
    if not families:
        return [kernel for kernel in kernels if kernel.core]
    known = sorted({kernel.family for kernel in kernels if kernel.family})
    for family in families:
        if family not in (*known, "all"):
            raise UsageError(
                f"there is no family of kernels called {family!r}",
                hint=f"there are: {', '.join(known) or 'none'}; `all` takes every kernel",
            )
    return [kernel for kernel in kernels if "all" in families or kernel.family in families]


def _plan_arch(
    settings: Settings, workers: Workers, arch: Arch, kernels: Sequence[KernelInfo], progress: Progress
) -> NewPlan:
    # It asks a process of its own, which takes seconds to start.
    progress.stage(f"planning for {arch}, {counted(len(kernels), 'kernel')}")
    cuda = workers.of(arch).backend()
    answers = [_plan_kernel(workers, kernel, arch, settings.tilings) for kernel in kernels]
    planned = [answer for answer in answers if isinstance(answer, KernelPlan)]
    failures = tuple(answer for answer in answers if isinstance(answer, Failure))
    if not planned:
        return NewPlan(Plan(cuda, ()), (), failures)
    closure = workers.of(arch).closure()
    keyed = tuple(_with_keys(kernel, closure, settings, cuda) for kernel in planned)
    return NewPlan(Plan(cuda, keyed), (closure,), failures)


def _plan_kernel(workers: Workers, kernel: KernelInfo, arch: Arch, tilings: Tilings) -> KernelPlan | Failure:
    """What to compile of a kernel, or what is wrong with its declaration."""
    try:
        worker = workers.of(arch)
        variants, left_out = worker.expand_core(kernel.name) if tilings == "core" else (worker.expand(kernel.name), ())
        for function in kernel.functions:
            check_function(kernel, arch, function, variants)
    except WorkerLost as error:
        workers.drop(arch)
        message = f"{kernel.origin}: the process that runs its declaration {error.reason}"
        return Failure("", message, error.log, kernel.name, str(arch))
    except DeclarationError as error:
        return Failure("", str(error), "", kernel.name, str(arch))
    return KernelPlan(kernel, arch, variants, (), left_out=left_out)


def _with_keys(kernel: KernelPlan, closure: Closure, settings: Settings, cuda: int) -> KernelPlan:
    own = closure.kernels[kernel.info.name]
    keys = variant_keys(kernel.info, kernel.variants, kernel.arch, own, options=settings.options, cuda=cuda)
    sources = kernel_sources(
        settings.root, settings.options.source, closure.places.get(kernel.info.name, {}), own.modules
    )
    return replace(kernel, keys=tuple(keys.values()), sources=sources)


def check_function(kernel: KernelInfo, arch: Arch, function: str, variants: Sequence[VariantInfo]) -> None:
    """Every variant of a public function can be chosen, and its arguments fit into the tables of C."""
    tables = [variant.table for variant in variants if variant.table.function == function]
    arguments = len(kernel.parameters) + len({path for table in tables for path in table.paths})
    if arguments > MAX_ARGUMENTS:
        raise DeclarationError(
            f"{kernel.origin}: {function} has {arguments} arguments, tuples' elements included; {MAX_ARGUMENTS} is the limit"
        )
    try:
        lost = unreachable(decide(tables), tables)
    except DeclarationError as error:
        raise DeclarationError(f"{kernel.origin}: {function}: {error.message}", hint=error.hint) from None
    if kernel.is_tuned:  # a table may choose what the tree never does, among the specs of one point
        lost = _without_alternative(lost, [variant for variant in variants if variant.table.function == function])
    if lost:
        raise DeclarationError(
            f"{kernel.origin}: {function} for {arch}: {', '.join(lost)} can never be chosen, since variants declared "
            "earlier take everything it takes",
            hint="declare the more special variant first, or tell them apart by a guard",
        )


def _without_alternative(lost: Sequence[str], variants: Sequence[VariantInfo]) -> list[str]:
    """Those of the lost variants that share their point with no variant that can be chosen."""
    found = [variant.point for variant in variants if variant.table.name not in lost]
    return [variant.table.name for variant in variants if variant.table.name in lost and variant.point not in found]
