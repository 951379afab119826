"""Linked libraries and their objects, kept by the digest of what they were linked from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..files import sha256_of
from ..link.libraries import EntryFunction, KernelBuild, Linker, entry_source
from ..link.nvidia import NvidiaLibraries
from . import keys
from .store import Store, pack, unpack

__all__ = ["CachingLinker"]


@dataclass(frozen=True)
class CachingLinker(Linker):
    """A linker that links nothing twice. Objects that go into static archives too are kept with the library."""

    store: Store

    def kernel(self, name: str, tables: str, launchers: Mapping[str, str], output: Path) -> list[str]:
        inputs = ["kernel", name, tables, list(launchers.items())]
        return self._once(inputs, output, lambda: Linker.kernel(self, name, tables, launchers, output))

    def support(self, libraries: NvidiaLibraries, output: Path, *, shared_cudart: bool) -> None:
        digests = [sha256_of(path) if path else "" for path in vars(libraries).values()]

        def link() -> list[str]:
            Linker.support(self, libraries, output, shared_cudart=shared_cudart)
            return [str(self.work / "aot_support.o")]

        self._once(["support", shared_cudart, digests], output, link)

    def entry(
        self,
        bundle: str,
        functions: Sequence[EntryFunction],
        builds: Mapping[str, Sequence[KernelBuild]],
        support: KernelBuild | None,
        output: Path,
        identity: str,
    ) -> None:
        def link() -> list[str]:
            Linker.entry(self, bundle, functions, builds, support, output, identity)
            return []  # the same for all entry libraries: kept apart

        source = entry_source(bundle, functions, builds, support, self.host.name, identity)
        self._once(["entry", source], output, link)

    def runtime_objects(self) -> list[Path]:
        paths = Linker.runtime_objects(self)
        missing = [path.stem.removeprefix("aot_") for path in paths if not path.exists()]
        list(self.pool.map(self._runtime, missing))
        return paths

    def _runtime(self, name: str) -> str:
        output = self.work / f"aot_{name}.o"

        def compile_it() -> list[str]:
            Linker._runtime(self, name)
            return []

        self._once(["runtime", name], output, compile_it)
        return str(output)

    def _once(self, inputs: list[Any], output: Path, make: Callable[[], list[str]]) -> list[str]:
        """Have a file made, or take it out of the cache; returns the objects that come with it."""
        key = keys.digest_of([inputs, output.name, self.host.zig_target, keys.linking()])
        kept = self.store.get("libraries", key)
        if kept is not None:
            parts = unpack(kept)
            output.write_bytes(parts.pop(_OUTPUT))
            output.chmod(0o755 if output.suffix == ".so" else 0o644)
            objects = {name: self.work / name.partition("/")[2] for name in sorted(parts)}
            for name, path in objects.items():
                path.write_bytes(parts[name])
            return [str(path) for path in objects.values()]
        made = make()
        numbered = {f"{i:06}/{Path(path).name}": Path(path).read_bytes() for i, path in enumerate(made)}
        self.store.put("libraries", key, pack({_OUTPUT: output.read_bytes(), **numbered}))
        return made


_OUTPUT = "library"
