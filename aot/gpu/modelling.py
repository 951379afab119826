"""From measured times to models: what ``tune`` writes for kernels whose specs say what their work is."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from aot_runtime.arch import Arch

from ..bundle.details import VariantDetails
from ..bundle.tables.models import CorrectionTree, ModelledKernel, ModelledSet, Models, read_source
from ..bundle.tables.tuning import TunedDevice
from ..errors import UsageError
from ..files import read_given
from ..model.parts import Part, named_parts
from ..records import RecordError, decode
from .tune import Measured

__all__ = ["Times", "check_measured_on", "models_of_times", "read_models", "read_times"]

FEWEST = 8  # times of a spec; one with fewer has no model, and no table names it
FEWEST_MORE = 3  # if earlier models say what its numbers may be
LARGE = 0.95  # of the sizes of timed calls, the share above which earlier wins count whatever the model finds
FEWEST_TO_CORRECT = 1000  # times of all specs of a set
NEAR = 1.22  # times that are longer than this, relative to the least of a call, say nothing of a correction


@dataclass(frozen=True)
class Times:
    """What ``tune --json`` prints, as far as a model needs it."""

    device: TunedDevice
    clock: int  # of its multiprocessors, in MHz
    measured: tuple[Measured, ...]


def read_times(paths: Sequence[Path]) -> Times:
    """The times of several files, of one device."""
    found = [_read(path) for path in paths]
    for path, other in zip(paths, found, strict=True):
        if other.device != found[0].device:
            raise UsageError(f"`{path}` has times of {other.device}, `{paths[0]}` of {found[0].device}")
    return Times(found[0].device, found[0].clock, tuple(one for times in found for one in times.measured))


def _read(path: Path) -> Times:
    try:
        return decode(Times, json.loads(read_given(path)))
    except OSError as error:
        raise UsageError(f"cannot read `{path}`: {error.strerror}", hint="`tune --json` prints such a file") from None
    except (ValueError, RecursionError, RecordError) as error:
        raise UsageError(f"`{path}` has no times: {error}", hint="`tune --json` prints such a file") from None


def read_models(path: Path) -> Models:
    """The models of a file, for times to refine."""
    found = read_source(path)
    if not isinstance(found, Models):
        raise UsageError(
            f"`{path}` has tables that were measured, and no models", hint="kernels whose specs have `work` have models"
        )
    return found


def check_measured_on(models: Models, device: TunedDevice) -> None:
    """Times of one GPU say nothing of numbers that were fitted to another's."""
    if models.device != device:
        raise UsageError(
            f"the models were fitted to times of {models.device}, these are of {device}",
            hint="without `--refine`, models are fitted to these times alone",
        )


def models_of_times(
    times: Times,
    variants: Mapping[Arch, Sequence[VariantDetails]],
    devices: Sequence[str] = (),
    known: Models | None = None,
) -> Models:
    """Models of all kernels that were measured and whose specs have `work`.

    ``known``: models that the times refine. Fits begin with their numbers, or for a new spec with those of the ones most like
    it; what won there still counts, unless a new spec is faster by its model; and what was not measured again stays.
    """
    named_parts(devices, times.device.capability)  # what is not known is refused before anything is fitted
    if known is not None:
        check_measured_on(known, times.device)
    before = {(one.kernel, one.arch): one for one in known.models} if known is not None else {}
    models = dict(before)
    for kernel, text in dict.fromkeys((one.kernel, one.arch) for one in times.measured):
        arch = Arch.parse(text)
        listed = [one for one in variants.get(arch, ()) if one.kernel == kernel and one.work is not None]
        own = [one for one in times.measured if (one.kernel, one.arch) == (kernel, text)]
        if listed and (kernel, arch) in before:
            models[kernel, arch] = _refined(times, before[kernel, arch], listed, own)
        elif listed:
            models[kernel, arch] = _kernel(times, kernel, arch, listed, own)
    chosen = tuple(devices) or (known.devices if known is not None else ())
    return Models(times.device, times.clock, tuple(models.values()), chosen)


def _refined(
    times: Times, known: ModelledKernel, variants: Sequence[VariantDetails], measured: Sequence[Measured]
) -> ModelledKernel:
    sets, rest = [], list(measured)
    for one in known.sets:
        own = [each for each in rest if one.point.items() <= each.point.items()]
        rest = [each for each in rest if each not in own]
        sets.append(_set(times, one.point, variants, own, one) if own else one)
    if rest:
        of_call = " ".join(rest[0].point.values())
        raise UsageError(
            f"the models of {known.kernel} have none for {of_call}",
            hint="without `--refine`, models are fitted to these times alone",
        )
    return replace(known, sets=tuple(sets))


def _kernel(
    times: Times, kernel: str, arch: Arch, variants: Sequence[VariantDetails], measured: Sequence[Measured]
) -> ModelledKernel:
    """Axes on which one value was measured are taken not to matter: other dtypes, for example, choose alike."""
    axes = [axis for axis in measured[0].point if len({one.point[axis] for one in measured}) > 1]
    points = dict.fromkeys(tuple((axis, one.point[axis]) for axis in axes) for one in measured)
    sets = []
    for point in points:
        own = [one for one in measured if tuple((axis, one.point[axis]) for axis in axes) == point]
        sets.append(_set(times, dict(point), variants, own))
    return ModelledKernel(kernel, arch, tuple(variants[0].tuned_by), tuple(sets))


