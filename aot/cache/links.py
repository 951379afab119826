"""Linked libraries, kept by the digest of what they were linked from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..digests import sha256_of
from ..link.libraries import EntryFunction, KernelBuild, Linker, entry_source
from ..link.nvidia import NvidiaLibraries
from . import keys
from .store import Store, pack, unpack

__all__ = ["CachingLinker"]


@dataclass(frozen=True)
class CachingLinker(Linker):
    """A linker that links nothing twice."""

    store: Store

    def kernel(self, name: str, tables: str, launchers: Mapping[str, str], output: Path) -> None:
        inputs = ["kernel", name, tables, dict(launchers)]
        self._once(inputs, output, lambda: Linker.kernel(self, name, tables, launchers, output))

    def support(self, libraries: NvidiaLibraries, output: Path, *, shared_cudart: bool) -> None:
        digests = [sha256_of(path) if path else "" for path in vars(libraries).values()]
        link = lambda: Linker.support(self, libraries, output, shared_cudart=shared_cudart)  # noqa: E731
        self._once(["support", shared_cudart, digests], output, link)

    def entry(
        self,
        bundle: str,
        functions: Sequence[EntryFunction],
        builds: Mapping[str, Sequence[KernelBuild]],
        support: KernelBuild | None,
        output: Path,
    ) -> None:
        inputs = ["entry", entry_source(bundle, functions, builds, support)]
        self._once(inputs, output, lambda: Linker.entry(self, bundle, functions, builds, support, output))

    def _once(self, inputs: list[Any], output: Path, link: Callable[[], None]) -> None:
        key = keys.digest_of([inputs, output.name, self.host.zig_target, keys.linking()])
        kept = self.store.get("libraries", key)
        if kept is not None:
            output.write_bytes(unpack(kept)["library"])
            output.chmod(0o755)
            return
        link()
        self.store.put("libraries", key, pack({"library": output.read_bytes()}))
