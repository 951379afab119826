"""Checking the kernels of a bundle on a GPU, each against the reference of its contract.

Outputs are filled with NaN before a call and surrounded by guard bytes. Results are compared with a reference in f64,
by relative norm and by worst element, and in units in the last place if the contract bounds those. Variants that no
input reached are listed. Variants that passed can be recorded in the bundle as ``verified_on``.

Reading a number from the GPU waits for it, for as long as other processes keep it busy. So all numbers of a comparison
are computed there first, and read at once.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from aot_runtime.arch import Arch
from aot_runtime.core.asking import variant_function
from aot_runtime.description.manifest import Manifest as LoaderManifest
from aot_runtime.errors import AotError

from ..bundle.contracts import Contract
from ..bundle.description import check_schema, write_description
from ..bundle.details import VariantDetails, details_text, read_details
from ..bundle.layout import details_name
from ..bundle.manifest import Manifest
from ..bundle.publish import publish, refuse_installed, staging
from ..errors import UsageError
from ..files import read_given
from ..kinds import DTYPES
from ..records import encode
from .inputs import dtype_name, torch_dtype
from .running import Gpu, arguments_text, calls_of, make_outputs, variants_of

__all__ = [
    "MARGIN_BYTES",
    "TOLERANCES",
    "Outcome",
    "Report",
    "Tolerance",
    "VerifiedVariant",
    "check",
    "compare",
    "dtypes_of",
    "finite",
    "problem_of",
    "record",
    "ulps_between",
]


@dataclass(frozen=True)
class Tolerance:
    """Bounds of the error: its norm relative to that of the result, its worst element relative to the largest."""

    norm: float
    worst: float


# By the dtype of an output: one rounding of the result, and a margin for the order of f32 additions.
TOLERANCES = {
    name: Tolerance(2.0 ** -(dtype.digits + 1), 2.0 ** -(dtype.digits + (dtype.bits == 8)))
    for name, dtype in DTYPES.items()
    if dtype.digits
} | {"f32": Tolerance(2**-20, 2**-18), "f64": Tolerance(2**-45, 2**-43)}
MARGIN_BYTES = 256  # bytes before and after an output; also what keeps it aligned


@dataclass(frozen=True)
class Outcome:
    """One call that was checked."""

    kernel: str  # its name
    dtype: str  # of its inputs
    choices: Mapping[str, str]  # what was chosen, by name
    arguments: str  # the call
    arch: str  # of the code that ran; empty: none ran
    variant: str  # what ran; empty: nothing
    problem: str  # what is wrong; empty: the call passed
    norm: float | None = 0.0  # the error by norm, as a fraction of the tolerance; null: without limit
    worst: float | None = 0.0  # the error of the worst element, as a fraction of the tolerance; null: without limit
    ulps: float | None = None  # the worst element in units in the last place; null: the contract does not bound it


@dataclass(frozen=True)
class Report:
    gpu: Gpu
    outcomes: tuple[Outcome, ...]
    unreached: tuple[tuple[str, str], ...]  # arch and variant, of architectures that ran
    unchecked: tuple[str, ...]  # kernels without a contract

    @property
    def passed(self) -> bool:
        return bool(self.outcomes) and not any(outcome.problem for outcome in self.outcomes)

    def verified(self) -> list[tuple[str, str]]:
        """Arch and variant of all variants that ran and passed every time."""
        ran = {(outcome.arch, outcome.variant): None for outcome in self.outcomes if outcome.variant}
        failed = {(outcome.arch, outcome.variant) for outcome in self.outcomes if outcome.problem}
        return [key for key in ran if key not in failed]


def check(
    bundle: Any,
    contracts: Mapping[str, Contract],
    kernels: Sequence[str],
    gpu: Gpu,
    dtypes: Sequence[str] = (),
    *,
    every: bool = False,
    functions: Sequence[str] = (),
) -> Report:
    """Run every input of every contract through a loaded bundle; ``dtypes`` and ``functions`` narrow it.

    With ``every``, each call also runs the variants that take it and that selection does not choose.
    """
    variants = variants_of(bundle.path, bundle.manifest)
    outcomes: list[Outcome] = []
    for kernel in kernels:
        if kernel in contracts:
            wanted = [dtype for dtype in dtypes_of(variants, kernel) if not dtypes or dtype in dtypes]
            outcomes += check_kernel(bundle, kernel, contracts[kernel], wanted, gpu, every=every, functions=functions)
    ran = {(outcome.kernel, outcome.arch) for outcome in outcomes}
    reached = {(outcome.arch, outcome.variant) for outcome in outcomes}
    unreached = [
        (str(arch), variant.name)
        for arch, own in variants.items()
        for variant in own
        if (variant.kernel, str(arch)) in ran and (str(arch), variant.name) not in reached
        if not dtypes or variant.point.get("dtype") in dtypes
        if not functions or variant.function in functions
    ]
    return Report(gpu, tuple(outcomes), tuple(unreached), tuple(name for name in kernels if name not in contracts))


def dtypes_of(variants: Mapping[Arch, Sequence[VariantDetails]], kernel: str) -> list[str]:
    """The values of a kernel's axis ``dtype``."""
    own = (variant for listed in variants.values() for variant in listed if variant.kernel == kernel)
    found = {dtype: None for variant in own if (dtype := variant.point.get("dtype"))}
    return list(found) or ["f32"]


