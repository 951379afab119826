"""``tuning/*.json`` of another kind: the numbers of a model of how long each variant takes.

``python -m aot tune`` fits them to measured times, and a build computes tables from them: for the variants that it has and
the devices that are known. So a file is small, and a bundle with fewer variants gets tables of its own. Standard library
only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aot_runtime.arch import Arch

from ...records import RecordError, decode, encode
from .tuning import TunedDevice, Tuning, is_small, read_with, tuning_of

__all__ = ["CorrectionTree", "ModelledKernel", "ModelledSet", "Models", "models_text", "read_source"]

SCHEMA = 1
_NUMBERS = 7  # of a variant: see `aot/model/times.py`


@dataclass(frozen=True)
class CorrectionTree:
    """Corrects predicted times: see `aot/model/correction.py`."""

    features: tuple[int, ...]  # that the levels ask about
    thresholds: tuple[float, ...]
    leaves: tuple[float, ...]  # logarithms; two for one level, four for two


@dataclass(frozen=True)
class ModelledSet:
    """Variants that one table chooses among. They are known by their labels, which other points may share."""

    point: Mapping[str, str]  # on the axes that matter: a point that agrees with these chooses by this model
    bins: tuple[tuple[int, ...], ...]  # of the tables, as in a `TunedSet`
    numbers: Mapping[str, tuple[float, ...]]  # by label
    fastest: Mapping[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)  # by label: calls that it won
    correction: tuple[CorrectionTree, ...] = ()  # of all times that are predicted


@dataclass(frozen=True)
class ModelledKernel:
    kernel: str  # its name
    arch: Arch  # the architecture
    by: tuple[str, ...]  # the extents, as they are declared
    sets: tuple[ModelledSet, ...]


@dataclass(frozen=True)
class Models:
    """Models of kernels, fitted to times of one device."""

    device: TunedDevice  # that was measured
    clock: int  # of its multiprocessors, in MHz
    models: tuple[ModelledKernel, ...]
    devices: tuple[str, ...] = ()  # names of those that tables are made for; empty: all that are known
    schema: int = SCHEMA

    def only(self, pairs: Collection[tuple[str, Arch]]) -> Models:
        """The models of these kernels."""
        return replace(self, models=tuple(one for one in self.models if (one.kernel, one.arch) in pairs))

    @property
    def pairs(self) -> list[tuple[str, Arch]]:
        return [(kernel.kernel, kernel.arch) for kernel in self.models]


def read_source(path: Path) -> Tuning | Models:
    """The tables or models of a file; :class:`UsageError` says in one line what is wrong with it."""
    return read_with(
        path, lambda data: _models_of(data) if isinstance(data, dict) and "models" in data else tuning_of(data)
    )


def models_text(models: Models) -> str:
    """JSON with a line for each variant."""
    data: dict[str, Any] = encode(models)
    for kernel in data["models"]:
        for one in kernel["sets"]:
            one["numbers"] = {name: [float(f"{n:.4g}") for n in numbers] for name, numbers in one["numbers"].items()}
    text = json.dumps(data)
    return (
        text.replace('"numbers": {', '"numbers": {\n   ')
        .replace('], "tile', '],\n   "tile')
        .replace('{"point"', '\n  {"point"')
        + "\n"
    )


def _models_of(data: Mapping[str, Any]) -> Models:
    """The models in JSON data; :class:`RecordError` says what is wrong with them."""
    if data.get("schema") != SCHEMA:
        raise RecordError(f"it has schema {data.get('schema')!a}, this version reads models of {SCHEMA}")
    models = decode(Models, data)
    for kernel in models.models:
        for one in kernel.sets:
            _check(one, kernel)
    if models.clock < 1 or models.device.multiprocessors < 1 or models.device.bandwidth < 1:
        raise RecordError(f"there is no such device: {str(models.device)!a}")
    return models


def _check(one: ModelledSet, kernel: ModelledKernel) -> None:
    numbers = [number for own in one.numbers.values() for number in own]
    if any(len(own) != _NUMBERS for own in one.numbers.values()) or not all(map(math.isfinite, numbers)):
        raise RecordError(f"{kernel.kernel}: a variant has {_NUMBERS} finite numbers")
    if any(len(call) != len(kernel.by) for own in one.fastest.values() for call in own):
        raise RecordError(f"{kernel.kernel}: a call has {', '.join(kernel.by)}")
    if len(one.bins) != len(kernel.by) or not is_small([len(bins) + 1 for bins in one.bins]):
        raise RecordError(f"{kernel.kernel}: there must be bins of {', '.join(kernel.by)}, and not too many")
