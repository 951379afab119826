"""Choosing among the specs of a kernel by measurement, on the GPU that is here.

Every spec that takes a call of the contract is compared with the reference first; what fails is left out by name. The
rest is timed as ``bench`` times, over the calls that the contract yields for it. The result is a small table: for each
point of the declaration, bins of the extents and the spec that was the fastest in them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from aot_runtime.arch import Arch
from aot_runtime.core.asking import variant_function
from aot_runtime.errors import AotError

from ..bundle.contracts import Contract
from ..bundle.details import VariantDetails
from ..bundle.tables.tuning import LeftOut, TunedDevice, TunedKernel, TunedSet, Tuning, is_small
from ..declare.expressions import value_of
from ..errors import UsageError
from .bench import time_functions
from .check import MARGIN_BYTES, dtypes_of, problem_of
from .running import Gpu, calls_of, make_outputs, variants_of

__all__ = ["Measured", "TuneReport", "bins_of", "tune", "tuned_device"]

ROUNDS = 7
MARGIN = 0.02  # a spec has to be faster by this much than the one that would run without a table
_UNCHECKED = "no input of the contract reaches it"


@dataclass(frozen=True)
class Measured:
    """One call that was timed: microseconds by variant. ``usual`` is what runs without a table."""

    kernel: str  # its name
    arch: str  # the architecture
    function: str  # the public function
    point: Mapping[str, str]  # dtype, layout and choices of the call
    extents: tuple[int, ...]  # of the call
    usual: str  # what runs without a table
    microseconds: Mapping[str, float]  # by variant

    @property
    def chosen(self) -> str:
        best = min(self.microseconds, key=lambda name: self.microseconds[name])
        usual = self.microseconds.get(self.usual, math.inf)
        return best if usual > self.microseconds[best] * (1 + MARGIN) else self.usual


@dataclass(frozen=True)
class TuneReport:
    tuning: Tuning
    measured: tuple[Measured, ...]
    untuned: tuple[str, ...]  # kernels that declare nothing to tune, or that no call is known of
    clock: int = 0  # of the GPU's multiprocessors, in MHz


Timer = Callable[..., dict[str, float]]  # as :func:`time_functions`


def tune(
    bundle: Any,
    contracts: Mapping[str, Contract],
    kernels: Sequence[str],
    gpu: Gpu,
    *,
    dtypes: Sequence[str] = (),
    time: Timer = time_functions,
    say: Callable[[Measured], None] = lambda measured: None,
) -> TuneReport:
    """Measure the kernels that declare what they are tuned by. ``time`` gives the medians of runs, by their names."""
    everything = variants_of(bundle.path, bundle.manifest)
    tables: list[TunedKernel] = []
    measured: list[Measured] = []
    untuned: list[str] = []
    for kernel in kernels:
        own = {arch: [one for one in listed if one.kernel == kernel] for arch, listed in everything.items()}
        contract = contracts.get(kernel)
        declared = any(one.tuned_by for listed in own.values() for one in listed)
        if contract is None or not declared or (contract.tune_inputs or contract.bench_inputs) is None:
            untuned.append(kernel)
            continue
        tuner = _Tuner(bundle, kernel, contract, gpu, own, tuple(dtypes), time)
        left_out = tuner.check()
        found = []
        for one in tuner.measure({item.variant for item in left_out}):
            say(one)
            found.append(one)
        tables += tuner.tables(found, left_out)
        measured += found
    if not measured:
        raise UsageError(
            f"nothing to tune: {', '.join(untuned) or 'no kernel'} declares no `tuned_by`, or no call to tune over",
            hint='pass `tuned_by=("m", "n")` to aot.kernel, and let its contract yield calls in `tune_inputs`',
        )
    device = tuned_device(gpu)
    return TuneReport(Tuning(device, tuple(tables)), tuple(measured), tuple(untuned), gpu.clock)


def tuned_device(gpu: Gpu) -> TunedDevice:
    return TunedDevice(gpu.name, gpu.multiprocessors, "{}.{}".format(*gpu.capability), gpu.bandwidth)


@dataclass(frozen=True)
class _Call:
    """A call, the variant that runs it without a table, and all variants of the same point that take it."""

    arch: Arch
    usual: VariantDetails
    variants: tuple[VariantDetails, ...]
    choices: Mapping[str, str]
    arguments: dict[str, Any]


@dataclass(frozen=True)
class _Tuner:
    """Tunes one kernel."""

    bundle: Any
    kernel: str
    contract: Contract
    gpu: Gpu
    variants: Mapping[Arch, Sequence[VariantDetails]]
    dtypes: tuple[str, ...]
    time: Timer

    def check(self) -> list[LeftOut]:
        """Compare every variant with the reference; those that fail, and those that no input reaches."""
        problems: dict[str, str] = {}
        reached: dict[str, None] = {}
        sets: dict[tuple[Any, ...], None] = {}
        for call in self._calls(self.contract.inputs):
            expected = self.contract.reference(**call.arguments, **call.choices)
            sets[_key(call.arch, call.usual)] = None
            for variant in call.variants:
                reached[variant.name] = None
                problem = self._problem(variant.name, call, expected)
                if problem:
                    problems.setdefault(variant.name, problem)
        missed = {
            one.name: _UNCHECKED
            for arch, listed in self.variants.items()
            for one in listed
            if _key(arch, one) in sets and one.name not in reached
        }
        return [LeftOut(name, reason) for name, reason in {**problems, **missed}.items()]

    def _problem(self, variant: str, call: _Call, expected: Any) -> str:
        try:
            made = make_outputs(self._record, call.arguments, self.gpu.device, MARGIN_BYTES)
            variant_function(self.bundle, self.kernel, variant)(**call.arguments, **made, **call.choices)
            self.gpu.synchronize()
        except (AotError, RuntimeError) as error:
            return f"{type(error).__name__}: {str(error).splitlines()[0]}"
        return problem_of(self.contract, made, expected, call.arguments, call.choices)

    def measure(self, left_out: set[str]) -> Iterator[Measured]:
        """Time the variants that agree with the contract, call by call."""
        inputs = self.contract.tune_inputs or self.contract.bench_inputs
        for call in self._calls(inputs):
            names = [one.name for one in call.variants if one.name not in left_out]
            if not names or not call.usual.tuned_by:
                continue
            extents = tuple(value_of(text, call.arguments) for text in call.usual.tuned_by.values())
            usual = call.usual
            medians = self._time(names, call) if len(names) > 1 else {names[0]: 0.0}
            yield Measured(self.kernel, str(call.arch), usual.function, usual.point, extents, usual.name, medians)

    def _time(self, names: Sequence[str], call: _Call) -> dict[str, float]:
        functions = {name: variant_function(self.bundle, self.kernel, name) for name in names}
        return self.time(functions, self._record, call.arguments, call.choices, self.gpu, ROUNDS)

    def tables(self, measured: Sequence[Measured], left_out: Sequence[LeftOut]) -> Iterator[TunedKernel]:
        for arch, listed in self.variants.items():
            own = [one for one in measured if one.arch == str(arch)]
            sets = {(one.function, tuple(one.point.items())): None for one in own}
            if sets:
                names = {one.name for one in listed}
                by = next(tuple(one.tuned_by) for one in listed if one.tuned_by)
                out = tuple(item for item in left_out if item.variant in names)
                found = tuple(_set(listed, own, function, dict(point)) for function, point in sets)
                yield TunedKernel(self.kernel, arch, by, found, out)

    @property
    def _record(self) -> Any:
        return self.bundle.manifest.kernels[self.kernel]

    def _calls(self, inputs: Any) -> Iterator[_Call]:
        known = dtypes_of(self.variants, self.kernel)
        wanted = [dtype for dtype in known if not self.dtypes or dtype in self.dtypes]
        for _, choices, arguments in calls_of(self._record, inputs, wanted, self.gpu.device):
            made = make_outputs(self._record, arguments, self.gpu.device)
            explanation = self.bundle.explain(self.kernel, self.gpu.capability, **arguments, **made, **choices)
            if explanation.chosen is None:
                continue
            arch = Arch.parse(explanation.chosen.arch)
            by_name = {one.name: one for one in self.variants[arch]}
            usual = by_name[explanation.chosen.variant]
            takes = [by_name[one.variant] for one in explanation.candidates if not one.reason and one.arch == str(arch)]
            same = tuple(one for one in takes if _key(arch, one) == _key(arch, usual))
            yield _Call(arch, usual, same, choices, arguments)


def _key(arch: Arch, variant: VariantDetails) -> tuple[Any, ...]:
    """Variants with the same key are specs of one point: a table may put one in the place of another."""
    return arch, variant.function, tuple(sorted(variant.point.items()))


def _set(
    listed: Sequence[VariantDetails], measured: Sequence[Measured], function: str, point: Mapping[str, str]
) -> TunedSet:
    names = tuple(one.name for one in listed if one.function == function and dict(one.point) == dict(point))
    calls: dict[tuple[int, ...], list[Measured]] = {}
    for one in measured:
        if one.function == function and dict(one.point) == dict(point):
            calls.setdefault(one.extents, []).append(one)
    fastest = {extents: names.index(_joined(same).chosen) for extents, same in calls.items()}
    bins, cells = bins_of(fastest)
    return TunedSet(function, dict(point), names, bins, cells)


def _joined(same: Sequence[Measured]) -> Measured:
    """Calls of equal extents, of different strides for example, as one: the product of their times counts."""
    shared = [name for name in same[0].microseconds if all(name in one.microseconds for one in same)]
    times = {name: math.prod(one.microseconds[name] for one in same) ** (1 / len(same)) for name in shared}
    first = same[0]
    return Measured(
        first.kernel, first.arch, first.function, first.point, first.extents, first.usual, times or first.microseconds
    )


# From single calls to bins.


def bins_of(fastest: Mapping[tuple[int, ...], int]) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Bins around the extents that were measured, and what is the fastest in each combination of them.

    A combination that was not measured takes the answer of the nearest call, by the ratios of the extents. Neighbouring
    bins with the same answers everywhere are joined.
    """
    values = [sorted({extents[i] for extents in fastest}) for i in range(len(next(iter(fastest))))]
    if not is_small([len(own) for own in values]):
        sizes = " x ".join(str(len(one)) for one in values)
        raise UsageError(
            f"the calls to tune over have {sizes} different extents, too many combinations for a table",
            hint="yield fewer calls in `tune_inputs`, or name fewer expressions in `tuned_by`",
        )
    cells = {where: fastest.get(where, _nearest(where, fastest)) for where in product(*values)}
    kept = [_different(values, cells, axis) for axis in range(len(values))]
    bins = tuple(
        tuple(_between(own[own.index(value) - 1], value) for value in starts[1:])
        for own, starts in zip(values, kept, strict=True)
    )
    return bins, tuple(cells[where] for where in product(*kept))


def _different(values: Sequence[Sequence[int]], cells: Mapping[tuple[int, ...], int], axis: int) -> list[int]:
    """The values of an extent with which something changes; the first one always."""
    kept = [values[axis][0]]
    others = [own if i != axis else [0] for i, own in enumerate(values)]
    for value in values[axis][1:]:
        for where in product(*others):
            one, other = ((*where[:axis], v, *where[axis + 1 :]) for v in (kept[-1], value))
            if cells[one] != cells[other]:
                kept.append(value)
                break
    return kept


def _nearest(where: Sequence[int], fastest: Mapping[tuple[int, ...], int]) -> int:
    def distance(extents: tuple[int, ...]) -> float:
        return sum(abs(math.log(max(a, 1) / max(b, 1))) for a, b in zip(where, extents, strict=True))

    return fastest[min(fastest, key=distance)]


def _between(low: int, high: int) -> int:
    """Where the bin of ``high`` begins: at the geometric mean, since times go by ratios."""
    middle = math.isqrt(low * high) if low > 0 else (low + high) // 2
    return min(max(middle, low) + 1, high)
