"""Linking the libraries of a bundle: entry, support, and one per kernel and architecture."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import aot_runtime.native
from aot_runtime.arch import Arch

from ..bundle.layout import PROTOCOL, SUPPORT_EXPORTS, call_symbol, entry_exports, torch_exports
from ..compile.launcher import for_host
from ..hosts import Host
from ..selection.tables import c_string, variant_symbol
from ..targets import cuda_of_driver
from .nvidia import NvidiaLibraries
from .torch_library import TORCH_SOURCES
from .tuning import EntryTable, Grid, table_lines, tables_row
from .zig import Zig

__all__ = ["NO_IDENTITY", "EntryFunction", "KernelBuild", "Linker"]

NO_IDENTITY = 64 * "0"  # of a bundle whose identity nobody computed
# What the generated source of an entry library includes.
INCLUDES = tuple(f'#include "aot_{name}.h"' for name in ("abi", "bundle", "dispatch", "protocol"))
_C_NAMES = {"protocol": "version"}  # of functions whose name in C is another
_CURRENT_DEVICE = 1  # AOT_FUNCTION_USES_CURRENT_DEVICE


@dataclass(frozen=True)
class KernelBuild:
    """A linked kernel library: one kernel, one architecture."""

    arch: Arch
    path: str  # relative to the entry library
    size: int
    sha256: str
    driver: str = ""  # the lowest that runs it, if known


@dataclass(frozen=True)
class EntryFunction:
    """A public function of the entry library."""

    name: str
    kernel: str
    signature: str
    argument_count: int
    uses_tensors: bool
    doc: str = ""
    tables: tuple[EntryTable, ...] = ()  # measured choices
    workspaces: tuple[int, ...] = ()  # which arguments are scratch memory


@dataclass(frozen=True)
class Linker:
    """Links for one host; ``work`` is a scratch folder of its own, ``pool`` runs several compilers at once."""

    zig: Zig
    host: Host
    work: Path
    tvm_ffi_include: Path
    pool: Executor

    def prepare(self) -> None:
        """Do ahead what takes long and is the same for every bundle."""
        self.zig.prepare(self.host, self.work)

    def kernel(self, name: str, tables: str, launchers: Mapping[str, str], output: Path) -> list[str]:
        """One kernel's variants for one architecture; ``launchers`` are LLVM IR by variant. Returns the objects."""
        objects = [
            self.compile_c(f"{name}_tables.c", tables),
            *self.pool.map(self._launcher, launchers, launchers.values()),
        ]
        exports = ["aot_kernel_library", *(variant_symbol(variant) for variant in launchers)]
        self.zig.link(self.host, objects, output, exports=exports)
        return objects

    def support(self, libraries: NvidiaLibraries, output: Path, *, shared_cudart: bool) -> None:
        """NVIDIA's launch support and the CUDA runtime, once per host."""
        own = self.work / "aot_support.o"
        self.zig.compile_c(self.host, self._source("support"), own, [])
        launch = ["-Wl,--whole-archive", str(libraries.launch_support), "-Wl,--no-whole-archive"]
        cudart = [str(libraries.cudart_static), *([str(libraries.culibos)] if libraries.culibos else [])]
        runtime = [str(libraries.cudart_shared)] if shared_cudart else cudart
        system = ["-ldl", "-lpthread", "-lrt", "-lm"]
        inputs = [str(own), *launch, *runtime, *system]
        self.zig.link(self.host, inputs, output, exports=SUPPORT_EXPORTS, strip=True)

    def entry(
        self,
        bundle: str,
        functions: Sequence[EntryFunction],
        builds: Mapping[str, Sequence[KernelBuild]],
        support: KernelBuild | None,
        output: Path,
        identity: str,
    ) -> None:
        """The library that callers load: selection, dispatch, and a table of where the code lies."""
        source = entry_source(bundle, functions, builds, support, self.host.name, identity)
        objects = [self.compile_c("aot_bundle_tables.c", source), *self.pool.map(self._runtime, entry_sources())]
        exports = sorted(entry_exports(bundle, [function.name for function in functions]))
        self.zig.link(self.host, [*objects, "-ldl", "-lpthread"], output, exports=exports)

    def torch(self, bundle: str, source: str, output: Path) -> None:
        """The library that registers operators of torch; ``source`` is what ``torch_source`` made of them."""
        tables = self.work / "aot_torch_tables.c"
        tables.write_text(source)
        objects = [self._compile_for_torch(tables), *self.pool.map(self._torch_runtime, TORCH_SOURCES)]
        self.zig.link(self.host, [*objects, "-ldl", "-lpthread"], output, exports=torch_exports(bundle))

    def _torch_runtime(self, name: str) -> str:
        return self._compile_for_torch(aot_runtime.native.source_directory() / "torch" / f"aot_torch_{name}.c")

    def _compile_for_torch(self, source: Path) -> str:
        compiled = self.work / f"{source.stem}.o"
        native = aot_runtime.native
        includes = [native.source_directory() / "torch", native.include_directory()]
        self.zig.compile_c(self.host, source, compiled, includes, unwinds=True)
        return str(compiled)

    def _runtime(self, name: str) -> str:
        compiled = self.work / f"aot_{name}.o"
        includes = [aot_runtime.native.include_directory(), self.tvm_ffi_include]
        self.zig.compile_c(self.host, self._source(name), compiled, includes)
        return str(compiled)

    def _launcher(self, variant: str, text: str) -> str:
        source = self.work / f"{variant}.ll"
        source.write_text(for_host(text, variant, self.host))
        compiled = source.with_suffix(".o")
        self.zig.compile_llvm_ir(self.host, source, compiled)
        return str(compiled)

    def runtime_objects(self) -> list[Path]:
        """What every entry library is linked from, once one was."""
        return [self.work / f"aot_{name}.o" for name in entry_sources()]

    def compile_c(self, name: str, text: str) -> str:
        source = self.work / name
        source.write_text(text)
        compiled = source.with_suffix(".o")
        native = aot_runtime.native
        includes = [native.source_directory(), native.include_directory(), self.tvm_ffi_include]
        self.zig.compile_c(self.host, source, compiled, includes)
        return str(compiled)

    @staticmethod
    def _source(name: str) -> Path:
        return aot_runtime.native.source_directory() / f"aot_{name}.c"


