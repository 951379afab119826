"""What a worker is asked and what it answers: dataclasses, one JSON line each."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aot_runtime.arch import Arch
from aot_runtime.description.kernel_records import Backward, Choice, Parameter

from ..errors import Failure
from ..selection.subjects import VariantTable
from .device.devices import library_variables, names_of_library_variables

__all__ = [
    "DECLARATIONS",
    "EXERCISE",
    "WORKER_VARIABLES",
    "Closure",
    "Compiled",
    "Declared",
    "KernelClosure",
    "KernelInfo",
    "KernelLaunch",
    "KernelSources",
    "Options",
    "VariantInfo",
    "worker_variables",
]

_ARCH = "CUTE_DSL_ARCH"
_NO_TORCH_BRIDGE = "TVM_FFI_DISABLE_TORCH_C_DLPACK"
_GLIBC = "GLIBC_TUNABLES"
_LARGE_PAGES = "glibc.malloc.hugetlb=1"  # the compiler walks much memory: with large pages it takes 2 to 4% less time
WORKER_VARIABLES = frozenset({_ARCH, _NO_TORCH_BRIDGE, _GLIBC, *names_of_library_variables()})


def worker_variables(arch: Arch | None) -> dict[str, str]:
    """What a worker is told through environment variables, since CuTe DSL and other libraries read these once."""
    # TVM-FFI's bridge to torch is slow to import and not needed. What the user tunes goes first.
    always = {_NO_TORCH_BRIDGE: "1", _GLIBC: os.environ.get(_GLIBC) or _LARGE_PAGES}
    return always if arch is None else {**always, _ARCH: str(arch), **library_variables(arch)}


_FIXED = re.compile(r"Fixed\(value=[^)]*\)")
DECLARATIONS, EXERCISE = "declarations", "exercise"


@dataclass(frozen=True)
class Options:
    """How to compile, the same for all variants of a build."""

    cuda: int | None = None  # major version of the backend; None: the one that is installed
    line_info: bool = False
    keep: tuple[str, ...] = ()  # of "ptx", "cubin", "ll", "mlir", "sass", "o"
    source: str = DECLARATIONS  # what the source is: declarations, or an exercise whose compiles are captured
    arguments: tuple[str, ...] = ()  # of an exercise: what its script finds in `sys.argv`, or what pytest gets
    pytest: bool = False  # whether pytest runs the exercise
    trust: bool = False  # whether pickles of recorded calls may be loaded


@dataclass(frozen=True)
class KernelInfo:
    """A declared kernel, without its code."""

    name: str  # what users call
    doc: str  # the docstring of its declaration
    origin: str  # file and line of its declaration
    parameters: tuple[Parameter, ...]  # in the order of a call
    choices: tuple[Choice, ...]  # what is chosen by name and compiled separately
    functions: tuple[str, ...]  # symbols, one per combination of choices
    archs: tuple[Arch, ...]  # what it is written for
    axes: Mapping[str, tuple[str, ...]]  # values by axis of the declaration
    contract: str = ""  # the file of its reference and inputs
    has_contract: bool = False  # whether it has a reference and inputs
    backward: Backward | None = None  # the kernel of its gradients, or the calls that compute them
    family: str = ""  # the folder that declares it, inside that of the source; "": that one itself
    core: bool = True  # built if no family is named
    captured: dict[str, Any] | None = None  # the call that it was captured from: see ``aot/capture``
    is_tuned: bool = False  # whether tables may choose among its variants
    variant_budget: int = 0  # for one architecture; 0: none
    written_for: Mapping[str, str] = field(default_factory=dict)  # architecture -> the one that its code is written for

    def portable_archs(self) -> frozenset[Arch]:
        """The architectures that code serves which was written for another one."""
        return frozenset(arch for arch in self.archs if self.written_for.get(str(arch), str(arch)) != str(arch))


@dataclass(frozen=True)
class VariantInfo:
    kernel: str
    point: Mapping[str, str]
    table: VariantTable
    arguments: str  # what it is compiled with, as text; part of the cache's key
    guards: tuple[str, ...] = ()  # as the author wrote them
    written_for: str = ""  # the architecture that its code was written for
    core: bool = True  # false: only `--tilings all` builds it

    @property
    def code(self) -> str:
        """What is compiled, as text. Numbers that dispatch passes are not: see ``sharing``."""
        return _FIXED.sub("", self.arguments)


@dataclass(frozen=True)
class KernelLaunch:
    """A kernel that a launcher launches, as far as it is fixed when compiling."""

    name: str
    registers: int
    static_shared_memory: int
    dynamic_shared_memory: int | None
    block: tuple[int, int, int] | None
    cluster: tuple[int, int, int] | None
    local_memory: int


@dataclass(frozen=True)
class Compiled:
    """A compiled variant; the launcher itself is in the file that the request named."""

    variant: str
    launches: tuple[KernelLaunch, ...]
    cubin_sha256: tuple[str, ...]
    cubin_bytes: int
    seconds: float
    reads: dict[str, Any] | None = None  # of a captured call: what tracing read, see ``reads``


@dataclass(frozen=True)
class Declared:
    """What the author's files declare, those that failed, and what an exercise was told instead of results."""

    kernels: tuple[KernelInfo, ...]
    failures: tuple[Failure, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class KernelClosure:
    """What a kernel's code came from: enters its variants' keys."""

    modules: Mapping[str, str]  # the author's modules and files -> SHA-256
    distributions: Mapping[str, str]  # installed ones that they import -> version
    environment: Mapping[str, str | None]  # variables that were asked for


@dataclass(frozen=True)
class Closure:
    """What all kernels of a source came from, and where to look to see that nothing changed."""

    kernels: Mapping[str, KernelClosure]
    files: Mapping[str, str]  # path -> SHA-256
    folders: Mapping[str, tuple[str, ...]]  # path -> the Python files in it
    environment: Mapping[str, str | None]
    distributions: Mapping[str, str]
    imports: tuple[str, ...] = ()  # top-level modules that the files import, wherever these are found
    current: str = ""  # the current folder, if a file was opened by its place in it
    places: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # kernel -> its modules and files -> path


@dataclass(frozen=True)
class KernelSources:
    """The author's files that a kernel's code came from, with their SHA-256, by names that hold on other machines."""

    files: Mapping[str, str] = field(default_factory=dict)  # by path below the folder of the source
    modules: Mapping[str, str] = field(default_factory=dict)  # of elsewhere, by name
