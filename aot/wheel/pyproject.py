"""A kernel project: ``pyproject.toml`` with ``[project]`` and ``[tool.cute-aot]``, read and checked in one place."""

from __future__ import annotations

import dataclasses
import os
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from aot_runtime.arch import ArchError
from pyproject_metadata import ConfigurationError, StandardMetadata

from ..cache.places import find_places
from ..compile.messages import Options
from ..errors import UsageError
from ..files import read_given
from ..hosts import Host, available_cores, parse_glibc, parse_hosts
from ..pipeline.settings import Settings
from ..pipeline.spellings import parse_archs
from .identity import Identity
from .make import Project
from .signing import choose_signing

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["ConfigSettings", "KernelProject", "Table", "in_table", "is_project", "read_project"]

_T = TypeVar("_T")
_MISSPELLED = ("aot", "cute_aot")  # what the table is called by mistake
_ARCHS = 'write archs = ["sm90"]'  # the only key without a default


@dataclass(frozen=True)
class Table:
    """The ``[tool.cute-aot]`` table. Keys are spelled with dashes; only ``archs`` has no default."""

    archs: tuple[str, ...]
    """GPU architectures, as ``--arch`` takes them: ``["sm80", "sm_90a"]``."""
    kernels: str = "kernels"
    """Folder or file of the project that declares the kernels, or an importable module."""
    package: str | None = None
    """What users import. The default is the project's name with underscores."""
    hosts: tuple[str, ...] = ("all",)
    """Hosts the project is for. A wheel is for one of them: this machine's, or ``--config-settings=host=...``."""
    select: tuple[str, ...] = ()
    """Globs of kernel names. The default is all kernels."""
    families: tuple[str, ...] = ()
    """Families of kernels, as ``--family`` takes them. The default is the core families."""
    tilings: Literal["core", "all"] = "core"
    """Whether variants are built that only make some calls faster, as ``--tilings`` says."""
    glibc: str = "2.28"
    """Lowest glibc to run on."""
    cudart: Literal["static", "shared"] = "static"
    """Link the CUDA runtime into the package, or use the one of the process."""
    cuda: int | None = None
    """Major version of CuTe DSL's CUDA backend. The default is the installed one."""
    timeout: float | None = None
    """Seconds that one variant may take to compile."""
    wheelhouse: str | None = None
    """Folder with NVIDIA's wheels for other hosts, for machines without a network."""
    sdist_include: tuple[str, ...] = ()
    """Globs of further files for the sdist: ``["tests/**/*.py"]``."""
    version_file: str | None = None
    """File that holds the version, if ``[project]`` has ``dynamic = ["version"]``."""
    key: tuple[str, ...] = ()
    """Public keys, PEM files: the package loads its bundle only if one of them signed it."""


@dataclass(frozen=True)
class ConfigSettings:
    """``--config-settings`` of pip and build, for one run."""

    host: tuple[str, ...] = ()
    """The host of the wheel."""
    arch: tuple[str, ...] = ()
    """Architectures to build instead of those in ``[tool.cute-aot]``."""
    jobs: tuple[str, ...] = ()
    """Compile workers."""
    wheelhouse: tuple[str, ...] = ()
    """Replaces the one in ``[tool.cute-aot]``."""
    sign: tuple[str, ...] = ()
    """The private key that signs the bundle of the wheel, or ``none``."""

    @classmethod
    def parse(cls, given: Mapping[str, Any] | None) -> ConfigSettings:
        """pip passes a string, or a list if a key is given twice."""
        lists = {key: [value] if isinstance(value, str) else value for key, value in (given or {}).items()}
        return _parse_table(cls, lists, "--config-settings")


