"""Every path and name in a bundle: where files lie, and what the symbols of its libraries are called."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aot_runtime.arch import Arch
from aot_runtime.core.signature import FILE_NAME as SIGNATURE
from aot_runtime.description.records import FILE_NAME, INDEX_NAMES

__all__ = [
    "CONTRACTS",
    "IDENTITY",
    "IMPORT",
    "PROTOCOL",
    "ROOT",
    "SBOM",
    "SUPPORT_EXPORTS",
    "TORCH_IDENTITY",
    "anchor_symbol",
    "archive_names",
    "call_symbol",
    "decline_flag",
    "details_name",
    "entry_exports",
    "kernel_symbol",
    "library_path",
    "note_name",
    "part_of",
    "stamp_name",
    "torch_exports",
    "torch_library_path",
]

# Paths.

CONTRACTS = "contracts"  # a folder
SBOM = "sbom.cdx.json"  # what the libraries contain: see `sbom.py`
# Everything that may lie in the folder itself.
ROOT = frozenset(
    {FILE_NAME, *INDEX_NAMES, SIGNATURE, SBOM, CONTRACTS, "details", "lib", "include", "tuning", "kept", "parts"}
)


def library_path(host: str, arch: Arch, kernel: str) -> str:
    return f"lib/{host}/{arch}/{kernel}.so"


def torch_library_path(host: str, bundle: str) -> str:
    """The library that registers the kernels as operators of torch, from C."""
    return f"lib/{host}/lib{bundle}_torch.so"


def archive_names(bundle: str, archs: Iterable[Arch], *, cudart: bool) -> list[str]:
    """The static archives in the order in which they are linked."""
    kernels = [f"lib{bundle}_{arch}.a" for arch in archs]
    return [f"lib{bundle}.a", *kernels, f"lib{bundle}_cuda.a", *([f"lib{bundle}_cudart.a"] if cudart else [])]


def details_name(arch: Arch) -> str:
    return f"details/{arch}.json"


def stamp_name(arch: str) -> str:
    """The file by which an installed architecture of a split bundle names the manifest it belongs to."""
    return f"parts/{arch}.json"


def note_name(host: str, arch: str) -> str:
    """Where a split bundle says which distribution installs an architecture, for C: see ``aot_open.c``."""
    return f"lib/{host}/{arch}.part"


def part_of(name: str) -> str | None:
    """The architecture that a file of a bundle belongs to, if it belongs to one alone."""
    folders = name.split("/")
    if folders[0] == "lib" and len(folders) == 4:
        return folders[2]
    if folders[0] == "details" and len(folders) == 2:
        return folders[1].removesuffix(".json")
    return None


# Symbols.

# What a loader may call beside the kernels: the functions of aot/abi.h, without their prefix.
PROTOCOL = (
    "protocol", "identity", "configure", "preload", "explain", "explain_on", "explain_part", "run_variant", "describe",
    "check", "open_support",
)  # fmt: skip
# The protocol that brought a function; others were there from the start.
SINCE = {"explain_on": 1002, "run_variant": 1002, "explain_part": 1005, "check": 1006, "open_support": 1007}
GONE = {1003: ("eager",)}  # functions that only libraries of that protocol have
IDENTITY = "aot_identity"  # the constant of an entry library that names what it was built with, in hexadecimal
TORCH_IDENTITY = "aot_torch_identity"  # the same of a library for torch: which operators it registers
IMPORT = "aot_import_"  # prefix of the variable through which a kernel library calls a function of the support library
# Patterns of what the support library provides to kernel libraries. Not cuda_dialect_assert_success, which aborts.
SUPPORT_EXPORTS = (
    "_cu*",
    "cuda_dialect_get_error_name",
    "cuda_dialect_print_on_error",
    "CuteDSLRT_*",
    "aot_cuda_*",
)


def entry_exports(bundle: str, functions: Sequence[str], protocol: int = 0) -> frozenset[str]:
    """What the entry library exports: for TVM-FFI, for a C program that links it, and for one that opens it.

    ``protocol`` is that of a bundle which exists; by default it is ours.
    """
    asked = [name for name in PROTOCOL if not protocol or protocol >= SINCE.get(name, 0)]
    asked += GONE.get(protocol, ())
    for_tvm_ffi = [f"__tvm_ffi_{name}" for name in (*functions, *(f"aot__{name}" for name in asked))]
    for_c = [f"aot_{bundle}_core", f"aot_{bundle}_interface", *(call_symbol(bundle, name) for name in functions)]
    return frozenset([*for_tvm_ffi, *for_c, "aot_abi_version", "aot_abi_interface"])


def call_symbol(bundle: str, function: str) -> str:
    """The name by which C programs link a function: unlike TVM-FFI's, it differs between bundles."""
    return f"aot_{bundle}_call__{function}"


def torch_exports(bundle: str) -> tuple[str, str]:
    """The functions of the library for torch: why nothing was registered, and opening the bundle ahead of a call."""
    return f"aot_{bundle}_torch_error", f"aot_{bundle}_torch_open"


def anchor_symbol(bundle: str, arch: Arch) -> str:
    """The symbol that only the archive of that architecture defines, and that every function refers to."""
    return f"aot_{bundle}_arch__{arch}"


def kernel_symbol(bundle: str, kernel: str, arch: Arch) -> str:
    return f"aot_{bundle}_kernel__{kernel}__{arch}"


def decline_flag(bundle: str, arch: Arch) -> str:
    """The linker flag by which a program that links statically declines an architecture."""
    return f"-Wl,--defsym={anchor_symbol(bundle, arch)}=0"
