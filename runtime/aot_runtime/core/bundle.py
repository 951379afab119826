"""Loading a bundle: ``aot_runtime.load(path)`` gives its kernels as Python functions.

The choice among variants and architectures is made in the bundle's own C code, call by call. This module finds the
right entry library, checks it, and wraps its functions for Python.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tvm_ffi

from ..description.manifest import Check, Manifest
from ..description.records import FILE_NAME, PROTOCOL
from ..errors import (
    BundleError,
    DigestError,
    HostError,
    NotFoundError,
    UsageError,
    VersionError,
    register_with_tvm_ffi,
)
from .opening import open_library

if TYPE_CHECKING:
    from ..arch import Capability
    from ..description.kernel_records import KernelRecord, KernelTable
    from .explain import Device, Explanation
    from .signature import PublicKey

__all__ = ["Bundle", "load"]

register_with_tvm_ffi()


def _import_for_calls() -> None:
    """Import what first calls import: it would take as long as loading."""
    from ..description import kernel_records  # noqa: F401
    from . import arrays, functions  # noqa: F401


# A child that is forked while another thread imports a module would wait for that import for ever.
os.register_at_fork(before=_import_for_calls)


def load(
    path: str | os.PathLike[str],
    *,
    verify: bool = True,
    key: PublicKey | Sequence[PublicKey] | None = None,
    name: str | None = None,
    manifest_sha256: str | None = None,
) -> Bundle:
    """Load a bundle, the directory that ``python -m aot build`` printed.

    Every native file is checked against its digest before it is opened: the entry library here, a
    kernel's own library when it is first needed. ``verify=False`` turns both checks off.

    ``key`` is a public key, or several: the bundle must be signed by one of them. A key is the path of a PEM
    file, the content of one, or 32 bytes. A bundle that is unsigned, signed by another key or altered raises
    :class:`SignatureError` or :class:`DigestError` before any of its code is opened. A key may sign several bundles:
    ``name`` says which one is meant.

    ``manifest_sha256`` is the digest of the bundle's ``manifest.json``, 64 hex digits: any other bundle is refused.

    A bundle that lacks kernels, since they failed to build, gives an :class:`IncompleteBundleWarning`.
    """
    return Bundle(path, verify=verify, key=key, name=name, manifest_sha256=manifest_sha256)


class Bundle:
    """A loaded bundle. Its kernels are attributes and items: ``bundle.add(x, y, out)``."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        verify: bool = True,
        key: PublicKey | Sequence[PublicKey] | None = None,
        name: str | None = None,
        manifest_sha256: str | None = None,
    ) -> None:
        self._directory = directory = _text_path(path)
        if verify not in (True, False):  # None of a setting that is missing must not turn it off
            raise UsageError(f"verify={verify!r}", hint="pass True or False")
        if not verify and (key is not None or manifest_sha256 is not None):
            raise UsageError(
                "`verify=False` cannot be combined with `key` or `manifest_sha256`: both cover files by their digests",
                hint="leave `verify` out",
            )
        check = None
        if key is not None or manifest_sha256 is not None:
            from .trust import manifest_check  # most callers have neither

            check = manifest_check(directory, key, manifest_sha256)
        self.manifest, self._kernels_content, self._module = _open(directory, check, name, verify)
        self._functions: dict[str, Callable[..., Any]] = {}
        if not self.manifest.complete:
            from .asking import warn_incomplete

            warn_incomplete(self.path, self.manifest)

    @cached_property
    def path(self) -> Path:
        """The directory of the bundle, an absolute path."""
        return Path(self._directory)

    @property
    def name(self) -> str:
        """The name of the bundle."""
        return self.manifest.name

    @cached_property
    def _table(self) -> KernelTable:
        from ..description.kernel_records import KernelTable

        return KernelTable(self._kernels_content, f"`{self.path}/kernels.json`")

    @property
    def kernels(self) -> tuple[str, ...]:
        """The names of its kernels, in order."""
        return self._table.names

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            function = self[name]
        except NotFoundError as error:
            raise AttributeError(str(error)) from None
        # From now on ordinary attribute access finds it, as fast as any.
        self.__dict__[name] = function
        return function

    def __getitem__(self, name: str) -> Callable[..., Any]:
        function = self._functions.get(name)
        if function is None:
            from .functions import make_function

            function = self._functions[name] = make_function(self._record(name), name, self._symbol)
        return function

    def __iter__(self) -> Iterator[str]:
        return iter(self.kernels)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.kernels})

    def __repr__(self) -> str:
        return f"<aot_runtime.Bundle {self.name!r} at {str(self.path)!r}: {', '.join(self.kernels)}>"

    def preload(self, kernels: Any = None, device: Any = 0) -> None:
        """Load code on a device now rather than at the first call, as a CUDA graph capture needs.

        ``kernels`` is a name or several, by default all that have code for the device; ``device`` is an index,
        ``"cuda:1"``, or anything with an ``index``. ``preload(1)`` loads all kernels on device 1.
        """
        from .asking import preload

        preload(self, kernels, device)

    def explain(self, kernel: str, device: str | Capability | Device, /, *args: Any, **kwargs: Any) -> Explanation:
        """Say what a call would run on a device, without one.

        ``device`` is a compute capability, the name of a GPU or an architecture, ``native`` for this machine's GPU, or a
        :class:`Device`, for which a table may decide. Takes the
        arguments of the call: tensors of any device, or :class:`TensorInfo`.
        """
        from .asking import explain

        return explain(self, kernel, device, args, kwargs)

    def _replace(self, functions: dict[str, Callable[..., Any]]) -> None:
        """Use other functions for these names from now on."""
        self._functions.update(functions)
        self.__dict__.update(functions)

    def _record(self, name: str) -> KernelRecord:
        kernel = name if name in self._table else str(name).split("__")[0]
        if kernel in self._table:
            record = self._table.record(kernel)
            if name == kernel or name in record.functions:
                return record
        from .asking import why_missing

        known = ", ".join(self.kernels)
        raise NotFoundError(
            f"bundle {self.name!r} has no kernel {name!r}; it has {known}{why_missing(self.manifest, name, kernel)}"
        )

    def _symbol(self, name: str) -> tvm_ffi.Function:
        function: tvm_ffi.Function = self._module.get_function(name)
        return function

    def _symbols_of(self, name: str) -> tuple[str, ...]:
        record = self._record(name)
        return record.functions if name == record.name else (name,)

    def _call(self, name: str, *args: Any) -> Any:
        return self._symbol(name)(*args)