@dataclass(frozen=True)
class KernelProject:
    """A project as its ``pyproject.toml`` describes it."""

    root: Path
    table: Table
    hosts: tuple[Host, ...]
    project: Project

    def host(self, config: ConfigSettings) -> Host:
        """The one host that a wheel is for."""
        if len(config.host) > 1 or "all" in config.host or any("," in text for text in config.host):
            raise UsageError(
                f"a wheel is for one host, not for {', '.join(config.host)}",
                hint="`python -m aot wheel .` makes the wheels of all hosts",
            )
        glibc = self.hosts[0].glibc
        host = Host.parse(config.host[0], glibc) if config.host else Host.native(glibc)
        if host not in self.hosts:
            known = ", ".join(f'"{known.cpu}"' for known in self.hosts)
            raise UsageError(
                f"the project is not for {host}: `[tool.cute-aot] hosts` has {known}",
                hint="add it there, or pass another host with `--config-settings=host=...`",
            )
        return host

    def signed(self, private: str | None) -> Project:
        """The project with a signed bundle, if that is a private key; it pins the public keys of the table."""
        signing = choose_signing(private, [self.root / name for name in self.table.key])
        return dataclasses.replace(self.project, signing=signing)

    def settings(self, hosts: Sequence[Host], config: ConfigSettings, out: Path) -> Settings:
        """The settings of a build into the folder ``out``."""
        table = self.table
        inside = self.root / table.kernels
        places = find_places(None, os.environ)
        wheelhouse = config.wheelhouse[-1] if config.wheelhouse else table.wheelhouse
        return Settings(
            kernels=str(inside) if inside.exists() else table.kernels,
            archs=config.arch or table.archs,
            out=out,
            name=self.project.identity.package,
            select=table.select,
            families=table.families,
            tilings=table.tilings,
            hosts=tuple(hosts),
            jobs=_jobs(config.jobs),
            timeout=table.timeout,
            options=Options(table.cuda),
            shared_cudart=table.cudart == "shared",
            cache=places.tools,
            artifacts=places.artifacts,
            remote=places.remote,
            wheelhouse=self.root / wheelhouse if wheelhouse else None,
        )


def _jobs(texts: tuple[str, ...]) -> int:
    if not texts:
        return available_cores()
    if not texts[-1].isdecimal() or int(texts[-1]) < 1:
        raise UsageError(f"--config-settings: `jobs` is {texts[-1]!r}", hint="pass a positive number")
    return int(texts[-1])


def is_project(root: Path) -> bool:
    """Whether a folder's ``pyproject.toml`` means to describe a kernel project. One that cannot be read may, if it names us."""
    try:
        text = read_given(root / "pyproject.toml")
    except (OSError, UnicodeDecodeError):
        return True
    try:
        tool = tomllib.loads(text).get("tool")
    except (RecursionError, tomllib.TOMLDecodeError):
        return "cute-aot" in text
    return isinstance(tool, dict) and not tool.keys().isdisjoint(("cute-aot", *_MISSPELLED))


def read_project(root: Path) -> KernelProject:
    """Read a project's ``pyproject.toml``; :class:`UsageError` says what is wrong in it."""
    data = _read(root / "pyproject.toml")
    table = _parse_table(Table, _own_table(data, root / "pyproject.toml"), "[tool.cute-aot]")
    _check(table)
    metadata = _metadata(_with_version(data, table, root), root)
    assert metadata.version is not None  # `_metadata` refuses a project without one
    with in_table("package", 'write a Python identifier, such as package = "my_kernels"'):
        package = table.package or metadata.name.replace("-", "_")
        identity = Identity.parse(package, str(metadata.version), metadata.name)
    licenses = {path.as_posix(): (root / path).read_bytes() for path in metadata.license_files or ()}
    with in_table("glibc"):
        glibc = Host.native(parse_glibc(table.glibc)).glibc  # hosts know which versions there are
    with in_table("hosts"):
        hosts = parse_hosts(table.hosts, glibc)
    return KernelProject(root, table, hosts, Project(identity, metadata, licenses))


@contextmanager
def in_table(key: str, hint: str | None = None) -> Iterator[None]:
    """What is wrong is the value of that key; ``hint`` replaces one that is about the command line."""
    try:
        yield
    except (ArchError, UsageError) as error:
        message = f"pyproject.toml, `[tool.cute-aot] {key}`: {error.message}"
        raise UsageError(message, hint=hint or error.hint) from None


def _read(path: Path) -> dict[str, Any]:
    try:
        data: dict[str, Any] = tomllib.loads(read_given(path))
        return data
    except FileNotFoundError:
        raise UsageError(f"`{path}` does not exist", hint="run this in the folder of a kernel project") from None
    except OSError as error:
        raise UsageError(
            f"cannot read `{path}`: {error.strerror}", hint="it must be a TOML file that you may read"
        ) from None
    except (UnicodeDecodeError, RecursionError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"`{path}` cannot be read: {error}", hint="write it as TOML, in UTF-8") from None


