"""The keys of the cache: digests of everything that shapes what is kept under them.

What belongs into a key is listed here and nowhere else. An ingredient too many costs a compile; a missing one
would hand out stale code.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import aot_runtime.dtypes
import aot_runtime.native
from aot_runtime.arch import Arch

from ..compile.messages import KernelClosure, KernelInfo, Options, VariantInfo
from ..files import sha256_of
from ..hosts import Host
from ..records import encode
from ..versions import installed_version

__all__ = [
    "bundle_key",
    "comparing",
    "cutlass_distributions",
    "digest_of",
    "durations_key",
    "generation",
    "library_key",
    "linking",
    "ourselves",
    "python_version",
    "request_key",
    "variant_key",
    "variant_keys",
    "verdict_key",
]

_AOT = Path(__file__).resolve().parent.parent
# Our own code that decides what comes out of a compile, and of a link.
_GENERATION = (
    "binary/*.py", "compile/**/*.py", "data/archs.json", "data/devices.json", "declare/*.py",
    "hosts.py", "kinds.py", "records.py",
    "selection/*.py", "targets.py",
)  # fmt: skip
_LINKING = (
    "binary/*.py", "bundle/layout.py", "bundle/operators.py", "bundle/tables/cells.py", "cache/links.py",
    "compile/dsl/*.py", "compile/launcher.py", "hosts.py", "kinds.py", "link/*.py", "selection/tables.py",
)  # fmt: skip
_CUTLASS = "nvidia_cutlass_dsl"


def digest_of(data: Any) -> str:
    """The digest of JSON's types, whatever the order of keys."""
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def variant_key(
    kernel: KernelInfo,
    variant: VariantInfo,
    arch: Arch,
    *,
    options: Options,
    cuda: int,
    closure: KernelClosure,
    cutlass: Mapping[str, str],
    python: str,
    code: str,
) -> str:
    """The key of a compiled variant: its launcher and the facts about it."""
    place = kernel.origin if options.line_info else ""  # line info puts the path into the code
    return digest_of({
        "kernel": kernel.name,
        "variant": encode(variant),
        "arch": str(arch),
        "options": [options.line_info, sorted(options.keep), place],
        "cuda": cuda,
        "closure": encode(closure),
        "cutlass": dict(cutlass),
        "python": python,
        "code": code,
    })  # fmt: skip


def variant_keys(
    kernel: KernelInfo,
    variants: Sequence[VariantInfo],
    arch: Arch,
    closure: KernelClosure,
    *,
    options: Options,
    cuda: int,
) -> dict[str, str]:
    """The key of each variant of a kernel, made here with what is installed here."""
    cutlass, python = cutlass_distributions(), python_version()
    code = generation() if kernel.captured is None else digest_of([generation(), comparing()])
    return {
        variant.table.name: variant_key(
            kernel, variant, arch,
            options=options, cuda=cuda, closure=closure, cutlass=cutlass, python=python, code=code,
        )
        for variant in variants
    }  # fmt: skip


def library_key(inputs: Sequence[Any], name: str, host: Host) -> str:
    """The key of a linked library or a compiled object: what it is made of, as JSON's types."""
    return digest_of([inputs, name, host.zig_target, linking()])


def request_key(request: object) -> str:
    """The key of a plan: the hash of a record of what was asked. The files that the plan came from are compared when it is recalled."""
    return digest_of([encode(request), python_version(), ourselves(), cutlass_distributions()])


def bundle_key(ending: object) -> str:
    """The key of a finished build: the hash of a record of everything that the bundle is made from."""
    return digest_of([encode(ending), linking()])


def verdict_key(manifest: str) -> str:
    """The key of the verdict on a bundle, by the digest of its manifest."""
    return digest_of(["verdict", manifest, ourselves()])


def durations_key(source: str) -> str:
    """The key of how long the variants of a source took."""
    return digest_of(["durations", str(Path(source).resolve()) if Path(source).exists() else source])


def python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def cutlass_distributions(folders: Iterable[str] | None = None) -> dict[str, str]:
    """Every ``nvidia-cutlass-dsl*`` distribution with its version, read off the names of their folders."""
    found: dict[str, str] = {}
    for folder in sys.path if folders is None else folders:
        for path in sorted(Path(folder or ".").glob(f"{_CUTLASS}*.dist-info")):
            name, _, version = path.name.removesuffix(".dist-info").partition("-")
            found.setdefault(name, version)
    return found


@cache
def generation() -> str:
    """Our own code generation: what turns a declaration into a launcher, and the C it is linked with."""
    return _files_digest([*_ours(_GENERATION), _dtypes(), *_runtime_sources()])


@cache
def comparing() -> str:
    """What words the values that tracing read: a captured variant has them, and is served if they are the same."""
    serving = Path(aot_runtime.native.__file__).parent / "serving"
    return _files_digest(sorted(serving.rglob("*.py")))


@cache
def linking() -> str:
    """Our own linking, and the compilers and headers it uses."""
    versions = {name: installed_version(name) for name in ("ziglang", "apache-tvm-ffi")}
    return digest_of([_files_digest([*_ours(_LINKING), _dtypes(), *_runtime_sources()]), versions])


@cache
def ourselves() -> str:
    """All of our own code, for what is cheap to make again."""
    runtime = Path(aot_runtime.native.__file__).parent
    return _files_digest([*_ours(("**/*.py", "data/*")), *sorted(runtime.rglob("*.py")), *_runtime_sources()])


def _ours(patterns: Iterable[str]) -> list[Path]:
    return [path for pattern in patterns for path in sorted(_AOT.glob(pattern)) if path.is_file()]


def _dtypes() -> Path:
    return Path(aot_runtime.dtypes.__file__)


def _runtime_sources() -> list[Path]:
    folders = (aot_runtime.native.source_directory(), aot_runtime.native.include_directory())
    return [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]


def _files_digest(paths: Iterable[Path]) -> str:
    return digest_of([[path.name, sha256_of(path)] for path in paths])
