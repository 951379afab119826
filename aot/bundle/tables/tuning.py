"""``tuning/*.json``: which variant is the fastest on a device, by the extents of a call.

``python -m aot tune`` writes such a file, ``build --tuning`` reads it, and a bundle keeps what was compiled into its
entry library, so that ``merge``, ``prune`` and later builds compile it in again. Standard library only.
"""

from __future__ import annotations

import json
import math
import re
import string
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from aot_runtime.arch import Arch
from aot_runtime.description.records import FileRecord, read_bounded
from aot_runtime.errors import BundleError, DigestError

from ...errors import UsageError
from ...records import RecordError, decode, encode
from ..details import VariantDetails
from ..manifest import Manifest

__all__ = [
    "TUNING",
    "LeftOut",
    "TunedDevice",
    "TunedKernel",
    "TunedSet",
    "Tuning",
    "bundle_tunings",
    "check_names",
    "check_tuning",
    "is_small",
    "read_tuning",
    "read_with",
    "tuning_name",
    "tuning_of",
    "tuning_text",
]

TUNING = "tuning"  # a folder of a bundle
SCHEMA = 5
# Until 4, a set has at most 65536 cells. Until 3, runs of cells are not shortened. Until 2, cells are a list of numbers. In 1,
# every set has bins and cells of its own.
_READABLE = range(1, SCHEMA + 1)
MAX_BINS = 65536  # AOT_MAX_BINS: of the last extent of one set, and combinations of bins of the others
MAX_CELLS = 262144  # AOT_MAX_CELLS: combinations of all bins
MAX_VARIANTS = 256  # of one set: a cell is a byte
MAX_BYTES = 16 << 20
MAX_WRITTEN_OUT = 1 << 23  # cells of a file, and letters in its names of variants, which it has in short forms
_DIGITS = string.digits + string.ascii_letters + "!#$%&()+,-./:<=>?@[]^_`{|}~"  # of cells, if these are enough
_RUN = re.compile(r"(.)\1{4,}", re.DOTALL)  # of cells; written with its length: ``a*12;``
_SHORT = re.compile(r"(.)\*([0-9]{1,6});", re.DOTALL)
_AGAIN = "run `python -m aot tune` again"
_INT64 = range(-(2**63) + 1, 2**63)
_T = TypeVar("_T")


@dataclass(frozen=True)
class TunedDevice:
    """The device of a table. Devices of another name take the table of the nearest one of their compute capability."""

    name: str  # such as NVIDIA H200
    multiprocessors: int  # how many it has
    capability: str  # its compute capability, such as 9.0
    bandwidth: int = 0  # of its memory in GB/s, as its driver reports it; 0: not known

    def __str__(self) -> str:
        return f"{self.name} ({self.multiprocessors} multiprocessors)"


@dataclass(frozen=True)
class TunedSet:
    """Variants of one point: same dtype, same layout, same choices.

    ``bins`` are, for each extent, the lowest values of its bins but the first. ``cells`` has the index of a variant for
    each combination of bins; the bins of the last extent change fastest.
    """

    function: str  # the public function that chooses among them
    point: Mapping[str, str]  # their place on the axes of the declaration
    variants: tuple[str, ...]  # their names
    bins: tuple[tuple[int, ...], ...]  # for each extent, the lowest values of its bins but the first
    cells: tuple[int, ...]  # the index of a variant for each combination of bins, the last extent's changing fastest


@dataclass(frozen=True)
class LeftOut:
    """A variant that no cell names, because it disagreed with the contract."""

    variant: str  # its name
    reason: str  # in what it disagreed


@dataclass(frozen=True)
class TunedKernel:
    """The table of a kernel for an architecture: measured, or predicted from times of another device."""

    kernel: str  # its name
    arch: Arch  # the architecture
    by: tuple[str, ...]  # the extents, as they are declared
    sets: tuple[TunedSet, ...]  # one for each point
    left_out: tuple[LeftOut, ...] = ()  # what no cell names
    measured_on: str = ""  # the device whose times a model was fitted to; "": that of the table

    @property
    def pair(self) -> tuple[str, Arch]:
        return self.kernel, self.arch


@dataclass(frozen=True)
class Tuning:
    """The tables of one device."""

    device: TunedDevice
    kernels: tuple[TunedKernel, ...]
    schema: int = SCHEMA

    @property
    def pairs(self) -> list[tuple[str, Arch]]:
        return [kernel.pair for kernel in self.kernels]

    def only(self, pairs: Iterable[tuple[str, Arch]]) -> Tuning:
        """The tables of these kernels."""
        wanted = set(pairs)
        return replace(self, kernels=tuple(kernel for kernel in self.kernels if kernel.pair in wanted))


def is_small(counts: Sequence[int]) -> bool:
    """Whether a table can have as many bins of each extent."""
    rows, width = math.prod(counts[:-1]), math.prod(counts[-1:])
    return max(rows, width) <= MAX_BINS and rows * width <= MAX_CELLS


