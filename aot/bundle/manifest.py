"""The manifest as the builder has it: made from parts or read, with every file and where it came from, and written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aot_runtime.description.kernel_records import KernelRecord
from aot_runtime.description.manifest import Manifest as LoaderManifest
from aot_runtime.description.manifest import identity_of
from aot_runtime.description.records import (
    KERNELS_NAME,
    PROTOCOL,
    PROVENANCE_NAME,
    SCHEMA,
    FileRecord,
    HostRecord,
)

from .provenance import read_provenance
from .writing import description, kernels_text, manifest_data

__all__ = ["Manifest"]


class Manifest(LoaderManifest):
    """What a loader reads, and where it came from; ``texts`` is what is written."""

    __slots__ = ("_provenance",)

    _provenance: tuple[Mapping[str, Any], ...]

    def __init__(
        self,
        name: str,
        complete: bool,
        kernels: Mapping[str, KernelRecord],
        hosts: Mapping[str, HostRecord],
        files: Mapping[str, FileRecord] | None = None,
        failures: Sequence[Mapping[str, str]] = (),
        toolchain: Mapping[str, str] | None = None,
        requires: Mapping[str, Any] | None = None,
        distributions: Mapping[str, str] | None = None,  # architectures that may be absent, and what installs them
        provenance: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.schema, self.protocol = SCHEMA, PROTOCOL
        self.name, self.complete, self.hosts = name, complete, hosts
        self.failures = tuple(failures)
        self.toolchain, self.requires, self.distributions = toolchain or {}, requires or {}, distributions or {}
        self._archs = tuple(sorted({arch for kernel in kernels.values() for arch in kernel.archs}))
        self._kernels, self._files, self._provenance = kernels, files or {}, tuple(provenance)
        self._data, self._indexes = {}, {}
        self._path = self.sha256 = ""

    @property
    def provenance(self) -> tuple[Mapping[str, Any], ...]:
        """What was built from what, by which versions, with which options: one record per build that is in here."""
        if not hasattr(self, "_provenance"):
            content = self.index_content(PROVENANCE_NAME)
            self._provenance = read_provenance(content, f"`{self._path}/{PROVENANCE_NAME}`")
        return self._provenance

    @property
    def variant_count(self) -> int:
        return sum(kernel.variants for kernel in self.kernels.values())

    def replace(self, **changes: Any) -> Manifest:
        """The same but for some of the constructor's arguments."""
        names = (
            "name", "complete", "kernels", "hosts", "files", "failures", "toolchain", "requires", "distributions",
            "provenance",
        )  # fmt: skip
        return Manifest(**{name: changes[name] if name in changes else getattr(self, name) for name in names})

    def identity(self, host: str) -> str:
        """The digest that the entry library of a host carries, known before the files that the manifest vouches for."""
        return identity_of(self._data or manifest_data(self, {KERNELS_NAME: FileRecord.of(kernels_text(self))}), host)

    def texts(self) -> dict[str, bytes]:
        """The contents of ``manifest.json`` and its indexes, as every version of this schema writes them."""
        return description(self)
