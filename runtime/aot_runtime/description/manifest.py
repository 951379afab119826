"""``manifest.json`` and the files it vouches for: what a bundle says of itself.

This is what a loader reads; the builder, in ``aot/bundle``, reads the provenance too, and writes it all. ``manifest.json`` is small however large the bundle is. It holds
the digests of ``kernels.json`` (what callers see), ``files.json`` (the digest of every other file) and
``provenance.json`` (what was built from what), so that a signature over ``manifest.json`` covers the whole bundle.

Everything that is read is checked here once. After that the values below can be trusted. Fields that this version does
not know are passed over. ``docs/concepts/compatibility.md`` states what versions promise to each other.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import DigestError, ManifestError, SignatureError, VersionError
from .records import (
    FILE_NAME,
    FILES_NAME,
    INDEX_NAMES,
    KERNELS_NAME,
    MAX_COUNT,
    PROTOCOL,
    SCHEMA,
    FileRecord,
    HostRecord,
    Reader,
    check_inside,
    file_record,
    parse_json,
    read_bounded,
    read_name,
    shown,
)

if TYPE_CHECKING:
    from typing import TypeVar

    from _typeshed import StrPath

    from ..arch import Arch
    from .kernel_records import KernelRecord

    _Self = TypeVar("_Self", bound="Manifest")

__all__ = ["MAX_BYTES", "Check", "Manifest", "identity_of", "read_manifest"]

Check = Callable[[bytes], None]  # raises if the bytes of a manifest are not to be trusted

MAX_BYTES = 4 << 20  # of a manifest; one of 1,000 kernels has about 2 KB
MAX_INDEX_BYTES = 256 << 20

_HOST_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_DIGITS = frozenset("0123456789")
_AGAIN_HINT = "the bundle was altered or copied incompletely: build or install it again"
_BUILD_HINT = "give the directory that `python -m aot build` printed"
_REBUILD_HINT = "rebuild it: `python -m aot build --replace`, with the kernels and architectures that it has"


class Manifest:
    """A bundle's description of itself. ``archs``, ``kernels`` and ``files`` are read when they are first used."""

    __slots__ = (
        "_archs", "_data", "_files", "_indexes", "_kernels", "_path", "complete", "distributions", "failures", "hosts", "name",
        "protocol", "requires", "schema", "sha256", "toolchain",
    )  # fmt: skip

    schema: int
    protocol: int
    name: str
    complete: bool
    hosts: Mapping[str, HostRecord]
    failures: tuple[Mapping[str, str], ...]
    toolchain: Mapping[str, str]
    requires: Mapping[str, Any]
    distributions: Mapping[str, str]  # architectures that may be absent, and what installs them
    sha256: str  # of the bytes that this was read from
    _path: str  # of the bundle that this was read from
    _data: dict[str, Any]  # what was read, with fields that this version does not know
    _indexes: dict[str, FileRecord]  # what was read of INDEX_NAMES
    _archs: tuple[Arch, ...] | None
    _kernels: Mapping[str, KernelRecord] | None
    _files: Mapping[str, FileRecord] | None

    @classmethod
    def read(cls: type[_Self], bundle: StrPath, check: Check | None = None, name: str | None = None) -> _Self:
        """Read and check the manifest of the bundle in that directory.

        ``check`` sees the bytes first and raises if they are not to be trusted: what it saw is what is read. A bundle of
        another ``name`` is refused.
        """
        content = read_manifest(os.fspath(bundle))
        if check is not None:
            check(content)
        manifest = cls.parse(content, os.fspath(bundle))
        if name is not None and manifest.name != name:
            raise SignatureError(
                f"`{os.fspath(bundle)}` is the bundle {manifest.name!r}, not {name!r}",
                hint="install the bundle that was meant; its signer may have signed others too",
            )
        return manifest

    @classmethod
    def parse(cls: type[_Self], content: bytes, bundle: str) -> _Self:
        """The manifest with that content; ``bundle`` is the directory that the files it vouches for lie in."""
        place = f"`{bundle}/{FILE_NAME}`"
        reader = Reader(parse_json(content, place), place)
        _check_schema(reader)
        manifest = cls.__new__(cls)
        _fill(manifest, reader)
        manifest._archs = manifest._kernels = manifest._files = None
        manifest._data, manifest._path = reader.data, bundle
        manifest.sha256 = hashlib.sha256(content).hexdigest()
        return manifest

    @property
    def archs(self) -> tuple[Arch, ...]:
        """Every architecture that some kernel was built for."""
        if self._archs is None:
            from .kernel_records import read_arch

            reader = Reader(self._data, f"`{self._path}/{FILE_NAME}`")
            self._archs = tuple(read_arch(text, reader) for text in reader.texts("archs"))
        return self._archs

    @property
    def kernels(self) -> Mapping[str, KernelRecord]:
        """All kernels. A loader looks at one at a time: see :class:`KernelTable`."""
        if self._kernels is None:
            from .kernel_records import KernelTable

            table = KernelTable(self.index_content(KERNELS_NAME), f"`{self._path}/{KERNELS_NAME}`")
            self._kernels = {name: table.record(name) for name in table.names}
        return self._kernels

    @property
    def files(self) -> Mapping[str, FileRecord]:
        """Every file but the manifest and its indexes."""
        if self._files is None:
            place = f"`{self._path}/{FILES_NAME}`"
            table = Reader(parse_json(self.index_content(FILES_NAME), place), place).table("files")
            self._files = {name: _file(name, record) for name, record in table.items()}
        return self._files

    def index_content(self, name: str) -> bytes:
        """The content of one of ``INDEX_NAMES``, after its digest matched."""
        path, expected = f"{self._path}/{name}", self._indexes[name]
        content = read_bounded(path, expected.size, ManifestError)
        if len(content) != expected.size or hashlib.sha256(content).hexdigest() != expected.sha256:
            raise DigestError(f"`{path}` is not the file that `{FILE_NAME}` names", hint=_AGAIN_HINT)
        return content

    def kernels_content(self, verify: bool = True) -> bytes:
        """``kernels.json``; without ``verify`` its digest is not compared."""
        if verify:
            return self.index_content(KERNELS_NAME)
        return read_bounded(f"{self._path}/{KERNELS_NAME}", MAX_INDEX_BYTES, ManifestError)

    def identity(self, host: str) -> str:
        """The digest that the entry library of a host carries."""
        return identity_of(self._data, host)