def entry_sources() -> tuple[str, ...]:
    """What every entry library is compiled from, as ``dispatch`` for ``aot_dispatch.c``."""
    folder = aot_runtime.native.source_directory()
    names = sorted(path.stem.removeprefix("aot_") for path in folder.glob("aot_*.c"))
    return tuple(name for name in names if name != "support")


def entry_source(
    bundle: str,
    functions: Sequence[EntryFunction],
    builds: Mapping[str, Sequence[KernelBuild]],
    support: KernelBuild | None,
    host: str,
    identity: str,
) -> str:
    """The C source of a bundle's own tables and exported functions."""
    lines = ["/* Generated by cute-aot. */", *INCLUDES]
    for kernel, kernel_builds in builds.items():
        rows = ",\n  ".join(_build_row(build) for build in kernel_builds)
        lines += kernel_tables(kernel, len(kernel_builds), rows)
    support_row = _file_row(support) if support else "{0, 0, {0}}"
    lines.append(f"const aot_bundle_t aot_this_bundle = {{{c_string(bundle)}, {support_row}, 0}};")
    lines += public_tables(bundle, functions, builds, host, identity)
    for function in functions:
        call = f"aot_dispatch(&function_{function.name}, args, count, result)"
        lines.append(_exported(f"__tvm_ffi_{function.name}", call))
    for name in PROTOCOL:
        lines.append(
            _exported(f"__tvm_ffi_aot__{name}", f"aot_protocol_{_C_NAMES.get(name, name)}(args, count, result)")
        )
    return "\n".join([*lines, *_ABI_FUNCTIONS.format(bundle=bundle).splitlines()]) + "\n"


def kernel_tables(kernel: str, count: int, rows: str) -> list[str]:
    return [
        f"static aot_build_t builds_{kernel}[] = {{\n  {rows}\n}};",
        f"static aot_kernel_t kernel_{kernel} = {{{c_string(kernel)}, builds_{kernel}, {count}}};",
    ]