def check_kernel(
    bundle: Any,
    kernel: str,
    contract: Contract,
    dtypes: Sequence[str],
    gpu: Gpu,
    *,
    every: bool = False,
    functions: Sequence[str] = (),
) -> Iterator[Outcome]:
    """Every input of a contract with every combination of the kernel's choices, or with those of some functions."""
    calls = calls_of(bundle.manifest.kernels[kernel], contract.inputs, dtypes, gpu.device, functions)
    for dtype, choices, arguments in calls:
        yield from _Checked(bundle, kernel, contract, dtype, choices, arguments, gpu).outcomes(every)


@dataclass(frozen=True)
class _Checked:
    """One call of a check."""

    bundle: Any
    kernel: str
    contract: Contract
    dtype: str
    choices: Mapping[str, str]
    arguments: dict[str, Any]
    gpu: Gpu

    def outcomes(self, every: bool) -> Iterator[Outcome]:
        """What the chosen variant gives, and with ``every`` also what the others of its architecture give."""
        outcome = Outcome(self.kernel, self.dtype, self.choices, arguments_text(self.arguments), "", "", "")
        others: list[str] = []
        try:
            explained = self.bundle.explain(
                self.kernel, self.gpu.described, **self.arguments, **self._outputs(), **self.choices
            )
            if (chosen := explained.chosen) is not None:
                outcome = dataclasses.replace(outcome, arch=chosen.arch, variant=chosen.variant)
                takes = (one for one in explained.candidates if not one.reason and one.arch == chosen.arch)
                others = [one.variant for one in takes if one.variant != chosen.variant]
        except (AotError, RuntimeError) as error:
            yield dataclasses.replace(outcome, problem=f"{type(error).__name__}: {error}")
            return
        expected = self.contract.reference(**self.arguments, **self.choices)
        first, made = self._run(self.bundle[self.kernel], outcome, expected)
        yield first
        for name in others if every else ():
            function = variant_function(self.bundle, self.kernel, name)
            yield self._run(function, dataclasses.replace(outcome, variant=name), expected, (first, made))[0]

    @cached_property
    def _limits(self) -> _Limits:
        return _Limits.of(self.contract, {**self.arguments, **self.choices})

    def _outputs(self) -> dict[str, Any]:
        record = self.bundle.manifest.kernels[self.kernel]
        return make_outputs(record, self.arguments, self.gpu.device, MARGIN_BYTES, self.dtype)

    def _run(
        self,
        function: Callable[..., Any],
        outcome: Outcome,
        expected: Any,
        known: tuple[Outcome, dict[str, Any]] | None = None,
    ) -> tuple[Outcome, dict[str, Any]]:
        """What a variant gives, and its outputs. The bytes of a ``known`` run need not be compared again."""
        made = self._outputs()
        try:
            function(**self.arguments, **made, **self.choices)
            if known is not None and not known[0].problem and _same_bytes(made, known[1]):
                return dataclasses.replace(known[0], variant=outcome.variant), made
            self.gpu.synchronize()
        except (AotError, RuntimeError) as error:
            return dataclasses.replace(outcome, problem=f"{type(error).__name__}: {error}"), made
        found = _compare_each(made, expected, self._limits)
        compared = dataclasses.replace(
            outcome,
            problem="; ".join(one.problem for one in found if one.problem),
            norm=finite(max(one.norm for one in found)),
            worst=finite(max(one.worst for one in found)),
            ulps=None if self._limits.ulps is None else finite(max(one.ulps for one in found)),
        )
        return compared, made


