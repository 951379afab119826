"""Writing a wheel: a zip that has the same bytes for the same content, whenever it is made.

Names are sorted, timestamps are fixed (or ``SOURCE_DATE_EPOCH``, if the caller passes it), and all permissions are the
same. Only the compressor may differ: another zlib may pack the same content differently.
"""

from __future__ import annotations

import base64
import hashlib
import os
import stat
import time
import zipfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import BuildError, UsageError, system_hint
from ..files import making, scratch_directory

__all__ = ["Content", "Wheel", "parse_epoch", "wheel_file", "write_files", "write_wheels"]

Content = bytes | Path

_EARLIEST = 315532800  # 1980-01-01, the earliest date that a zip can state
_MODE = (stat.S_IFREG | 0o644) << 16


@dataclass(frozen=True)
class Wheel:
    """A wheel before it is written. ``files`` are all files by path, except ``WHEEL`` and ``RECORD``."""

    distribution: str  # as in file names: no dashes
    version: str
    tag: str  # py3-none-manylinux_2_28_x86_64
    files: Mapping[str, Content]

    @property
    def name(self) -> str:
        return f"{self.distribution}-{self.version}-{self.tag}.whl"

    @property
    def dist_info(self) -> str:
        return f"{self.distribution}-{self.version}.dist-info"


def parse_epoch(text: str | None) -> int | None:
    """``SOURCE_DATE_EPOCH`` as a number; None if it is not set."""
    if not text:
        return None
    if not text.isdecimal() or int(text) >= 1 << 32:
        raise UsageError(f"SOURCE_DATE_EPOCH is {text!r}", hint="set it to seconds since 1970")
    return int(text)


def write_wheels(wheels: Iterable[Wheel], directory: Path, epoch: int | None = None) -> list[Path]:
    """Write wheels into a directory: all of them, or none. Files of the same name are replaced."""
    try:
        with making(directory), scratch_directory(directory, prefix=".cute-aot-wheels-") as staged:
            written = [_write(wheel, staged / wheel.name, epoch) for wheel in wheels]
            for path in written:
                os.replace(path, directory / path.name)
            return [directory / path.name for path in written]
    except OSError as error:
        hint = system_hint(error) or "pass another `--out`"
        raise BuildError(f"cannot write to `{directory}`: {error.strerror}", hint=hint) from error


def write_files(files: Mapping[str, Content], directory: Path) -> None:
    """Write the same content as plain files, for editable installs."""
    for name, content in sorted(files.items()):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # never write through a hard link or into a mapped library
            path.unlink()
        path.write_bytes(_read(content))


def _write(wheel: Wheel, path: Path, epoch: int | None) -> Path:
    files = {**wheel.files, f"{wheel.dist_info}/WHEEL": wheel_file(wheel.tag)}
    moment = time.gmtime(max(_EARLIEST, epoch if epoch is not None else _EARLIEST))[:6]
    record = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        # Installers read the metadata first and find it fastest at the end.
        for name in sorted(files, key=lambda name: (name.startswith(wheel.dist_info), name)):
            content = _read(files[name])
            _add(archive, name, content, moment)
            record.append(f"{name},sha256={_digest(content)},{len(content)}\n")
        own = f"{wheel.dist_info}/RECORD"
        _add(archive, own, "".join([*record, f"{own},,\n"]).encode(), moment)
    return path


def wheel_file(tag: str) -> bytes:
    """``WHEEL``: what an installer reads before it unpacks."""
    return f"Wheel-Version: 1.0\nGenerator: cute-aot\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()


def _add(archive: zipfile.ZipFile, name: str, content: bytes, moment: tuple[int, ...]) -> None:
    year, month, day, hour, minute, second = moment
    info = zipfile.ZipInfo(name, (year, month, day, hour, minute, second))
    info.compress_type = zipfile.ZIP_DEFLATED
    info.create_system = 3  # Unix, wherever this runs
    info.external_attr = _MODE
    archive.writestr(info, content, compresslevel=9)


def _read(content: Content) -> bytes:
    return content if isinstance(content, bytes) else content.read_bytes()


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