def public_tables(
    bundle: str,
    functions: Sequence[EntryFunction],
    builds: Mapping[str, Sequence[KernelBuild]],
    host: str,
    identity: str,
) -> list[str]:
    """The functions, and the structures of ``aot/abi.h`` that C programs reach them by."""
    assert re.fullmatch("[0-9a-f]{64}", identity), identity
    lines = []
    infos = []
    grids: dict[Grid, str] = {}
    for function in functions:
        call = call_symbol(bundle, function.name)
        lines += table_lines(function.name, function.tables, grids)
        lines.append(f"static aot_function_t function_{function.name} = {_function_row(function)};")
        lines.append(_exported_for_c(call, function.name))
        archs = " ".join(str(build.arch) for build in builds[function.kernel])
        texts = ", ".join(map(c_string, (function.name, function.signature, function.doc, archs)))
        infos.append(f"{{{texts}, (aot_entry){call}, {function.argument_count}, 0}}")
    pointers = ", ".join(f"&function_{function.name}" for function in functions)
    core, interface = f"aot_{bundle}_core", f"aot_{bundle}_interface"
    version = "AOT_PROTOCOL_MAJOR, AOT_PROTOCOL_MINOR"
    texts = ", ".join(c_string(text) for text in (bundle, host, _build_identity(functions, builds)))
    return [
        *lines,
        f"aot_function_t* const aot_functions[] = {{{pointers}}};",
        f"const uint32_t aot_function_count = {len(functions)};",
        f"const char aot_identity[65] = {c_string(identity)};",
        f"static const aot_function_info infos[] = {{\n  {_joined_lines(infos)}\n}};",
        f"{_VISIBLE} const aot_core {core} = {{{version}, aot_abi_set_stream, aot_abi_take_error}};",
        f"{_VISIBLE} const aot_interface {interface} = {{{version}, {texts}, &{core}, infos, {len(functions)},",
        "  sizeof(aot_function_info), aot_abi_configure, aot_abi_preload, aot_abi_explain};",
    ]


def _joined_lines(rows: Sequence[str]) -> str:
    return ",\n  ".join(rows)


def _build_identity(functions: Sequence[EntryFunction], builds: Mapping[str, Sequence[KernelBuild]]) -> str:
    """A digest of the code that a bundle holds, to tell two builds apart."""
    parts = [f"{kernel} {build.arch} {build.sha256}" for kernel in sorted(builds) for build in builds[kernel]]
    text = "\n".join([*parts, *(function.signature for function in functions)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


_VISIBLE = '__attribute__((visibility("default")))'
_ABI_FUNCTIONS = """\
__attribute__((visibility("default"))) int aot_abi_version(uint32_t* major, uint32_t* minor);
__attribute__((visibility("default"))) const aot_interface* aot_abi_interface(void);
int aot_abi_version(uint32_t* major, uint32_t* minor) {{
  *major = AOT_PROTOCOL_MAJOR;
  *minor = AOT_PROTOCOL_MINOR;
  return 0;
}}
const aot_interface* aot_abi_interface(void) {{ return &aot_{bundle}_interface; }}
"""


def _exported(name: str, call: str) -> str:
    head = f"int {name}(void* handle, const TVMFFIAny* args, int32_t count, TVMFFIAny* result)"
    return f"{_VISIBLE} {head};\n{head} {{\n  (void)handle;\n  return {call};\n}}"


def _exported_for_c(symbol: str, function: str) -> str:
    """The function as ``aot_entry`` of ``aot/abi.h`` describes it."""
    head = f"int {symbol}(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result)"
    arguments = f"(&function_{function}, args, count, result)"
    return (
        f"{_VISIBLE} {head};\n{head} {{\n"
        f"  return self == AOT_ASK_WORKSPACE ? aot_dispatch_workspace{arguments} : aot_dispatch{arguments};\n}}"
    )


def _function_row(function: EntryFunction) -> str:
    flags = 0 if function.uses_tensors else _CURRENT_DEVICE
    tunings = tables_row(function.name, function.tables)
    workspaces = f"UINT64_C({sum(1 << at for at in function.workspaces if at < 64)})"
    return (
        f"{{{c_string(function.name)}, {c_string(function.name)}, {c_string(function.signature)}, "
        f"&kernel_{function.kernel}, {function.argument_count}, {flags}, {workspaces}, {tunings}, {{0}}}}"
    )


def _build_row(build: KernelBuild) -> str:
    return f"{{{arch_row(build.arch)}, {_file_row(build)}, 0, 0, {driver_row(build)}}}"


def arch_row(arch: Arch) -> str:
    suffix = f"'{arch.suffix}'" if arch.suffix else "0"
    return f"{c_string(str(arch))}, {{{arch.major}, {arch.minor}, {suffix}}}"


def driver_row(build: KernelBuild) -> str:
    return f"{c_string(build.driver)}, {cuda_of_driver(build.driver) if build.driver else 0}"


def _file_row(file: KernelBuild) -> str:
    digest = ", ".join(str(byte) for byte in bytes.fromhex(file.sha256))
    return f"{{{c_string(file.path)}, {file.size}u, {{{digest}}}}}"
