"""The tables of a bundle: those that fit what was built, and how the entry library has them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...bundle.tuning import Tuning, check_tuning
from ...link.tuning import EntrySet, EntryTable
from ..planning.tuning import check_named
from ..settings import Settings
from .contributions import Contribution

__all__ = ["entry_tables", "fitting_tables"]


def fitting_tables(tables: dict[Path, Tuning], settings: Settings, built: Contribution) -> Sequence[Tuning]:
    """As much of the tables as is about kernels that were built. A table that was named must be about some of them."""
    variants = {pair: kernel.variants for pair, kernel in built.kernels.items()}
    fitting = []
    for path, tuning in tables.items():
        check_named(path, tuning, settings, variants)
        own = tuning.only(variants)
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
