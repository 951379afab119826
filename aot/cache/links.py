"""Linked libraries and their objects, kept by the digest of what they were linked from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..link.libraries import EntryFunction, KernelBuild, Linker, entry_source, entry_sources
from ..link.nvidia import NvidiaLibraries
from ..link.torch_library import TORCH_SOURCES
from . import keys
from .entries import LARGEST, EntryError, pack, unpack
from .store import Store

__all__ = ["CachingLinker", "PackedLibrary", "pack_library", "unpack_library"]

_OUTPUT = "library"


@dataclass(frozen=True)
class PackedLibrary:
    """A library as it lies in an entry, with the objects that static archives are made of, in their order."""

    library: bytes
    objects: tuple[tuple[str, bytes], ...]  # plain file names

    def write(self, output: Path, folder: Path) -> list[str]:
        """Put the library at its place and the objects into a folder. Returns the objects' paths."""
        output.write_bytes(self.library)
        output.chmod(0o755 if output.suffix == ".so" else 0o644)
        for name, content in self.objects:
            (folder / name).write_bytes(content)
        return [str(folder / name) for name, _ in self.objects]


def pack_library(output: Path, objects: Sequence[str]) -> bytes:
    parts = {f"{i:06}-{Path(path).name}": Path(path).read_bytes() for i, path in enumerate(objects)}
    return pack({_OUTPUT: output.read_bytes(), **parts})


def unpack_library(content: bytes, *, limit: int = LARGEST) -> PackedLibrary:
    """The inverse; :class:`EntryError` if the content is not a library."""
    parts = unpack(content, limit=limit)
    if _OUTPUT not in parts:
        raise EntryError("it holds no library")
    library = parts.pop(_OUTPUT)
    numbered = [(name[7:], content) for name, content in sorted(parts.items())]
    for name, (plain, _) in zip(sorted(parts), numbered, strict=True):
        if not name[:6].isdecimal() or name[6:7] != "-" or not plain or plain.startswith("."):
            raise EntryError(f"{name} is not the name of an object")
    return PackedLibrary(library, tuple(numbered))


@dataclass(frozen=True)
class CachingLinker(Linker):
    """A linker that links nothing twice. Objects that go into static archives too are kept with the library."""

    store: Store

    def prepare(self) -> None:
        Linker.prepare(self)
        for name in entry_sources():
            self._runtime(name)
        for name in TORCH_SOURCES:
            self._torch_runtime(name)

    def kernel(self, name: str, tables: str, launchers: Mapping[str, str], output: Path) -> list[str]:
        inputs = ["kernel", name, tables, list(launchers.items())]
        return self._once(inputs, output, lambda: Linker.kernel(self, name, tables, launchers, output))

    def support(self, libraries: NvidiaLibraries, output: Path, *, shared_cudart: bool) -> None:
        digests = sorted(libraries.digests.items())

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

    def torch(self, bundle: str, source: str, output: Path) -> None:
        def link() -> list[str]:
            Linker.torch(self, bundle, source, output)
            return []

        self._once(["torch", source], output, link)

    def _torch_runtime(self, name: str) -> str:
        output = self.work / f"aot_torch_{name}.o"

        def compile_it() -> list[str]:
            Linker._torch_runtime(self, name)
            return []

        self._once(["torch runtime", name], output, compile_it)
        return str(output)

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
        key = keys.library_key(inputs, output.name, self.host)
        kept = self.store.get("libraries", key, lambda content: unpack_library(content, limit=self.store.limit))
        if kept is not None:
            return kept.write(output, self.work)
        objects = make()
        content = pack_library(output, objects)
        self.store.put("libraries", key, content)
        return objects
