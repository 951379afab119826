"""What a worker is asked and what it answers: dataclasses, one JSON line each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aot_runtime.arch import Arch
from aot_runtime.manifest import Choice, Parameter

from ..selection.requirements import VariantTable

__all__ = ["Compiled", "Declared", "Failure", "KernelInfo", "KernelLaunch", "Options", "VariantInfo"]


@dataclass(frozen=True)
class Options:
    """How to compile, the same for all variants of a build."""

    cuda: int | None = None  # major version of the backend; None: the one that is installed
    line_info: bool = False
    keep: tuple[str, ...] = ()  # of "ptx", "cubin", "ll"


@dataclass(frozen=True)
class KernelInfo:
    """A declared kernel, without its code."""

    name: str
    doc: str
    origin: str
    parameters: tuple[Parameter, ...]
    choices: tuple[Choice, ...]
    functions: tuple[str, ...]
    archs: tuple[Arch, ...]
    axes: Mapping[str, tuple[str, ...]]
    contract: str = ""  # the file of its reference and inputs, where those are apart from the kernel


@dataclass(frozen=True)
class VariantInfo:
    kernel: str
    point: Mapping[str, str]
    table: VariantTable


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


@dataclass(frozen=True)
class Failure:
    """What went wrong with a variant, for a person to read."""

    variant: str
    message: str
    log: str = ""


@dataclass(frozen=True)
class Declared:
    """What the author's files declare, and those that failed."""

    kernels: tuple[KernelInfo, ...]
    failures: tuple[Failure, ...]