def _text_path(path: str | os.PathLike[str]) -> str:
    """An absolute path. TVM-FFI passes it on as UTF-8."""
    directory = os.path.abspath(os.fsdecode(path))
    try:
        directory.encode()
    except UnicodeEncodeError:
        raise BundleError(f"the path {directory!a} is not UTF-8", hint="rename the folder") from None
    return directory


_Opened = tuple[Manifest, bytes, tvm_ffi.Module]


def _open(path: str, check: Check | None, name: str | None, verify: bool) -> _Opened:
    """The files of a bundle that a loader reads. If a build replaces the bundle meanwhile, they are read again."""
    for _ in range(_ATTEMPTS - 1):
        state = _state(path)
        try:
            return _open_once(path, check, name, verify)
        except BundleError:
            if _state(path) == state:
                raise
    return _open_once(path, check, name, verify)


_ATTEMPTS = 4


def _state(path: str) -> tuple[int, ...]:
    """What changes when a bundle is replaced; nothing if there is none."""
    try:
        facts = os.stat(f"{path}/{FILE_NAME}")
    except (OSError, ValueError):
        return ()
    return (facts.st_dev, facts.st_ino, facts.st_mtime_ns)


def _open_once(path: str, check: Check | None, name: str | None, verify: bool) -> _Opened:
    manifest = Manifest.read(path, check, name)
    return manifest, manifest.kernels_content(verify), _open_entry(path, manifest, verify)


def _check_tvm_ffi(path: str, manifest: Manifest) -> None:
    installed = tvm_ffi.__version__
    lowest = manifest.requires.get("tvm_ffi", "0")
    release = _release(installed)
    if release < _release(lowest):
        raise VersionError(
            f"`{path}` needs apache-tvm-ffi {lowest} or newer, installed is {installed}",
            hint=f'`pip install "apache-tvm-ffi>={lowest}"`',
        )
    abi = manifest.requires.get("tvm_ffi_abi")
    if abi is not None and release[0] != abi:
        raise VersionError(
            f"`{path}` was built for version {abi} of TVM-FFI's binary interface, apache-tvm-ffi {installed} has another",
            hint=f'`pip install "apache-tvm-ffi>={lowest},<{abi + 1}"`, or rebuild the bundle with the installed one',
        )


def _release(version: str) -> tuple[int, ...]:
    """The numbers that a version starts with: all that a lower bound compares."""
    numbers = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        numbers.append(int(digits[:18] or 0))
        if digits != part:
            break
    return tuple(numbers)


def _open_entry(path: str, manifest: Manifest, verify: bool) -> tvm_ffi.Module:
    _check_tvm_ffi(path, manifest)
    host = f"{os.uname().machine}-linux-gnu" if sys.platform == "linux" else f"{os.uname().machine}-{sys.platform}"
    if host not in manifest.hosts:
        built = ", ".join(manifest.hosts) or "none"
        raise HostError(
            f"`{path}` holds no code for this host, {host}; it has: {built}",
            hint=f"build it with `--host {host.split('-')[0]}`",
        )
    record = manifest.hosts[host]
    entry = os.path.join(path, record.entry)
    module = open_library(entry, record.file if verify else None)
    try:
        protocol = module.get_function("aot__protocol")()
        if protocol // 1000 != PROTOCOL // 1000:
            raise VersionError(f"`{entry}` speaks protocol {protocol // 1000}, this loader {PROTOCOL // 1000}")
        # First of all: it also tells the library its own path, which the dynamic linker was not given.
        module.get_function("aot__configure")(int(verify), os.path.dirname(entry))
        if verify and module.get_function("aot__identity")() != manifest.identity(host):
            raise DigestError(
                f"`{path}/{FILE_NAME}` is not the one that `{entry}` was built with",
                hint="the bundle was altered or mixed up with another; `python -m aot verify` lists what differs",
            )
    except AttributeError as error:
        raise BundleError(f"cannot open `{entry}`: {error}") from None
    return module
