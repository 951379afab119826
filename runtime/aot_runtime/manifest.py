"""``manifest.json``: what a bundle says of itself.

Read by loaders and tools, written by the builder. Everything read from a file is checked here once;
after that the frozen types below can be trusted. Kernels and files come last, each on a line of its own, and are
parsed and checked as they are looked at: reading a manifest costs little however large the bundle is. Laid out
otherwise, it is JSON like any other. The format is described in ``docs/concepts/bundle.md``.
"""

from __future__ import annotations

import json
import keyword
import os
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Generic, TypeVar

from .arch import Arch
from .errors import AotError, ManifestError

__all__ = ["SCHEMA", "Choice", "FileRecord", "HostRecord", "KernelRecord", "Manifest", "Parameter", "reads_alike"]

SCHEMA = 1
FILE_NAME = "manifest.json"
MAX_BYTES = 32 << 20  # a manifest of 1,000 kernels is about 2 MB
MAX_FILE_BYTES = 1 << 40

_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_VERSION = re.compile(r"[0-9]{1,4}\.[0-9]{1,4}")


@dataclass(frozen=True)
class FileRecord:
    sha256: str
    size: int


@dataclass(frozen=True)
class Parameter:
    """A parameter of a public function. ``default`` counts only where ``has_default``."""

    name: str
    doc: str = ""
    has_default: bool = False
    default: Any = None
    output: bool = False
    shape: str | None = None  # of an output, as an expression of the inputs: "x.shape"
    dtype: str | None = None
    may_be: tuple[str, ...] = ()  # of an output: inputs whose very tensor may be passed here


@dataclass(frozen=True)
class Choice:
    """A compile-time choice that the caller names: ``op="relu"``."""

    name: str
    values: tuple[str, ...]
    default: str | None = None
    doc: str = ""


@dataclass(frozen=True)
class KernelRecord:
    name: str
    doc: str
    parameters: tuple[Parameter, ...]
    choices: tuple[Choice, ...]
    functions: tuple[str, ...]  # symbols, one per combination of choices: "activation__relu"
    archs: tuple[Arch, ...]
    variants: int


@dataclass(frozen=True)
class HostRecord:
    entry: str
    support: str
    glibc: str
    cudart: str


@dataclass(frozen=True)
class Manifest:
    name: str
    complete: bool
    kernels: Mapping[str, KernelRecord]
    hosts: Mapping[str, HostRecord]
    files: Mapping[str, FileRecord]
    failures: tuple[Mapping[str, str], ...] = ()
    toolchain: Mapping[str, str] = field(default_factory=dict)
    source: Mapping[str, str] = field(default_factory=dict)
    requires: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)  # architectures that may be absent, and who installs them

    @classmethod
    def read(cls, bundle: Path, check: Callable[[bytes], None] | None = None) -> Manifest:
        """Read and check the manifest of the bundle in that directory.

        ``check`` sees the bytes first and raises if they are not to be trusted: what it saw is what is read.
        """
        path = bundle / FILE_NAME
        content = _read(bundle, path)
        if check is not None:
            check(content)
        return _parse(_by_lines(content) or _as_json(content, path), path)

    def to_json(self) -> str:
        data = _to_data(self)
        tables = [_table_text(name, data.pop(name)) for name in _TABLES]
        return ",\n".join([json.dumps(data, indent=1, ensure_ascii=False).removesuffix("\n}"), *tables]) + "\n}\n"


def reads_alike(bundle: Path) -> bool:
    """Whether a manifest that is read by lines says the same as JSON: those that builds write do."""
    path = bundle / FILE_NAME
    content = _read(bundle, path)
    return _by_lines(content) is None or _parse(_as_json(content, path), path).to_json().encode() == content


_TABLES = ("kernels", "files")


def _table_text(name: str, records: Mapping[str, Any]) -> str:
    lines = ",\n".join(f"  {_text(key)}: {_text(record)}" for key, record in records.items())
    return f" {_text(name)}: {{\n{lines}\n }}"


_text = json.JSONEncoder(ensure_ascii=False).encode


def _by_lines(content: bytes) -> dict[str, Any] | None:
    """What :meth:`Manifest.to_json` wrote, its tables not yet parsed; None where it is laid out otherwise."""
    head, found, rest = content.partition(b',\n "kernels": {\n')
    kernels, found_files, rest = rest.partition(b'\n },\n "files": {\n')
    files, end, behind = rest.partition(b"\n }\n}\n")
    if not (found and found_files and end) or behind:
        return None
    try:
        data = json.loads(head + b"\n}")
    except (ValueError, RecursionError):
        return None
    return {**data, "kernels": _Lines(kernels), "files": _Lines(files)} if "hosts" in data else None