def finite(number: float) -> float | None:
    """The number, or None if it is infinite, which JSON cannot say."""
    return number if math.isfinite(number) else None


def problem_of(
    contract: Contract, made: Mapping[str, Any], expected: Any, arguments: Mapping[str, Any], choices: Mapping[str, str]
) -> str:
    """What is wrong with the outputs of a call, given what the reference says, or ""."""
    found = _compare_each(made, expected, _Limits.of(contract, {**arguments, **choices}))
    return "; ".join(one.problem for one in found if one.problem)


class _Limits(NamedTuple):
    """What a contract says about errors of one call, beyond the tolerances of dtypes."""

    ulps: float | None
    bounds: Any  # by element: of each output a tensor, or None

    @classmethod
    def of(cls, contract: Contract, call: Mapping[str, Any]) -> _Limits:
        ulps = contract.ulps(**call) if contract.ulps is not None else None
        return cls(ulps, contract.bounds(**call) if contract.bounds is not None else None)


def _compare_each(made: Mapping[str, Any], expected: Any, limits: _Limits) -> list[_Compared]:
    exact = expected if isinstance(expected, tuple) else (expected,)
    bounds = limits.bounds if isinstance(limits.bounds, tuple) else (limits.bounds,) * len(exact)
    outputs = zip(made.items(), exact, bounds, strict=True)
    return [_compare_output(name, result, one, bound, limits.ulps) for (name, result), one, bound in outputs]


class _Compared(NamedTuple):
    """One output of a call: what is wrong with it, or "", and how far it is from the reference."""

    problem: str
    norm: float
    worst: float
    ulps: float


def _compare_output(name: str, result: Any, expected: Any, bound: Any, ulps: float | None) -> _Compared:
    if not _guards_intact(result):
        return _Compared(f"{name}: bytes beside the output were overwritten", math.inf, math.inf, math.inf)
    problem, norm, worst = compare(result, expected, bound)
    far = ulps_between(result, expected) if ulps is not None and not problem else 0.0
    if ulps is not None and far > ulps:
        problem = f"an element is {far:.3g} units in the last place from exact, and {ulps:g} are allowed"
    return _Compared(f"{name}: {problem}" if problem else "", norm, worst, far)


