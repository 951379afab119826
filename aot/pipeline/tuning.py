"""The tables that a build compiles into its entry library: which files they are, and whether they fit."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aot_runtime.arch import Arch

from ..bundle.details import VariantDetails
from ..bundle.tables.models import Models, read_source
from ..bundle.tables.tuning import TUNING, Tuning, check_names, check_tuning, tuning_name
from ..errors import ToolchainError, UsageError
from ..files import sha256_of
from ..versions import install_extras
from .plan import KernelPlan
from .settings import Settings

__all__ = ["Tables", "read_tables"]

_Pair = tuple[str, Arch]


@dataclass(frozen=True)
class Tables:
    """The tables of a build, by the files that they were read from."""

    sources: Mapping[Path, Tuning | Models] = field(default_factory=dict)
    digests: tuple[str, ...] = ()  # of the files
    is_named: bool = False  # by the settings: each must then be about some kernel of the build

    def check(self, plan: Sequence[KernelPlan]) -> None:
        """Raise if a table does not fit what is planned: compiling that may take long, and only then is the table needed."""
        planned = {(kernel.info.name, kernel.arch): kernel.variants for kernel in plan}
        for path in self.sources:
            own = self._of(path, planned)
            for table in own.kernels if isinstance(own, Tuning) else ():
                known = {variant.table.name for variant in planned[table.pair]}
                check_names(table, known, str(path))

    def of_built(self, built: Mapping[_Pair, Sequence[VariantDetails]]) -> tuple[Tuning, ...]:
        """The tables of kernels that were built: computed from models, then those that were measured, which count more."""
        computed: list[Tuning] = []
        measured: list[Tuning] = []
        for path in self.sources:
            own = self._of(path, built)
            if isinstance(own, Models):
                computed += _computed(own, built)
            else:
                check_tuning(own, built, str(path))
                measured.append(own)
        return tuple(tuning for tuning in (*computed, *measured) if tuning.kernels)

    def _of(self, path: Path, pairs: Collection[_Pair]) -> Tuning | Models:
        """What a file has for these kernels."""
        source = self.sources[path]
        own = source.only(pairs)
        if self.is_named and not own.pairs:
            listed = ", ".join(f"{kernel} for {arch}" for kernel, arch in source.pairs) or "no kernel"
            built = ", ".join(f"{name} for {arch}" for name, arch in sorted(pairs))
            raise UsageError(
                f"`{path}` matches no kernel of this build: it has tables of {listed}; this build has {built}",
                hint="build what was tuned, or leave `--tuning` out",
            )
        return own


def _computed(models: Models, built: Mapping[_Pair, Sequence[VariantDetails]]) -> Iterable[Tuning]:
    if not models.models:
        return ()
    try:
        from ..model.tables import tables_of  # needs NumPy, which nothing else of a build does
    except ModuleNotFoundError as error:
        raise ToolchainError(f"tables are computed with NumPy: {error}", hint=install_extras("build")) from None
    return tables_of(models, built)


def read_tables(settings: Settings) -> Tables:
    """The tables, read before anything is compiled: what is wrong with a file is reported at once."""
    # Those that were named, else those in a folder of the kernels' own folder.
    paths = settings.tuning or tuple(sorted((Path(settings.kernels) / TUNING).glob("*.json")))
    sources = {path: read_source(path) for path in paths}
    tables = {path: source for path, source in sources.items() if isinstance(source, Tuning)}
    files = [tuning_name(tuning.device) for tuning in tables.values()]  # of a bundle: one for each device
    for path, tuning in tables.items():
        if files.count(tuning_name(tuning.device)) > 1:
            raise UsageError(f"`{path}`: there are two tables for {tuning.device}", hint="pass one of them")
    return Tables(sources, tuple(sha256_of(path) for path in paths), bool(settings.tuning))