class _Lines(Mapping[str, Any]):
    """A table whose lines are ``  "name": value,``: one is parsed when it is looked at, all when they are counted."""

    def __init__(self, text: bytes) -> None:
        self._text = b"\n" + text + b"\n"

    def __getitem__(self, name: str) -> Any:
        start = _start(name)
        at = self._text.find(start)
        if at < 0:
            raise KeyError(name)
        line = self._text[at + len(start) : self._text.index(b"\n", at + 1)]
        return _parsed(line.removesuffix(b","))

    def __contains__(self, name: object) -> bool:
        return _start(name) in self._text

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @cached_property
    def _all(self) -> dict[str, Any]:
        table: dict[str, Any] = _parsed(b"{" + self._text + b"}")
        return table


def _start(name: object) -> bytes:
    return f"\n  {_text(name)}: ".encode()


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"a line of the manifest is not valid JSON: {error}", hint=_AGAIN_HINT) from None


_AGAIN_HINT = "the bundle was altered or copied incompletely: build or install it again"


def _read(bundle: Path, path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            content = file.read(min(os.fstat(file.fileno()).st_size, MAX_BYTES) + 1)
    except (FileNotFoundError, NotADirectoryError):
        what = "holds no manifest.json" if bundle.is_dir() else "is not a directory"
        raise ManifestError(f"`{bundle}` is not a bundle: it {what}", hint=_BUILD_HINT) from None
    except OSError as error:
        raise ManifestError(f"cannot read `{path}`: {error.strerror}") from None
    if len(content) > MAX_BYTES:
        raise ManifestError(f"`{path}` is larger than {MAX_BYTES} bytes")
    return content


def _as_json(content: bytes, path: Path) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"`{path}` is not valid JSON: {error}") from None


_BUILD_HINT = "give the directory that `python -m aot build` printed"


_T = TypeVar("_T")


class _Table(Mapping[str, _T], Generic[_T]):
    """Records that are checked when looked at: a loader looks at few of a large bundle's."""

    def __init__(self, parse: Callable[[str, _Reader], _T], items: Mapping[str, Any], where: str) -> None:
        self._parse = parse
        self._items = items
        self._where = where

    def __getitem__(self, name: str) -> _T:
        return self._parse(name, _Reader(self._items[name], f"{self._where}.{name}"))

    def __contains__(self, name: object) -> bool:
        return name in self._items

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


class _Reader:
    """Takes typed fields out of parsed JSON, naming the place of whatever is wrong."""

    def __init__(self, data: Any, where: str) -> None:
        if not isinstance(data, dict):
            raise ManifestError(f"{where}: expected an object, got {type(data).__name__}")
        self.data = data
        self.where = where

    def get(self, key: str, kind: type | tuple[type, ...], default: Any = ...) -> Any:
        value = self.data.get(key, default)
        if value is ...:
            raise ManifestError(f"{self.where}: `{key}` is missing")
        if value is not default and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            raise ManifestError(f"{self.where}: `{key}` is {value!r}, of type {type(value).__name__}")
        return value

    def each(self, key: str) -> list[_Reader]:
        items = self.get(key, list, [])
        return [_Reader(item, f"{self.where}: {key}[{i}]") for i, item in enumerate(items)]

    def table(self, key: str, parse: Callable[[str, _Reader], _T]) -> _Table[_T]:
        return _Table(parse, self.get(key, (dict, _Lines)), f"{self.where}: {key}")

    def texts(self, key: str) -> tuple[str, ...]:
        items = self.get(key, list, [])
        if not all(isinstance(item, str) for item in items):
            raise ManifestError(f"{self.where}: `{key}` must be a list of strings")
        return tuple(items)


def _parse(data: Any, path: Path) -> Manifest:
    reader = _Reader(data, f"`{path}`")
    schema = reader.get("schema", int)
    if schema < 1:
        raise ManifestError(f"`{path}` has schema {schema}, which never was")
    if schema > SCHEMA:
        raise ManifestError(
            f"`{path}` has schema {schema}, this reader knows up to {SCHEMA}",
            hint="update cute-aot: `pip install -U cute-aot`",
        )
    files = reader.table("files", _file)
    return Manifest(
        name=_name(reader.get("name", str), reader),
        complete=reader.get("complete", bool),
        kernels=reader.table("kernels", _kernel),
        hosts=dict(reader.table("hosts", lambda name, record: _host(record, files))),
        files=files,
        failures=tuple(record.data for record in reader.each("failures")),
        toolchain=reader.get("toolchain", dict, {}),
        source=reader.get("source", dict, {}),
        requires=reader.get("requires", dict, {}),
        parts=reader.get("parts", dict, {}),
    )


def is_name(text: str) -> bool:
    """Whether a bundle, a kernel or a function may be called so."""
    return _NAME.fullmatch(text) is not None and not keyword.iskeyword(text)


def _name(name: str, reader: _Reader) -> str:
    if not is_name(name):
        raise ManifestError(f"{reader.where}: {name!r} is not a name")
    return name


def _file(name: str, record: _Reader) -> FileRecord:
    _check_inside(name, record)
    digest = record.get("sha256", str)
    if not _DIGEST.fullmatch(digest):
        raise ManifestError(f"{record.where}: {digest!r} is not a SHA-256")
    size = record.get("size", int)
    if not 0 <= size <= MAX_FILE_BYTES:
        raise ManifestError(f"{record.where}: `size` is {size}")
    return FileRecord(digest, size)