def _own_table(data: Mapping[str, Any], path: Path) -> Any:
    tool = data.get("tool", {})
    tool = tool if isinstance(tool, dict) else {}
    if "cute-aot" not in tool:
        for name in _MISSPELLED:
            if name in tool:
                raise UsageError(f"`{path}` has a [tool.{name}] table", hint="rename it to [tool.cute-aot]")
        raise UsageError(f"`{path}` has no [tool.cute-aot] table", hint='add one with archs = ["sm90"]')
    return tool["cute-aot"]


def _with_version(data: dict[str, Any], table: Table, root: Path) -> dict[str, Any]:
    """The same data with the version that ``version-file`` holds, as if ``[project]`` had it."""
    project = data.get("project")
    if table.version_file is None or not isinstance(project, dict):
        return data
    dynamic = project.get("dynamic")
    if not isinstance(dynamic, list) or "version" not in dynamic:
        raise UsageError(
            "[tool.cute-aot]: `version-file` is set, but the version in [project] is not dynamic",
            hint='write dynamic = ["version"] in [project], or remove `version-file`',
        )
    try:
        version = read_given(root / table.version_file).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"[tool.cute-aot]: `version-file` cannot be read: {error}") from None
    others = [name for name in dynamic if name != "version"]
    return {**data, "project": {**project, "version": version, "dynamic": others}}


def _metadata(data: Mapping[str, Any], root: Path) -> StandardMetadata:
    try:
        metadata = StandardMetadata.from_pyproject(data, root)
    except (ConfigurationError, OSError) as error:
        raise UsageError(f"pyproject.toml: {error}") from None
    if metadata.dynamic or metadata.version is None:
        fields = ", ".join(metadata.dynamic)
        raise UsageError(
            f"pyproject.toml: nothing fills in {fields}",
            hint="write the values in [project]; for the version, `version-file` in [tool.cute-aot] also works",
        )
    if metadata.license is not None and not isinstance(metadata.license, str):
        raise UsageError(
            'pyproject.toml: "project.license" is a table',
            hint='write license = "Apache-2.0", and list the file in license-files',
        )
    return metadata


def _check(table: Table) -> None:
    if not table.archs:
        raise UsageError("[tool.cute-aot]: `archs` is empty", hint=_ARCHS)
    with in_table("archs"):
        parse_archs(table.archs, ())
    if table.timeout is not None and table.timeout <= 0:
        raise UsageError(f"[tool.cute-aot]: `timeout` is {table.timeout}, must be positive")
    if table.cuda not in (None, 12, 13):
        raise UsageError(f"[tool.cute-aot]: `cuda` is {table.cuda}", hint="known: 12, 13")


# Turning a table into a dataclass, by its type hints.


def _parse_table(kind: type[_T], data: Any, where: str) -> _T:
    if not isinstance(data, dict):
        raise UsageError(f"{where} is {data!r}, must be a table")
    fields = {field.name.replace("_", "-"): field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key in data:
        if key not in fields:
            raise UsageError(f"{where}: unknown key `{key}`", hint=_suggestion(key, list(fields)))
    hints = typing.get_type_hints(kind)
    values = {}
    for key, field in fields.items():
        if key in data:
            values[field.name] = _value(hints[field.name], data[key], f"{where}: `{key}`")
        elif field.default is dataclasses.MISSING:
            raise UsageError(f"{where}: `{key}` is missing", hint=_ARCHS)
    return kind(**values)


def _suggestion(key: str, known: list[str]) -> str:
    close = get_close_matches(key.replace("_", "-"), known, n=1, cutoff=0.5)
    start = f"did you mean `{close[0]}`? known: " if close else "known: "
    return start + ", ".join(known)


def _value(kind: Any, value: Any, where: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        (kind,) = (item for item in arguments if item is not type(None))
        return _value(kind, value, where)
    if origin is Literal:
        if value not in arguments:
            raise UsageError(f"{where} is {value!r}", hint=f"known: {', '.join(arguments)}")
        return value
    if origin is tuple:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise UsageError(f"{where} is {value!r}, must be a list of strings")
        return tuple(value)
    accepted = (int, float) if kind is float else kind
    if not isinstance(value, accepted) or isinstance(value, bool):
        names = {str: "a string", int: "a whole number", float: "a number"}
        raise UsageError(f"{where} is {value!r}, must be {names[kind]}")
    return value
