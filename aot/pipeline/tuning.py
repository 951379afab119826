"""The tables that a build compiles into its entry library: which files they are, and whether they fit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..bundle.tuning import TUNING, Tuning, check_tuning, read_tuning
from ..errors import UsageError
from ..link.tuning import EntrySet, EntryTable
from .contributions import Contribution
from .settings import Settings

__all__ = ["entry_tables", "fitting_tables", "read_tables", "tuning_files"]


def tuning_files(settings: Settings) -> tuple[Path, ...]:
    """Those that were named, else those in a folder ``tuning`` of the kernels' own folder."""
    return settings.tuning or tuple(sorted((Path(settings.kernels) / TUNING).glob("*.json")))


def read_tables(settings: Settings) -> dict[Path, Tuning]:
    """The tables, read before anything is compiled: what is wrong with a file is reported at once."""
    tables = {path: read_tuning(path) for path in tuning_files(settings)}
    devices = [tuning.device for tuning in tables.values()]
    for path, tuning in tables.items():
        if devices.count(tuning.device) > 1:
            raise UsageError(f"`{path}`: there are two tables for {tuning.device}", hint="pass one of them")
    return tables


def fitting_tables(tables: dict[Path, Tuning], settings: Settings, built: Contribution) -> Sequence[Tuning]:
    """As much of the tables as is about kernels that were built. A table that was named must be about some of them."""
    variants = {pair: kernel.variants for pair, kernel in built.kernels.items()}
    fitting = []
    for path, tuning in tables.items():
        own = tuning.only(variants)
        if settings.tuning and not own.kernels:
            listed = ", ".join(f"{kernel.kernel} for {kernel.arch}" for kernel in tuning.kernels) or "no kernel"
            raise UsageError(f"`{path}` matches no kernel of this build: it has tables of {listed}")
        check_tuning(own, variants, str(path))
        fitting.append(own)
    return [tuning for tuning in fitting if tuning.kernels]


def entry_tables(tunings: Sequence[Tuning], kernel: str, function: str) -> tuple[EntryTable, ...]:
    """The tables of a public function of a kernel, for all devices and architectures."""
    found = []
    for tuning in tunings:
        for table in (table for table in tuning.kernels if table.kernel == kernel):
            own = [one for one in table.sets if one.function == function]
            sets = tuple(EntrySet(one.variants, one.bins, one.cells) for one in own)
            if sets:
                found.append(EntryTable(tuning.device.name, tuning.device.multiprocessors, table.arch, sets))
    return tuple(found)