def _check_inside(name: str, record: _Reader) -> None:
    plain = name.isprintable() and "\\" not in name and posixpath.normpath(name) == name
    if not plain or name.startswith(("/", "../")) or name in ("", ".", ".."):
        raise ManifestError(f"{record.where}: the path leaves the bundle")


def _host(record: _Reader, files: Mapping[str, FileRecord]) -> HostRecord:
    host = HostRecord(
        entry=record.get("entry", str),
        support=record.get("support", str),
        glibc=record.get("glibc", str),
        cudart=record.get("cudart", str),
    )
    if not _VERSION.fullmatch(host.glibc):
        raise ManifestError(f"{record.where}: `glibc` is {host.glibc!r}, not a version")
    for name in (host.entry, host.support):
        if name not in files:
            raise ManifestError(f"{record.where}: {name!r} is not among the bundle's files")
        _check_inside(name, record)
    return host


def _kernel(name: str, record: _Reader) -> KernelRecord:
    parameters = tuple(_parameter(item) for item in record.each("parameters"))
    choices = tuple(_choice(item) for item in record.each("choices"))
    _check_signature(parameters, choices, record)
    return KernelRecord(
        name=_name(name, record),
        doc=record.get("doc", str, ""),
        parameters=parameters,
        choices=choices,
        functions=tuple(_name(function, record) for function in record.texts("functions")),
        archs=tuple(_arch(text, record) for text in record.texts("archs")),
        variants=record.get("variants", int),
    )


def _check_signature(parameters: tuple[Parameter, ...], choices: tuple[Choice, ...], record: _Reader) -> None:
    """What Python asks of a function's parameters, since a loader makes one of them."""
    names = [*(parameter.name for parameter in parameters), *(choice.name for choice in choices)]
    for name in names:
        if names.count(name) > 1:
            raise ManifestError(f"{record.where}: two parameters or choices are called {name!r}")
    for earlier, later in pairwise(parameters):
        if earlier.has_default and not later.has_default:
            raise ManifestError(f"{record.where}: {later.name} has no default but follows one that has")


def _arch(text: str, record: _Reader) -> Arch:
    try:
        return Arch.parse(text)
    except AotError as error:
        raise ManifestError(f"{record.where}: {error.message}") from None


def _parameter(record: _Reader) -> Parameter:
    return Parameter(
        name=_identifier(record.get("name", str), record),
        doc=record.get("doc", str, ""),
        has_default="default" in record.data,
        default=_scalar(record.data.get("default"), record),
        output=record.get("output", bool, False),
        shape=record.get("shape", str, None),
        dtype=record.get("dtype", str, None),
        may_be=record.texts("may_be"),
    )


def _scalar(value: Any, record: _Reader) -> Any:
    if value is not None and not isinstance(value, (bool, int, float)):
        raise ManifestError(f"{record.where}: the default {value!r} is neither a number nor null")
    return value


def _identifier(name: str, record: _Reader) -> str:
    # Loaders write these names into the source of a function.
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        raise ManifestError(f"{record.where}: {name!r} cannot name a parameter")
    return name


def _choice(record: _Reader) -> Choice:
    return Choice(
        name=_identifier(record.get("name", str), record),
        values=record.texts("values"),
        default=record.get("default", str, None),
        doc=record.get("doc", str, ""),
    )


def _to_data(manifest: Manifest) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "name": manifest.name,
        "complete": manifest.complete,
        "kernels": {name: _kernel_data(kernel) for name, kernel in sorted(manifest.kernels.items())},
        "hosts": {name: vars(host) for name, host in sorted(manifest.hosts.items())},
        "files": {name: vars(record) for name, record in sorted(manifest.files.items())},
        "failures": [dict(failure) for failure in manifest.failures],
        "toolchain": dict(manifest.toolchain),
        "source": dict(manifest.source),
        "requires": dict(manifest.requires),
        **({"parts": dict(manifest.parts)} if manifest.parts else {}),
    }


def _kernel_data(kernel: KernelRecord) -> dict[str, Any]:
    return {
        "doc": kernel.doc,
        "parameters": [_parameter_data(parameter) for parameter in kernel.parameters],
        "choices": [{**vars(choice), "values": list(choice.values)} for choice in kernel.choices],
        "functions": list(kernel.functions),
        "archs": [str(arch) for arch in kernel.archs],
        "variants": kernel.variants,
    }


def _parameter_data(parameter: Parameter) -> dict[str, Any]:
    data: dict[str, Any] = {"name": parameter.name, "doc": parameter.doc, "output": parameter.output}
    if parameter.has_default:
        data["default"] = parameter.default
    if parameter.output:
        data.update(shape=parameter.shape, dtype=parameter.dtype)
    if parameter.may_be:
        data["may_be"] = list(parameter.may_be)
    return data
