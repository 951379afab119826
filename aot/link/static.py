"""Static archives of a bundle: the same objects as in its shared libraries, under names of its own.

``lib<name>.a`` holds selection, dispatch and the public functions, ``lib<name>_<arch>.a`` the kernels of
one architecture, ``lib<name>_cuda.a`` NVIDIA's launch support, ``lib<name>_cudart.a`` the CUDA runtime.

An application links the architectures it wants. So that none goes missing unnoticed, every function refers
to a symbol of each architecture, the anchor, which only that architecture's archive defines: leaving an
archive out is an error of the linker, declining it takes ``--defsym`` (:func:`decline_flag`). The anchor's
object refers to every kernel of its architecture, so that the archive need not be linked whole; what is
not called is dropped by ``--gc-sections``.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aot_runtime.arch import Arch

from ..binary import objects
from ..bundle.layout import IMPORT, anchor_symbol, call_symbol, kernel_symbol
from ..selection.tables import c_string
from .libraries import INCLUDES, EntryFunction, KernelBuild, Linker, arch_row, driver_row, kernel_tables, public_tables
from .nvidia import NvidiaLibraries

__all__ = ["StaticArchives"]

# What the dispatcher itself asks of the support library: see bind_runtime in aot_load.c.
_OWN_SUPPORT = ("aot_cuda_error_name", "aot_cuda_error_text", "aot_cuda_zero")
_RUNTIME = ("_cudaGetDevice", "_cudaSetDevice", *_OWN_SUPPORT)


def _internal(bundle: str) -> str:
    return f"aot_{bundle}_in__"


@dataclass
class StaticArchives:
    """Gathers objects as the shared libraries are linked, then writes the archives of one host."""

    linker: Linker
    bundle: str
    kernels: dict[Arch, dict[str, list[Path]]] = field(default_factory=dict)
    imports: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.folder = self.linker.work / "static"
        self.folder.mkdir()

    def add_kernel(self, kernel: str, arch: Arch, files: Sequence[str], imports: Iterable[str]) -> None:
        """Keep the objects of a kernel, under the bundle's names."""
        contents = [Path(file).read_bytes() for file in files]
        prefix = f"{_internal(self.bundle)}{kernel}__{arch}__"
        names = {name: prefix + name for content in contents for name in objects.defined_symbols(content)}
        names["aot_kernel_library"] = kernel_symbol(self.bundle, kernel, arch)
        renamed = [
            self._write(f"{kernel}__{arch}__{Path(file).name}", objects.rename_symbols(content, names))
            for file, content in zip(files, contents, strict=True)
        ]
        self.kernels.setdefault(arch, {})[kernel] = renamed
        self.imports.update(imports)

    def adopt_kernel(self, kernel: str, arch: Arch, archive: bytes, others: Iterable[str]) -> None:
        """Take a kernel's objects out of an archive that an earlier build wrote; ``others`` are all kernels in there."""
        longer = tuple(f"{other}__{arch}__" for other in others if other.startswith(f"{kernel}__"))
        own = [
            (name, content)
            for name, content in objects.members(archive)
            if name.startswith(f"{kernel}__{arch}__") and not (longer and name.startswith(longer))
        ]
        self.kernels.setdefault(arch, {})[kernel] = [self._write(name, content) for name, content in own]
        prefix = f"{_internal(self.bundle)}{kernel}__{arch}__{IMPORT}"
        defined = {name for _, content in own for name in objects.defined_symbols(content)}
        self.imports.update(name.removeprefix(prefix) for name in defined if name.startswith(prefix))

    def write_support(self, libraries: NvidiaLibraries, root: Path, *, shared_cudart: bool) -> list[Path]:
        """The archives that are the same whatever kernels there are; returns them."""
        support = self._renamed([self.linker.work / "aot_support.o"], public=_is_foreign)
        written = [self._archive(root / f"lib{self.bundle}_cuda.a", support, libraries.launch_support)]
        if not shared_cudart:
            runtime = [libraries.cudart_static, *([libraries.culibos] if libraries.culibos else [])]
            written.append(self._archive(root / f"lib{self.bundle}_cudart.a", [], *runtime))
        return written

    def write_code(
        self,
        functions: Sequence[EntryFunction],
        builds: Mapping[str, Sequence[KernelBuild]],
        root: Path,
        identity: str,
    ) -> None:
        """The archives that depend on which kernels there are."""
        for arch, kernels in self.kernels.items():
            anchor = self.linker.compile_c(f"anchor__{arch}.c", self._anchor_source(arch, kernels))
            members = [path for files in kernels.values() for path in files]
            self._archive(root / f"lib{self.bundle}_{arch}.a", [Path(anchor), *members])
        self._archive(root / f"lib{self.bundle}.a", self._entry(functions, builds, identity))

    def _entry(
        self, functions: Sequence[EntryFunction], builds: Mapping[str, Sequence[KernelBuild]], identity: str
    ) -> list[Path]:
        source = static_entry_source(
            self.bundle, functions, builds, self.linker.host.name, sorted({*self.imports, *_RUNTIME}), identity
        )
        tables = Path(self.linker.compile_c("aot_static_tables.c", source))
        public = {f"aot_{self.bundle}_core", f"aot_{self.bundle}_interface"}
        public |= {call_symbol(self.bundle, function.name) for function in functions}
        return self._renamed([tables, *self.linker.runtime_objects()], public=public.__contains__)

    def _renamed(self, files: Sequence[Path], *, public: Callable[[str], bool]) -> list[Path]:
        """The objects with all names but the public ones made the bundle's, and all hidden: a shared library that
        is made of archives shows none of it."""
        contents = [file.read_bytes() for file in files]
        # The entry's tables refer to some of what the support object defines.
        names = {name for content in contents for name in objects.defined_symbols(content)} | set(_OWN_SUPPORT)
        new = {name: name if public(name) else _internal(self.bundle) + name for name in names}
        return [
            self._write(file.name, objects.rename_symbols(content, new))
            for file, content in zip(files, contents, strict=True)
        ]

    def _write(self, name: str, content: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(content)
        return path

    def _anchor_source(self, arch: Arch, kernels: Iterable[str]) -> str:
        names = [kernel_symbol(self.bundle, kernel, arch) for kernel in kernels]
        lines = ["/* Generated by cute-aot. */", *(f"{_HIDDEN} extern const char {name};" for name in names)]
        # Nobody refers to this list: it makes the linker fetch the objects, and is dropped itself.
        pointers = ", ".join(f"&{name}" for name in names)
        lines.append(f"{_HIDDEN} const void* const {_internal(self.bundle)}members__{arch}[] = {{{pointers}}};")
        lines.append(f"{_HIDDEN} const char {anchor_symbol(self.bundle, arch)} = 1;")
        return "\n".join(lines) + "\n"

    def _archive(self, output: Path, files: Sequence[Path], *archives: Path) -> Path:
        # A script, because only that merges archives; it takes plain names alone.
        lines = ["CREATE out.a"]
        for number, archive in enumerate(archives):
            shutil.copyfile(archive, self.folder / f"merged{number}.a")
            lines.append(f"ADDLIB merged{number}.a")
        lines += [f"ADDMOD {path.relative_to(self.folder)}" for path in map(self._inside, files)]
        self.linker.zig.archive(self.folder, "\n".join([*lines, "SAVE", "END", ""]))
        return Path(shutil.move(self.folder / "out.a", output))  # to another file system, it may be

    def _inside(self, path: Path) -> Path:
        if path.parent != self.folder:
            shutil.copyfile(path, self.folder / path.name)
        return self.folder / path.name


def _is_foreign(name: str) -> bool:
    """What NVIDIA's code calls by that name."""
    return not name.startswith("aot_")


_HIDDEN = '__attribute__((visibility("hidden")))'
_WEAK = '__attribute__((weak, visibility("hidden")))'


def static_entry_source(
    bundle: str,
    functions: Sequence[EntryFunction],
    builds: Mapping[str, Sequence[KernelBuild]],
    host: str,
    imports: Sequence[str],
    identity: str,
) -> str:
    """The bundle's tables for static linking: kernels and CUDA functions by reference instead of by file."""
    archs = sorted({build.arch for kernel_builds in builds.values() for build in kernel_builds})
    lines = ["/* Generated by cute-aot. */", *INCLUDES]
    lines += [f"{_HIDDEN} extern const char {anchor_symbol(bundle, arch)};" for arch in archs]
    for kernel, kernel_builds in builds.items():
        rows = []
        for build in kernel_builds:
            symbol = kernel_symbol(bundle, kernel, build.arch)
            lines.append(f"{_WEAK} extern const aot_kernel_library_t {symbol};")
            anchor = anchor_symbol(bundle, build.arch)
            rows.append(f"{{{arch_row(build.arch)}, {{0, 0, {{0}}}}, &{symbol}, &{anchor}, {driver_row(build)}}}")
        lines += kernel_tables(kernel, len(kernel_builds), ",\n  ".join(rows))
    lines += [f"extern char {name}[];" for name in imports]
    rows = [*(f"{{{c_string(name)}, {name}}}" for name in imports), "{0, 0}"]
    lines.append("static const aot_provided_t provided[] = {\n  " + ",\n  ".join(rows) + "\n};")
    lines.append(f"const aot_bundle_t aot_this_bundle = {{{c_string(bundle)}, {{0, 0, {{0}}}}, provided}};")
    return "\n".join([*lines, *public_tables(bundle, functions, builds, host, identity)]) + "\n"