def _same_bytes(made: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """Whether two sets of outputs are equal, with the guard bytes around them."""
    import torch

    return bool(torch.stack([(_bytes(made[name]) == _bytes(others[name])).all() for name in made]).all())


def _bytes(result: Any) -> Any:
    """An output with its guard bytes."""
    import torch

    return torch.empty(0, dtype=torch.uint8, device=result.device).set_(result.untyped_storage())


def _guards_intact(result: Any) -> bool:
    import torch

    storage = _bytes(result)
    guards = torch.cat((storage[:MARGIN_BYTES], storage[storage.numel() - MARGIN_BYTES :]))
    return bool((guards == 255).all())


def compare(result: Any, expected: Any, bound: Any = None) -> tuple[str, float, float]:
    """What is wrong with a result, or "", and both errors as fractions of the tolerance of its dtype, or of a ``bound``.

    Elements that are not finite in the reference, rounded to that dtype, must be the same in the result. Elements
    that the kernel did not write are NaN.
    """
    import torch

    dtype = dtype_name(result.dtype)
    tolerance = TOLERANCES.get(dtype)
    if tuple(result.shape) != tuple(expected.shape):
        return f"the shape is {tuple(result.shape)}, the reference's {tuple(expected.shape)}", math.inf, math.inf
    if tolerance is None:
        same = torch.equal(result, expected.to(result.dtype))
        return ("" if same else "differs from the reference"), 0.0, 0.0
    if not result.numel():
        return "", 0.0, 0.0
    seen = _Seen.of(result, expected, bound)
    if seen.misplaced:
        return (
            f"{seen.misplaced:.0f} elements were not written, or are finite where the reference is not",
            math.inf,
            math.inf,
        )
    if seen.otherwise:
        return "NaN and infinity are not where the reference has them", math.inf, math.inf
    if bound is not None:
        norm, worst = seen.error / max(seen.size, math.ulp(0.0)), seen.worst
        return ("" if worst <= 1 else f"the error of an element is {worst:.3g} of its bound"), norm, worst
    # Below the smallest normal number the spacing of floats is constant: rounding costs half of it.
    step = _subnormal_step(dtype)
    norm = seen.error / (tolerance.norm * seen.size + step * math.sqrt(max(seen.finite, 1)))
    worst = seen.worst / (tolerance.worst * seen.largest + step)
    if norm > 1 or worst > 1:
        return f"the error is {norm:.3g} of what {dtype} tolerates by norm, {worst:.3g} by worst element", norm, worst
    return "", norm, worst


class _Seen(NamedTuple):
    """What is computed of a result and its reference, over the elements that are finite in the reference."""

    misplaced: float  # how many elements of both are finite in one and not in the other
    otherwise: float  # how many elements are another infinity than in the reference, or NaN there alone
    finite: float  # how many there are
    error: float  # norm of the error
    size: float  # norm of the reference, or of the bounds
    worst: float  # largest error, or largest part of its bound; with a bound of 0 an element must be exact
    largest: float  # of the reference

    @classmethod
    def of(cls, result: Any, expected: Any, bound: Any) -> _Seen:
        import torch

        rounded, exact, found = expected.to(result.dtype).double(), expected.double(), result.double()
        finite = torch.isfinite(rounded)
        other = torch.nan_to_num(found) != torch.nan_to_num(rounded)
        error = torch.where(finite, (found - exact).abs(), 0.0)
        size = torch.where(finite, exact if bound is None else bound.double(), 0.0)
        part = error if bound is None else torch.where(error > 0, error / size, error)
        numbers = (
            (finite != torch.isfinite(found)).sum(),
            (other & ~finite).sum(),
            finite.sum(),
            error.norm(),
            size.norm(),
            part.max(),
            size.abs().max(),
        )
        return cls(*torch.stack([number.double() for number in numbers]).tolist())


def ulps_between(result: Any, expected: Any) -> float:
    """The largest distance of an element from exact, in units in the last place of the result's dtype.

    A correctly rounded result is at most half a unit away. Elements whose exact value rounds to infinity are left out.
    """
    import torch

    if not result.numel():
        return 0.0
    limits, exact = torch.finfo(result.dtype), expected.double()
    _, exponent = torch.frexp(exact)  # exact is a fraction from 0.5 to 1, times 2 ** exponent
    unit = torch.ldexp(torch.full_like(exact, limits.eps), exponent - 1)
    unit = unit.clamp(min=float(limits.smallest_normal) * float(limits.eps))
    finite = torch.isfinite(expected.to(result.dtype))
    return float(torch.where(finite, (result.double() - exact).abs() / unit, 0.0).max())


def _subnormal_step(dtype: str) -> float:
    import torch

    limits = torch.finfo(torch_dtype(dtype))
    return float(limits.smallest_normal * limits.eps)


# Reports.


class VerifiedVariant(TypedDict):
    """A variant that agreed with its reference in every call."""

    arch: str  # its architecture
    variant: str  # its name
    cubin_sha256: tuple[str, ...]  # of the code that ran


def report_data(bundle: Path, manifest: LoaderManifest, report: Report) -> dict[str, Any]:
    """A report as JSON; ``verified`` is what :func:`record` reads."""
    digests = {
        (str(arch), variant.name): variant.cubin_sha256
        for arch, listed in variants_of(bundle, manifest).items()
        for variant in listed
    }
    verified: list[VerifiedVariant] = [
        {"arch": arch, "variant": name, "cubin_sha256": digests[arch, name]} for arch, name in report.verified()
    ]
    return {
        "bundle": manifest.name,
        "machine": report.gpu.facts(),
        "passed": report.passed,
        "verified": verified,
        "unreached": [list(pair) for pair in report.unreached],
        "unchecked": list(report.unchecked),
        "calls": encode(report.outcomes),
    }


_REPORT_HINT = "pass the file that `check --out FILE` wrote"


def record(bundle: Path, data: Mapping[str, Any], warn: Callable[[str], None] | None = None) -> int:
    """Write into the bundle's details what a report verified; returns the number of variants.

    Variants whose code is not the code that ran are not changed. The bundle is replaced whole, as by a build, and
    ``warn`` is told if it loses its signature by that.
    """
    # It reads libraries with pyelftools, which running kernels does not need.
    from ..bundle.verifying.verify import refuse_unsound

    refuse_installed(bundle)
    manifest = Manifest.read(bundle)
    check_schema(bundle, manifest)
    # The new manifest has the digests of what is there: what was altered would be right from then on.
    refuse_unsound(bundle, "nothing was recorded", any_signature=True)
    try:
        fact = f"{data['machine']['gpu']} {data['machine']['date']}"
        verified = {(str(e["arch"]), str(e["variant"])): tuple(e["cubin_sha256"]) for e in data["verified"]}
    except (KeyError, TypeError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise UsageError(f"not a report of `check`: {reason}", hint=_REPORT_HINT) from None
    texts, count = {}, 0
    for arch in sorted({Arch.parse(arch) for arch, _ in verified}):
        if details_name(arch) in manifest.files:
            variants = read_details(bundle / details_name(arch))
            ran = [verified.get((str(arch), variant.name)) == variant.cubin_sha256 for variant in variants]
            count += sum(ran)
            noted = [_noted(variant, fact) if has else variant for variant, has in zip(variants, ran, strict=True)]
            texts[details_name(arch)] = details_text(arch, noted)
    _rewrite(bundle, manifest, texts, warn)
    return count


def _noted(variant: VariantDetails, fact: str) -> VariantDetails:
    return dataclasses.replace(variant, verified_on=tuple(sorted({*variant.verified_on, fact})))


def _rewrite(bundle: Path, manifest: Manifest, texts: Mapping[str, str], warn: Callable[[str], None] | None) -> None:
    with staging(bundle.absolute()) as staged:
        for name in manifest.files:
            (staged / name).parent.mkdir(parents=True, exist_ok=True)
            if name in texts:
                (staged / name).write_text(texts[name])
            else:
                _link_or_copy((bundle / name).resolve(), staged / name)
        write_description(staged, manifest)
        publish(staged, bundle, warn)


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)


def read_report(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(read_given(path))
    except OSError as error:
        raise UsageError(f"cannot read the report `{path}`: {error.strerror}", hint=_REPORT_HINT) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"`{path}` is not a report of `check`: {error}", hint=_REPORT_HINT) from None
    if not isinstance(data, dict):
        raise UsageError(f"`{path}` is not a report of `check`: it is no JSON object", hint=_REPORT_HINT)
    return data