def identity_of(manifest: Mapping[str, Any], host: str) -> str:
    """The digest of all that a caller can notice, of the data of a manifest.

    Left out is what depends on the entry library itself (its digest, that of ``files.json``), and what splitting a
    bundle into distributions, or building it from another commit with the same files, may change.
    """
    data = dict(manifest)
    for name in ("files", "provenance", "distributions"):
        data.pop(name, None)
    record = dict(data["hosts"][host])
    record["entry"] = {key: value for key, value in record["entry"].items() if key not in ("sha256", "size")}
    data["hosts"] = {host: record}
    return _records_digest(data)


def _records_digest(data: Any) -> str:
    """SHA-256 of JSON data, however it is laid out in a file."""
    return hashlib.sha256(_encode(data).encode("ascii")).hexdigest()


_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


# Reading files.


def read_manifest(bundle: str) -> bytes:
    """The content of a bundle's ``manifest.json``."""
    try:
        return read_bounded(f"{bundle}/{FILE_NAME}", MAX_BYTES, ManifestError)
    except FileNotFoundError:
        what = f"holds no {FILE_NAME}" if os.path.isdir(bundle) else "is not a directory"
        what = what if os.path.lexists(bundle) else "does not exist"
        raise ManifestError(f"`{bundle}` is not a bundle: it {what}", hint=_BUILD_HINT) from None


def _check_schema(reader: Reader) -> None:
    schema = reader.number("schema", most=MAX_COUNT, least=-MAX_COUNT)
    if schema < 1:
        raise ManifestError(f"{reader.where}: invalid schema version: {schema}")
    if schema < SCHEMA:
        raise ManifestError(
            f"{reader.where} has schema {schema}, which no released version wrote; this version reads {SCHEMA} and later",
            hint=_REBUILD_HINT,
        )
    protocol = reader.number("protocol", most=MAX_COUNT)
    if protocol // 1000 != PROTOCOL // 1000:
        raise VersionError(
            f"{reader.where} is for loaders of protocol {protocol // 1000}, this loader has {PROTOCOL // 1000}",
            hint="install the version of cute-aot that built it, or rebuild it with this one",
        )


def _fill(manifest: Manifest, reader: Reader) -> None:
    manifest.schema, manifest.protocol = reader.data["schema"], reader.data["protocol"]
    manifest.name = read_name(reader.get("name", str), reader)
    manifest.complete = reader.get("complete", bool)
    archs = reader.texts("archs")  # parsed when they are asked for
    manifest.hosts = {_host_name(name, reader): _host(record) for name, record in reader.table("hosts").items()}
    manifest.failures = tuple(_texts_of(record) for record in reader.each("failures"))
    manifest.toolchain = reader.text_table("toolchain")
    manifest.requires = _requires(reader.inner("requires")) if "requires" in reader.data else {}
    manifest.distributions = reader.text_table("distributions")
    if unknown := manifest.distributions.keys() - set(archs):  # they are parts of paths
        raise ManifestError(f"{reader.where}: `distributions` names {shown(min(unknown))}, which is none of `archs`")
    manifest._indexes = {name: file_record(reader.inner(name.removesuffix(".json"))) for name in INDEX_NAMES}


def _requires(record: Reader) -> dict[str, Any]:
    requires = dict(record.data)
    if "driver" in requires:
        requires["driver"] = record.text_table("driver")
    if "tvm_ffi" in requires:
        record.get("tvm_ffi", str)
    if "tvm_ffi_abi" in requires:
        record.number("tvm_ffi_abi", most=MAX_COUNT)
    return requires


def _texts_of(record: Reader) -> dict[str, str]:
    return {key: record.get(key, str) for key in record.data}


def _file(name: str, record: Reader) -> FileRecord:
    check_inside(name, record)
    return file_record(record)


def _host_name(name: str, record: Reader) -> str:
    """The name of a host is a folder, and part of commands that people are shown."""
    if not name or not _HOST_LETTERS.issuperset(name) or name.startswith("-"):
        raise ManifestError(f"{record.where}: `hosts` names {shown(name)}, which is no host")
    return name


def _host(record: Reader) -> HostRecord:
    entry = record.inner("entry")
    host = HostRecord(
        entry=entry.get("path", str),
        support=record.get("support", str),
        glibc=record.get("glibc", str),
        cudart=record.get("cudart", str),
        file=file_record(entry),
    )
    numbers = host.glibc.split(".")
    if len(numbers) != 2 or not all(1 <= len(number) <= 4 and _DIGITS.issuperset(number) for number in numbers):
        raise ManifestError(f"{record.where}: `glibc` is {shown(host.glibc)}, not a version")
    check_inside(host.entry, entry)
    check_inside(host.support, record)
    return host