def _set(
    times: Times,
    point: Mapping[str, str],
    variants: Sequence[VariantDetails],
    measured: Sequence[Measured],
    known: ModelledSet | None = None,
) -> ModelledSet:
    import numpy as np

    from ..model.bins import bins_for, label_of
    from ..model.fit import fit, numbers_like

    device = times.device
    part = Part(device.name, device.capability, device.multiprocessors, device.bandwidth, times.clock)
    own = {label_of(one): one for one in variants if point.items() <= one.point.items()}
    by = tuple(variants[0].tuned_by)
    before = known if known is not None else ModelledSet(point, (), {})
    numbers = dict(before.numbers)
    works = {label: one.work for label, one in own.items() if one.work is not None}
    earlier = [(works[label], found) for label, found in before.numbers.items() if label in works]
    large = _large(measured)
    for label, work in works.items():
        rows = [
            (*one.extents, min(one.microseconds.values()), microseconds)
            for one in measured
            for name, microseconds in one.microseconds.items()
            if name.rpartition("__")[2] == label
        ]
        if len(rows) >= (FEWEST_MORE if earlier else FEWEST):
            table = np.array(rows)
            begin = before.numbers.get(label) or (numbers_like(work, earlier, part) if earlier else None)
            numbers[label] = fit(work, by, table[:, :-2], table[:, -1], part, table[:, -2], begin)
    fitted = [variant for label, variant in own.items() if label in numbers]
    fresh = ModelledSet(point, (), numbers, {}, _correction(measured, fitted, numbers, part) or before.correction)
    fastest, kept = _fastest(measured, fitted, fresh, part), _kept(before, fitted, fresh, part, large)
    won = {label: tuple(sorted({*kept.get(label, ()), *fastest.get(label, ())})) for label in {**kept, **fastest}}
    calls = [one.extents for one in measured] + [call for own in before.fastest.values() for call in own]
    return replace(fresh, bins=bins_for(fitted, numbers, calls, part), fastest=won)


def _correction(
    measured: Sequence[Measured],
    variants: Sequence[VariantDetails],
    numbers: Mapping[str, Sequence[float]],
    part: Part,
) -> tuple[CorrectionTree, ...]:
    """What the errors of all specs have in common, by times of calls that they are nearly the fastest for."""
    import numpy as np

    from ..model.bins import label_of, predicted
    from ..model.correction import Errors, features_of, fit_correction
    from ..model.times import counts_of

    specs = []
    for one in variants:
        rows = [
            (number, *each.extents, took, min(each.microseconds.values()))
            for number, each in enumerate(measured)
            for name, took in each.microseconds.items()
            if name.rpartition("__")[2] == label_of(one)
        ]
        near = np.array([row for row in rows if row[-2] < NEAR * row[-1]])
        if len(near) and one.work is not None:
            calls = near[:, 1:-2]
            counts = counts_of(one.work, dict(zip(one.tuned_by, calls.T, strict=True)), part)
            expected = predicted(one, numbers[label_of(one)], calls.tolist(), part)
            errors = np.log(near[:, -2] / expected)
            specs.append(Errors(near[:, 0].astype(int), features_of(one.work, counts), errors))
    return fit_correction(specs) if sum(len(one.calls) for one in specs) >= FEWEST_TO_CORRECT else ()


def _large(measured: Sequence[Measured]) -> float:
    """The product of extents above which few calls were timed."""
    sizes = sorted(math.prod(one.extents) for one in measured)
    return sizes[int(LARGE * (len(sizes) - 1))]


def _kept(
    before: ModelledSet, variants: Sequence[VariantDetails], now: ModelledSet, part: Part, large: float
) -> dict[str, tuple[tuple[int, ...], ...]]:
    """The calls of earlier times that each spec won, unless the model finds a spec faster that had no numbers then."""
    from ..model.bins import label_of, predicted

    known = {label_of(one): one for one in variants}
    new = [one for label, one in known.items() if label not in before.numbers]
    found = {}
    for label, calls in before.fastest.items():
        kept = list(calls)
        if new and calls and label in known:
            own = predicted(known[label], now.numbers[label], calls, part, now.correction)
            others = [predicted(one, now.numbers[label_of(one)], calls, part, now.correction) for one in new]
            rows = zip(calls, own, *others, strict=True)
            kept = [call for call, took, *rest in rows if took <= min(rest) or math.prod(call) > large]
        found[label] = tuple(kept)
    return {label: calls for label, calls in found.items() if calls}


def _fastest(
    measured: Sequence[Measured], variants: Sequence[VariantDetails], now: ModelledSet, part: Part
) -> dict[str, tuple[tuple[int, ...], ...]]:
    """The calls that each spec was the fastest for, unless the model finds one faster that was not timed.

    A GPU that is limited by power makes all specs of a large call slower than the model says: what it predicts of those that
    were not timed is compared as if they were slower, too.
    """
    import numpy as np

    from ..model.bins import label_of, predicted

    calls = [one.extents for one in measured]
    expected = {
        label: predicted(one, now.numbers[label], calls, part, now.correction)
        for label, one in ((label_of(one), one) for one in variants)
    }
    found: dict[str, list[tuple[int, ...]]] = {label: [] for label in expected}
    for index, one in enumerate(measured):
        named = {name.rpartition("__")[2]: took for name, took in one.microseconds.items()}
        times = {label: took for label, took in named.items() if label in found}
        best = min(times, key=times.__getitem__, default=None)
        if best is not None:
            slower = np.exp(np.mean([np.log(took / expected[label][index]) for label, took in times.items()]))
            if all(expected[label][index] * slower >= times[best] for label in found.keys() - times.keys()):
                found[best].append(one.extents)
    return {label: tuple(sorted(set(calls))) for label, calls in found.items() if calls}
