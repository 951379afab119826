"""Loading a bundle: ``aot_runtime.load(path)`` gives its kernels as Python functions.

The choice among variants and architectures is made in the bundle's own C code, call by call; this
module only finds the right entry library, checks it, and dresses its functions for Python.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tvm_ffi

from . import errors
from .arch import Capability, parse_capability
from .errors import ArgumentError, BundleError, DeviceError, DigestError
from .functions import make_function
from .manifest import FileRecord, KernelRecord, Manifest

if TYPE_CHECKING:
    from .signature import PublicKey

__all__ = ["Bundle", "Candidate", "Explanation", "TensorInfo", "load"]

PROTOCOL_MAJOR = 1  # AOT_PROTOCOL_MAJOR of runtime/include/aot/abi.h

errors.register_with_tvm_ffi()


def load(
    path: str | os.PathLike[str], *, verify: bool = True, key: PublicKey | Sequence[PublicKey] | None = None
) -> Bundle:
    """Load a bundle, the directory that ``python -m aot build`` printed.

    Every native file is checked against its digest before it is opened: the entry library here, a
    kernel's own library when it is first needed. ``verify=False`` turns both checks off.

    ``key`` is a public key, or several: the bundle must be signed by one of them. A key is the path of a PEM
    file, the content of one, or 32 bytes. A bundle that is unsigned, signed by another key or altered raises
    :class:`SignatureError` or :class:`DigestError` before any of its code is opened.
    """
    if key is not None and not verify:
        raise ArgumentError(
            "`verify=False` cannot be combined with `key`: a signature covers files by their digests",
            hint="leave `verify` out",
        )
    return Bundle(Path(os.path.abspath(path)), verify=verify, key=key)


@dataclass(frozen=True)
class TensorInfo:
    """A tensor for :meth:`Bundle.explain` that has a type and a shape, and no memory."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None  # row-major where absent
    align: int = 256

    def resolved_strides(self) -> tuple[int, ...]:
        if self.strides is not None:
            return self.strides
        strides, step = [], 1
        for extent in reversed(self.shape):
            strides.append(step)
            step *= max(extent, 1)
        return tuple(reversed(strides))


@dataclass(frozen=True)
class Candidate:
    """A variant that was considered. ``reason`` says why it was refused, "" where it would run."""

    arch: str
    variant: str
    reason: str


@dataclass(frozen=True)
class Explanation:
    """What a call would run, and why not the rest."""

    chosen: Candidate | None
    candidates: tuple[Candidate, ...]

    def __str__(self) -> str:
        lines = []
        for candidate in self.candidates:
            verdict = candidate.reason or ("chosen" if candidate is self.chosen else "would do, but another goes first")
            lines.append(f"{candidate.arch} {candidate.variant}: {verdict}")
        return "\n".join(lines)


class Bundle:
    """A loaded bundle. Its kernels are attributes and items: ``bundle.add(x, y, out)``."""

    def __init__(self, path: Path, *, verify: bool = True, key: PublicKey | Sequence[PublicKey] | None = None) -> None:
        self.path = path
        self.manifest = Manifest.read(path, _signature_check(path, key))
        self._module = _open_entry(path, self.manifest, verify)
        self._functions: dict[str, Callable[..., Any]] = {}

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def kernels(self) -> tuple[str, ...]:
        return tuple(self.manifest.kernels)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            function = self[name]
        except KeyError as error:
            raise AttributeError(error.args[0]) from None
        # From now on ordinary attribute access finds it, as fast as any.
        self.__dict__[name] = function
        return function

    def __getitem__(self, name: str) -> Callable[..., Any]:
        function = self._functions.get(name)
        if function is None:
            function = self._functions[name] = make_function(self._record(name), name, self._symbol)
        return function

    def __iter__(self) -> Iterator[str]:
        return iter(self.kernels)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.kernels})

    def __repr__(self) -> str:
        return f"<aot_runtime.Bundle {self.name!r} at {str(self.path)!r}: {', '.join(self.kernels)}>"

    def preload(self, device: Any = 0, kernels: str | Iterable[str] | None = None) -> None:
        """Load code on a device now rather than at the first call, as a CUDA graph capture needs.

        ``device`` is an index, ``"cuda:1"``, or anything with an ``index``; ``kernels`` defaults to all
        that have code for it.
        """
        index = _device_index(device)
        names = self.kernels if kernels is None else [kernels] if isinstance(kernels, str) else list(kernels)
        functions = [function for name in names for function in self._symbols_of(name)]
        refused: list[DeviceError] = []
        for function in functions:
            try:
                self._call("aot__preload", function, index)
            except DeviceError as error:
                refused.append(error)
        if refused and (kernels is not None or len(refused) == len(functions)):
            raise refused[0]

    def explain(self, kernel: str, capability: str | Capability, /, *args: Any, **kwargs: Any) -> Explanation:
        """Say what a call would run on a device of that compute capability, without one.

        Takes the arguments of the call: tensors of any device, or :class:`TensorInfo`.
        """
        major, minor = parse_capability(capability)
        symbol, bound = self._bind(kernel, args, kwargs)
        values = [self._described(value) for value in bound]
        return _parse_explanation(self._call("aot__explain", symbol, major, minor, *values))

    def _record(self, name: str) -> KernelRecord:
        kernel = name if name in self.manifest.kernels else name.split("__")[0]
        if kernel in self.manifest.kernels:
            record = self.manifest.kernels[kernel]
            if name == kernel or name in record.functions:
                return record
        known = ", ".join(self.kernels)
        raise KeyError(f"bundle {self.name!r} has no kernel {name!r}; it has {known}")

    def _symbol(self, name: str) -> tvm_ffi.Function:
        function: tvm_ffi.Function = self._module.get_function(name)
        return function

    def _symbols_of(self, name: str) -> tuple[str, ...]:
        record = self._record(name)
        return record.functions if name == record.name else (name,)

    def _call(self, name: str, *args: Any) -> Any:
        return self._symbol(name)(*args)

    def _bind(self, kernel: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, list[Any]]:
        bound: list[Any] = []
        function = make_function(
            self._record(kernel), kernel, lambda symbol: lambda *values: bound.extend((symbol, values))
        )
        function(*args, **kwargs)
        return bound[0], list(bound[1])

    def _described(self, value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return [self._described(item) for item in value]
        if not isinstance(value, TensorInfo):
            return value
        dtype = tvm_ffi.dtype(_DTYPE_ALIASES.get(value.dtype, value.dtype))
        numbers = (*value.shape, *value.resolved_strides())
        kind = (int(dtype.type_code), dtype.bits, dtype.lanes)
        return self._call("aot__describe", *kind, value.align, len(value.shape), *numbers)


def _signature_check(path: Path, key: PublicKey | Sequence[PublicKey] | None) -> Callable[[bytes], None] | None:
    """What the bytes of the manifest must pass before they are read; nothing without a key."""
    if key is None:
        return None
    from .signature import check_signature, public_keys  # imported only when a key is given

    keys = public_keys(key)

    def check(manifest: bytes) -> None:
        check_signature(path, manifest, keys)

    return check


_DTYPE_ALIASES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}


