"""The tables that a build compiles into its entry library: which files they are, and whether they fit."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aot_runtime.arch import Arch

from ..bundle.details import VariantDetails
from ..bundle.tuning import TUNING, Tuning, check_names, check_tuning, read_tuning, tuning_name
from ..errors import UsageError
from ..files import sha256_of
from .plan import KernelPlan
from .settings import Settings

__all__ = ["Tables", "read_tables"]

_Pair = tuple[str, Arch]


@dataclass(frozen=True)
class Tables:
    """The tables of a build, by the files that they were read from."""

    tunings: Mapping[Path, Tuning] = field(default_factory=dict)
    digests: tuple[str, ...] = ()  # of the files
    is_named: bool = False  # by the settings: each must then be about some kernel of the build

    def check(self, plan: Sequence[KernelPlan]) -> None:
        """Raise if a table does not fit what is planned: compiling that may take long, and only then is the table needed."""
        planned = {(kernel.info.name, kernel.arch): kernel.variants for kernel in plan}
        for path in self.tunings:
            for table in self._of(path, planned).kernels:
                known = {variant.table.name for variant in planned[table.pair]}
                check_names(table, known, str(path))

    def of_built(self, built: Mapping[_Pair, Sequence[VariantDetails]]) -> tuple[Tuning, ...]:
        """As much of the tables as is about kernels that were built."""
        found = []
        for path in self.tunings:
            own = self._of(path, built)
            check_tuning(own, built, str(path))
            found.append(own)
        return tuple(tuning for tuning in found if tuning.kernels)

    def _of(self, path: Path, pairs: Collection[_Pair]) -> Tuning:
        """What a file has for these kernels."""
        tuning = self.tunings[path]
        own = tuning.only(pairs)
        if self.is_named and not own.kernels:
            listed = ", ".join(f"{kernel.kernel} for {kernel.arch}" for kernel in tuning.kernels) or "no kernel"
            built = ", ".join(f"{name} for {arch}" for name, arch in sorted(pairs))
            raise UsageError(
                f"`{path}` matches no kernel of this build: it has tables of {listed}; this build has {built}",
                hint="build what was tuned, or leave `--tuning` out",
            )
        return own


def read_tables(settings: Settings) -> Tables:
    """The tables, read before anything is compiled: what is wrong with a file is reported at once."""
    # Those that were named, else those in a folder of the kernels' own folder.
    paths = settings.tuning or tuple(sorted((Path(settings.kernels) / TUNING).glob("*.json")))
    tables = {path: read_tuning(path) for path in paths}
    files = [tuning_name(tuning.device) for tuning in tables.values()]  # of a bundle: one for each device
    for path, tuning in tables.items():
        if files.count(tuning_name(tuning.device)) > 1:
            raise UsageError(f"`{path}`: there are two tables for {tuning.device}", hint="pass one of them")
    return Tables(tables, tuple(sha256_of(path) for path in paths), bool(settings.tuning))