def tuning_name(device: TunedDevice) -> str:
    """Where a bundle keeps the tables of a device: ``tuning/nvidia_h200_132.json``."""
    slug = re.sub(r"[^a-z0-9]+", "_", device.name.lower()).strip("_")
    return f"{TUNING}/{slug}_{device.multiprocessors}.json"


def tuning_text(tuning: Tuning) -> str:
    """JSON with a line for each kernel and set, to be read and compared by people too."""
    data = encode(tuning)
    kernels = []
    for kernel in data["kernels"]:
        sets = ",\n  ".join(json.dumps(one) for one in _without_repetition(kernel.pop("sets")))
        kernels.append(json.dumps(kernel)[:-1] + f', "sets": [\n  {sets}\n ]}}')
    rows = ",\n ".join(kernels)
    return f'{{"schema": {SCHEMA}, "device": {json.dumps(data["device"])}, "kernels": [\n {rows}\n]}}\n'


def _without_repetition(sets: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The sets in their short form. A set with the choices of an earlier set names the index of that set instead.

    Dtypes and epilogues often have the same choices, and nearly all of a file is cells. Cells are a text with one
    character each, and the names of variants stand without the prefix that they share.
    """
    grids = []
    for one in sets:
        one["prefix"] = _prefix(one["variants"])
        rests = [name[len(one["prefix"]) :] for name in one.pop("variants")]
        grids.append({"variants": rests, "bins": one.pop("bins"), "cells": _text_of(one.pop("cells"))})
    for index, (one, grid) in enumerate(zip(sets, grids, strict=True)):
        first = grids.index(grid)
        yield {**one, **grid} if first == index else {**one, "like": first}


def _prefix(names: Sequence[str]) -> str:
    """What comes before the labels of variants, if it is the same for all."""
    start, between, _ = names[0].rpartition("__")
    return start + between if all(name.startswith(start + between) for name in names) else ""


def _text_of(cells: Sequence[int]) -> str | Sequence[int]:
    if max(cells) >= len(_DIGITS):
        return cells
    return _RUN.sub(lambda run: f"{run[1]}*{len(run[0])};", "".join(_DIGITS[cell] for cell in cells))


def _cells_of(text: str, index: int) -> list[int]:
    if sum(int(run[2]) for run in _SHORT.finditer(text)) > MAX_CELLS:
        raise RecordError(f"set {index} has more than {MAX_CELLS} cells")
    whole = _SHORT.sub(lambda run: run[1] * int(run[2]), text)
    cells = [_DIGITS.find(character) for character in whole]
    if -1 in cells:
        raise RecordError(f"set {index} has a cell {whole[cells.index(-1)]!a}, which stands for no variant")
    return cells


def _with_repetition(data: dict[str, Any]) -> dict[str, Any]:
    """Undo :func:`_without_repetition` in each kernel. The decoder of types refuses what has another form.

    A short form of a few letters may stand for a megabyte, and a file for more than there is memory: both are bounded.
    """
    left = MAX_WRITTEN_OUT
    for kernel in _list(data, "kernels"):
        sets = _list(kernel, "sets")
        for index, one in enumerate(sets):
            _write_out_choices(sets, index)
            left -= len(_list(one, "cells"))
            if left < 0:
                raise RecordError(f"it has more than {MAX_WRITTEN_OUT} cells")
        for one in (one for one in sets if isinstance(one, dict) and isinstance(one.get("prefix"), str)):
            left -= len(one["prefix"]) * len(_list(one, "variants"))
            if left < 0:
                raise RecordError(f"it has more than {MAX_WRITTEN_OUT} cells, and letters in names of variants")
            one["variants"] = [one["prefix"] + str(rest) for rest in _list(one, "variants")]
    return data


def _write_out_choices(sets: Sequence[Any], index: int) -> None:
    """Give a set its cells as numbers, and what it shares with the earlier set that it names."""
    one = sets[index]
    if not isinstance(one, dict):
        return
    if isinstance(one.get("cells"), str):
        one["cells"] = _cells_of(one["cells"], index)
    if "like" in one:
        first = one.pop("like")
        if type(first) is not int or not 0 <= first < index or not isinstance(sets[first], dict):
            raise RecordError(f"set {index} is like set {first!a}, which is not one before it")
        one |= {name: sets[first].get(name) for name in ("bins", "cells", "variants") if name not in one}


def _list(data: Any, name: str) -> list[Any]:
    """A field of JSON data, if it is a list."""
    found = data.get(name) if isinstance(data, dict) else None
    return found if isinstance(found, list) else []


def read_tuning(path: Path, expected: FileRecord | None = None) -> Tuning:
    """The tables of a file; :class:`UsageError` says in one line what is wrong with it.

    A file of a bundle must be the ``expected`` one, or :class:`DigestError` is raised.
    """
    return read_with(path, tuning_of, expected)


def tuning_of(data: Any) -> Tuning:
    """The tables in JSON data; :class:`RecordError` if it is something else."""
    seen = data.get("schema") if isinstance(data, dict) else None
    if type(seen) is not int or seen not in _READABLE:
        raise RecordError(f"it has schema {seen!a}, this version reads 1 to {SCHEMA}")
    tuning = decode(Tuning, _with_repetition({**data, "schema": SCHEMA}))
    _check(tuning)
    return tuning


def read_with(path: Path, parse: Callable[[Any], _T], expected: FileRecord | None = None) -> _T:
    """What ``parse`` makes of the JSON in a file; see :func:`read_tuning`."""
    if not path.exists():
        raise UsageError(f"there is no file `{path}`", hint="`python -m aot tune BUNDLE --out FILE` writes one")
    try:
        content = read_bounded(str(path), MAX_BYTES, BundleError)
        if expected is not None and FileRecord.of(content) != expected:
            raise DigestError(f"`{path}` is not what its manifest says", hint="rebuild that bundle")
        return parse(json.loads(content.decode()))
    except DigestError:
        raise
    except (BundleError, ValueError, RecursionError) as error:
        reason = getattr(error, "message", error)  # without a hint, which is about bundles
        raise UsageError(f"`{path}` is not what `tune` writes: {reason}", hint=_AGAIN) from None


def _check(tuning: Tuning) -> None:
    """What a decoder of types does not see: bounds, and that the parts agree."""
    device = tuning.device
    if (
        not 0 < device.multiprocessors < 2**31
        or not 0 < len(device.name.encode()) < 128
        or not device.name.isprintable()
        or not 0 <= device.bandwidth < 2**31
        or not re.fullmatch(r"[0-9]{1,3}\.[0-9]{1,3}", device.capability)
    ):
        raise RecordError(f"there is no such device: {str(device)!a}")
    pairs = [kernel.pair for kernel in tuning.kernels]
    if len(set(pairs)) != len(pairs):
        raise RecordError("it has two tables for one kernel and architecture")
    for kernel in tuning.kernels:
        seen: set[str] = set()
        for one in kernel.sets:
            problem = _problem(one, kernel) or ("" if seen.isdisjoint(one.variants) else "two sets share a variant")
            if problem:
                raise RecordError(f"{kernel.kernel} for {kernel.arch}: {problem}")
            seen |= set(one.variants)


def _problem(one: TunedSet, kernel: TunedKernel) -> str:
    cells = math.prod(len(bins) + 1 for bins in one.bins)
    if len(one.bins) != len(kernel.by):
        return f"{len(one.bins)} lists of bins for {len(kernel.by)} extents"
    if any(bound not in _INT64 for bins in one.bins for bound in bins):
        return "a bin does not fit in 64 bits"
    if any(low >= high for bins in one.bins for low, high in pairwise(bins)):
        return "bins do not ascend"
    if not is_small([len(bins) + 1 for bins in one.bins]) or len(one.cells) != cells:
        return f"{len(one.cells)} cells for {cells} combinations of bins, of at most {MAX_CELLS}"
    if not 0 < len(one.variants) <= MAX_VARIANTS or len(set(one.variants)) != len(one.variants):
        return f"{len(one.variants)} variants; there must be 1 to {MAX_VARIANTS} different ones"
    if any(not 0 <= cell < len(one.variants) for cell in set(one.cells)):  # a table has hundreds of thousands
        return "a cell names no variant"
    return ""


def bundle_tunings(bundle: Path, manifest: Manifest) -> list[Tuning]:
    """The tables that were compiled into a bundle's entry library, each file after its digest matched."""
    names = sorted(name for name in manifest.files if name.startswith(f"{TUNING}/"))
    return [read_tuning(bundle / name, manifest.files[name]) for name in names]


def check_names(table: TunedKernel, known: Collection[str], where: str) -> None:
    """Every variant that a table names is there; :class:`UsageError` if not."""
    for name in (name for one in table.sets for name in one.variants):
        if name not in known:
            raise UsageError(
                f"`{where}`: the table of {table.kernel} for {table.arch} names {name}, a variant that no longer exists",
                hint=_AGAIN,
            )


def check_tuning(tuning: Tuning, variants: Mapping[tuple[str, Arch], Sequence[VariantDetails]], where: str) -> None:
    """Every table fits the variants that are there; :class:`UsageError` if not."""
    for kernel in tuning.kernels:
        known = {variant.name: variant for variant in variants[kernel.pair]}
        what = f"`{where}`: the table of {kernel.kernel} for {kernel.arch}"
        check_names(kernel, known, where)
        for one in kernel.sets:
            for variant in (known[name] for name in one.variants):
                if variant.function != one.function or dict(variant.point) != dict(one.point):
                    raise UsageError(f"{what} puts {variant.name} at a point where it is not declared", hint=_AGAIN)
                if tuple(variant.tuned_by) != kernel.by:
                    declared = ", ".join(variant.tuned_by) or "nothing"
                    raise UsageError(
                        f"{what} was tuned by {', '.join(kernel.by)}, the declaration is by {declared}", hint=_AGAIN
                    )
