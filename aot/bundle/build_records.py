"""The types of what ``provenance.json`` and ``manifest.json`` say of builds. Readers of JSON find them in the reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

__all__ = ["BuildOptions", "BuildRecord", "BuiltRecord", "FailureRecord", "Requires", "SourceRecord", "VersionsRecord"]


class SourceRecord(TypedDict, total=False):
    """The files that a build read."""

    name: str  # of the folder or file
    commit: str  # of the version control that they are in; absent: they are in none
    clean: bool  # whether they are as the commit has them; absent: there is no commit
    files: Mapping[str, str]  # SHA-256 by path
    linked: Mapping[str, str]  # SHA-256 of NVIDIA's libraries in the result, by host and name; absent: not written down


class BuildOptions(TypedDict, total=False):
    """How a build compiled."""

    cuda: int | None  # major version of CuTe DSL's backend; null: the one that was installed
    line_info: bool  # whether profilers can show source lines
    keep: list[str]  # kinds of intermediate files that were kept
    source: str  # `declarations`, or `exercise` if it was captured
    shared_cudart: bool  # whether the CUDA runtime of the process is used
    archives: bool  # whether there are archives for static linking
    tilings: str  # `core`, or `all` if variants were built that only make some calls faster; absent: all


class VersionsRecord(TypedDict):
    """What a build ran on. The versions that shape the code are in `toolchain`."""

    python: str  # version of Python
    build_host: str  # CPU and system


class BuiltRecord(TypedDict):
    """One kernel that a build compiled, and the author's files that it came from."""

    archs: list[str]  # the architectures that it was compiled for
    files: Mapping[str, str]  # SHA-256 by path below the folder of the source
    modules: Mapping[str, str]  # SHA-256 by name: modules of the author that lie elsewhere


class BuildRecord(TypedDict, total=False):
    """One build whose result is in the bundle."""

    source: SourceRecord  # what was read
    options: BuildOptions  # how it was compiled
    versions: VersionsRecord  # on what
    built: Mapping[str, BuiltRecord]  # what is in the bundle of it, by kernel; absent: it is not known


class Requires(TypedDict, total=False):
    """What a machine must have to run the bundle."""

    driver: Mapping[str, str]  # lowest version of NVIDIA's driver, by architecture
    tvm_ffi: str  # lowest version of apache-tvm-ffi
    tvm_ffi_abi: int  # version of its binary interface


class FailureRecord(TypedDict, total=False):
    """Something that was asked of the bundle and could not be built."""

    kernel: str  # empty: no kernel in particular
    variant: str  # empty: the whole kernel
    arch: str  # empty: every architecture
    message: str  # why, at most 500 letters
