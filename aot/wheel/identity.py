"""The names of a wheel: distribution, import package, version, platform tag. They are checked here, once."""

from __future__ import annotations

import keyword
import sys
from collections.abc import Collection
from dataclasses import dataclass

from aot_runtime.description.records import HostRecord, is_name
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from ..errors import UsageError
from ..hosts import parse_glibc

__all__ = ["PUBLIC_NAMES", "Identity", "platform_tag"]

# Public names of a generated package besides the kernels.
PUBLIC_NAMES = ("AotError", "Device", "TensorInfo", "explain", "preload", "use_stream")
_MODULES = ("torch",)  # that it has beside ``__init__.py``
# `kernels` is the loader of Hugging Face, and what a folder of kernels is called.
_TAKEN = frozenset(
    {"aot", "aot_runtime", "cuda", "cupy", "cutlass", "jax", "kernels", "numpy", "pytest", "torch", "triton", "tvm_ffi"}
)


@dataclass(frozen=True)
class Identity:
    """``kernels_demo`` 1.0: the package that is imported and the distribution that is installed."""

    package: str
    version: Version
    distribution: str  # as pip writes it: kernels-demo

    @classmethod
    def parse(cls, package: str, version: str, distribution: str | None = None) -> Identity:
        return cls(_package(package), _version(version), canonicalize_name(distribution or package))

    @property
    def file_name(self) -> str:
        """The distribution as it is spelled in file names."""
        return self.distribution.replace("-", "_")

    def check_kernels(self, kernels: Collection[str]) -> None:
        """A kernel must not hide what every generated package offers."""
        for name in kernels:
            if name in (*PUBLIC_NAMES, *_MODULES):
                raise UsageError(f"a kernel called {name} would hide `{self.package}.{name}`", hint="rename the kernel")


def _package(name: str) -> str:
    if not is_name(name) or keyword.iskeyword(name):
        raise UsageError(
            f"{name!r} cannot name a package", hint="pass a Python identifier to `--package`, such as my_kernels"
        )
    if name in sys.stdlib_module_names or name == "test":  # which Python's list leaves out
        raise UsageError(f"a package called {name} would hide Python's own module", hint="pass another `--package`")
    if name in _TAKEN:
        raise UsageError(f"a package called {name} would hide another project's", hint="pass another `--package`")
    return name


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        raise UsageError(
            f"not a version: {text!r}", hint="write it as PEP 440 says, such as 1.0, 1.0rc1 or 1.0+cu12"
        ) from None


def platform_tag(host: str, record: HostRecord) -> str:
    """The wheel tag of a host's code: ``py3-none-manylinux_2_28_x86_64``."""
    major, minor = parse_glibc(record.glibc)
    return f"py3-none-manylinux_{major}_{minor}_{host.split('-')[0]}"
