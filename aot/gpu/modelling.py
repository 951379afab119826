"""From measured times to models: what ``tune`` writes for kernels whose specs say what their work is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aot_runtime.arch import Arch

from ..bundle.details import VariantDetails
from ..bundle.tables.models import ModelledKernel, ModelledSet, Models
from ..bundle.tables.tuning import TunedDevice
from ..errors import UsageError
from ..files import read_given
from ..model.parts import Part, named_parts
from ..records import RecordError, decode
from .tune import Measured

__all__ = ["Times", "models_of_times", "read_times"]

FEWEST = 8  # times of a spec; one with fewer has no model, and no table names it


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


def models_of_times(
    times: Times, variants: Mapping[Arch, Sequence[VariantDetails]], devices: Sequence[str] = ()
) -> Models:
    """Models of all kernels that were measured and whose specs have `work`."""
    named_parts(devices, times.device.capability)  # what is not known is refused before anything is fitted
    pairs = dict.fromkeys((one.kernel, one.arch) for one in times.measured)
    models = []
    for kernel, arch in pairs:
        listed = [one for one in variants.get(Arch.parse(arch), ()) if one.kernel == kernel and one.work is not None]
        own = [one for one in times.measured if (one.kernel, one.arch) == (kernel, arch)]
        if listed:
            models.append(_kernel(times, kernel, Arch.parse(arch), listed, own))
    return Models(times.device, times.clock, tuple(models), tuple(devices))


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
    times: Times, point: Mapping[str, str], variants: Sequence[VariantDetails], measured: Sequence[Measured]
) -> ModelledSet:
    import numpy as np

    from ..model.bins import bins_for, label_of
    from ..model.fit import fit

    device = times.device
    part = Part(device.name, device.capability, device.multiprocessors, device.bandwidth, times.clock)
    own = {label_of(one): one for one in variants if point.items() <= one.point.items()}
    by = tuple(variants[0].tuned_by)
    numbers = {}
    for label, variant in own.items():
        rows = [
            (*one.extents, min(one.microseconds.values()), microseconds)
            for one in measured
            for name, microseconds in one.microseconds.items()
            if name.rpartition("__")[2] == label
        ]
        if len(rows) >= FEWEST and variant.work is not None:
            table = np.array(rows)
            numbers[label] = fit(variant.work, by, table[:, :-2], table[:, -1], part, least=table[:, -2])
    fitted = [variant for label, variant in own.items() if label in numbers]
    bins = bins_for(fitted, numbers, [one.extents for one in measured], part)
    return ModelledSet(point, bins, numbers, _fastest(measured, fitted, numbers, part))


def _fastest(
    measured: Sequence[Measured],
    variants: Sequence[VariantDetails],
    numbers: Mapping[str, Sequence[float]],
    part: Part,
) -> dict[str, tuple[tuple[int, ...], ...]]:
    """The calls that each spec was the fastest for, unless the model finds one faster that was not timed."""
    from ..model.bins import label_of, predicted

    calls = [one.extents for one in measured]
    expected = {label_of(one): predicted(one, numbers[label_of(one)], calls, part) for one in variants}
    found: dict[str, list[tuple[int, ...]]] = {label: [] for label in expected}
    for index, one in enumerate(measured):
        named = {name.rpartition("__")[2]: took for name, took in one.microseconds.items()}
        times = {label: took for label, took in named.items() if label in found}
        best = min(times, key=times.__getitem__, default=None)
        if best is not None and all(expected[label][index] >= times[best] for label in found.keys() - times.keys()):
            found[best].append(one.extents)
    return {label: tuple(sorted(set(calls))) for label, calls in found.items() if calls}
