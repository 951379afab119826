"""The tables that a build compiles into its entry library: which files they are, and whether they fit."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from aot_runtime.arch import Arch

from ...bundle.tuning import TUNING, Tuning, check_names, read_tuning, tuning_name
from ...errors import UsageError
from ..plan import KernelPlan
from ..settings import Settings

__all__ = ["check_named", "check_tables", "read_tables", "tuning_files"]


def tuning_files(settings: Settings) -> tuple[Path, ...]:
    """Those that were named, else those in a folder ``tuning`` of the kernels' own folder."""
    return settings.tuning or tuple(sorted((Path(settings.kernels) / TUNING).glob("*.json")))


def read_tables(settings: Settings) -> dict[Path, Tuning]:
    """The tables, read before anything is compiled: what is wrong with a file is reported at once."""
    tables = {path: read_tuning(path) for path in tuning_files(settings)}
    files = [tuning_name(tuning.device) for tuning in tables.values()]  # of a bundle: one for each device
    for path, tuning in tables.items():
        if files.count(tuning_name(tuning.device)) > 1:
            raise UsageError(f"`{path}`: there are two tables for {tuning.device}", hint="pass one of them")
    return tables


def check_tables(tables: Mapping[Path, Tuning], settings: Settings, plan: Sequence[KernelPlan]) -> None:
    """Raise if a table does not fit what is planned: compiling it may take long, and the table is needed only then."""
    planned = {(kernel.info.name, kernel.arch): kernel.variants for kernel in plan}
    for path, tuning in tables.items():
        check_named(path, tuning, settings, planned)
        for table in tuning.only(planned).kernels:
            known = {variant.table.name for variant in planned[table.pair]}
            check_names(table, known, str(path))


def check_named(path: Path, tuning: Tuning, settings: Settings, pairs: Collection[tuple[str, Arch]]) -> None:
    """A table that was named must be about some kernel of the build."""
    if settings.tuning and not tuning.only(pairs).kernels:
        listed = ", ".join(f"{kernel.kernel} for {kernel.arch}" for kernel in tuning.kernels) or "no kernel"
        built = ", ".join(f"{name} for {arch}" for name, arch in sorted(pairs))
        raise UsageError(
            f"`{path}` matches no kernel of this build: it has tables of {listed}; this build has {built}",
            hint="build what was tuned, or leave `--tuning` out",
        )