def _check_tvm_ffi(path: Path, manifest: Manifest) -> None:
    lowest = str(manifest.requires.get("tvm_ffi", "0"))
    if _release(tvm_ffi.__version__) < _release(lowest):
        raise BundleError(
            f"`{path}` needs apache-tvm-ffi {lowest} or newer, installed is {tvm_ffi.__version__}",
            hint=f'`pip install "apache-tvm-ffi>={lowest}"`',
        )


def _release(version: str) -> tuple[int, ...]:
    """The numbers a version starts with; all that a lower bound compares."""
    numbers = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        numbers.append(int(digits or 0))
        if digits != part:
            break
    return tuple(numbers)


def _open_entry(path: Path, manifest: Manifest, verify: bool) -> tvm_ffi.Module:
    _check_tvm_ffi(path, manifest)
    host = f"{os.uname().machine}-linux-gnu" if sys.platform == "linux" else f"{platform.machine()}-{sys.platform}"
    if host not in manifest.hosts:
        built = ", ".join(manifest.hosts) or "none"
        raise BundleError(
            f"`{path}` holds no code for this host, {host}; it has: {built}",
            hint=f"build it with `--host {host.split('-')[0]}`",
        )
    name = manifest.hosts[host].entry
    entry = os.path.join(path, name)
    if verify:
        _check_digest(entry, manifest.files[name])
    try:
        module = tvm_ffi.load_module(entry)
        protocol = module.get_function("aot__protocol")()
    except (RuntimeError, AttributeError) as error:
        raise BundleError(f"cannot open `{entry}`: {error}") from None
    major, minor = divmod(protocol, 1000)
    if major != PROTOCOL_MAJOR:
        raise BundleError(f"`{entry}` has protocol {major}.{minor}, this loader reads {PROTOCOL_MAJOR}")
    module.get_function("aot__configure")(int(verify), os.path.dirname(entry))
    return module


def _check_digest(file: str, expected: FileRecord) -> None:
    try:
        digest, size = _hashed(file, expected.size)
    except FileNotFoundError:
        raise BundleError(f"`{file}` is missing", hint="build or install the bundle again") from None
    except OSError as error:
        raise BundleError(f"cannot read `{file}`: {error.strerror}") from None
    if size != expected.size:
        seen = "more" if size > expected.size else str(size)
        raise DigestError(f"`{file}` has {seen} bytes, expected {expected.size}", hint=_VERIFY_HINT)
    if digest != expected.sha256:
        raise DigestError(f"`{file}` has sha256 {digest}, expected {expected.sha256}", hint=_VERIFY_HINT)


def _hashed(path: str, most: int) -> tuple[str, int]:
    """The SHA-256 of a file and its size, as far as one reads to know that it has more than ``most`` bytes."""
    buffer = memoryview(bytearray(_BUFFER))  # used again and again: fresh memory takes longer than the reading
    hashed, size = hashlib.sha256(), 0
    with open(path, "rb", buffering=0) as file:
        while size <= most and (count := file.readinto(buffer)):
            hashed.update(buffer[:count])
            size += count
    return hashed.hexdigest(), size


_BUFFER = 1 << 15
_VERIFY_HINT = "the bundle was altered or copied incompletely; `python -m aot verify` lists what differs"


def _device_index(device: Any) -> int:
    if isinstance(device, str):
        kind, _, index = device.partition(":")
        if kind == "cuda" and (index or "0").isdecimal():
            return int(index or 0)
    elif isinstance(device, int):
        return device
    elif getattr(device, "type", "cuda") == "cuda" and hasattr(device, "index"):
        return int(device.index or 0)
    raise ArgumentError(
        f"not a CUDA device: {device!r}", hint='give an index, "cuda:1", or a device object of your framework'
    )


def _parse_explanation(text: str) -> Explanation:
    chosen, candidates = None, []
    for line in str(text).splitlines():
        arch, variant, reason = line.split("\t")
        candidate = Candidate(arch.removeprefix("*"), variant, reason)
        candidates.append(candidate)
        if arch.startswith("*"):
            chosen = candidate
    return Explanation(chosen, tuple(candidates))
