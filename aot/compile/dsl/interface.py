"""What the rest of ``aot/compile`` may ask of CuTe DSL, whatever its version."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from aot_runtime.dtypes import DTYPES

__all__ = ["PUBLIC", "Clusters", "CuteDsl", "LauncherText"]

Clusters = dict[str, tuple[int, int, int]]  # kernel -> blocks of its clusters along x, y and z

# What ``aot/compile/cute_dsl.py`` imports: documented parts, the same in every supported version.
PUBLIC: Mapping[str, tuple[str, ...]] = {
    "cutlass": tuple(one.cutlass for one in DTYPES.values() if one.bits >= 8),  # smaller ones came later
    "cutlass.cute": ("compile",),
    "cutlass.cute.runtime": ("make_fake_stream", "make_fake_tensor", "make_ptr"),
    "cutlass.cute.typing": ("AddressSpace", "SymInt"),
    "cutlass.utils": (
        "HardwareInfo.get_device_multiprocessor_count", "HardwareInfo.get_l2_cache_size_in_bytes",
        "HardwareInfo.get_max_active_clusters",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class LauncherText:
    """How the launcher that a version exports reads, as names and patterns over its LLVM IR."""

    support: re.Pattern[str]  # names of functions that CUDA or NVIDIA's launch support provides
    once: str  # the function that loads a cubin when it is first used
    unload: str  # the function that unloads cubins when the process ends
    asserting: str  # the function that ends the process unless a code is 0
    ends_process: re.Pattern[str]  # functions that a call never comes back from; group 1 is the name
    kernel_handle: re.Pattern[str]  # the variable that holds the handle of a kernel; group 1 is its name
    loaders: tuple[str, ...]  # functions that load the cubin, by their names after the prefix
    binaries: str  # finds the number of cubins; ``{prefix}`` is filled in
    argument_count: str  # finds how many arguments the entry takes
    configuration: str  # matches the type of a launch configuration
    block: tuple[str, str, str]  # fields of the configuration: threads along x, y and z
    shared_memory: str  # field of the configuration: bytes of dynamic shared memory


class CuteDsl(Protocol):
    """One minor version of CuTe DSL. Every supported version is a module that has these names."""

    @property
    def NEEDS(self) -> Mapping[str, tuple[str, ...]]:
        """Every name that the builder imports from CuTe DSL, by module."""

    @property
    def LAUNCHER(self) -> LauncherText:
        """How an exported launcher reads."""

    @property
    def BACKEND_MODULE(self) -> str:
        """The compiled module that differs between the CUDA 12 and 13 backends."""

    @property
    def BACKEND_FILES(self) -> str:
        """Where that module lies below the package ``nvidia_cutlass_dsl``; ``{cuda}`` is filled in."""

    @property
    def COMPILE_KEYWORDS(self) -> Mapping[str, Any]:
        """Keywords of ``cute.compile`` for code that is exported and not run."""

    def when_traced(self, look: Callable[[Any], object]) -> AbstractContextManager[Any]:
        """Within the context, ``look`` is called with the MLIR module of each compile once it is traced."""

    def note_clusters(self, clusters: Clusters) -> AbstractContextManager[Any]:
        """Within the context, note the cluster shape of every kernel that is compiled with a fixed one."""

    def quick_tracing(self) -> AbstractContextManager[None]:
        """Within the context, a compile does without work that changes nothing: up to a fifth of its time."""

    def export(self, function: Any, name: str, prefix: str) -> str:
        """A compiled function as LLVM IR: exported under ``name``, internal symbols begin with ``prefix``.

        Call this once for a function: its symbols are renamed in place.

        As ``export_to_c`` does it, but unoptimised: at its own level the text is already shaped for the build
        machine's CPU, so that bytes would differ between build hosts. zig optimises later.
        """

    def intercept(self, answer: Callable[..., Any]) -> AbstractContextManager[None]:
        """Within the context, ``answer(compiler, function, args, kwargs)`` takes the place of every compile.

        A ``@cute.jit`` function that is called is answered too, with None for the compiler.
        """

    def entry_parameters(self, jit: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """What the compiled entry of a call takes, as CuTe DSL describes each parameter to TVM-FFI."""

    def open_tuples(self) -> AbstractContextManager[None]:
        """Within the context, a parameter that is annotated as a tuple of any length takes one."""
