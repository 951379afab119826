"""From a bundle to its wheels: one per host. If split, a base wheel and one wheel per architecture for each host."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aot_runtime
from aot_runtime.description.records import FILE_NAME, FileRecord
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from pyproject_metadata import StandardMetadata

from ..bundle.layout import SBOM, note_name, part_of, stamp_name
from ..bundle.manifest import Manifest
from ..bundle.signature import SIGNATURE
from ..bundle.split import stamp_text
from ..bundle.verifying.verify import refuse_unsound
from ..errors import BuildError, UsageError
from ..hosts import Host
from ..versions import LOWEST_TVM_FFI
from .archive import Content, Wheel
from .identity import Identity, platform_tag
from .operators import operators_module, operators_stub
from .sbom import notice, sbom
from .signing import Signing
from .sources import LOWEST_PYTHON, package_module, package_stub

__all__ = ["Project", "package_files", "project_metadata", "runtime_license", "wheels"]

_LOADER = Path(aot_runtime.__file__).resolve().parent
_LICENSE_NAME = "LICENSE.cute-aot"
_NOTICE_NAME = "NOTICE"
# A Python package needs neither static archives nor intermediate files.
_LEFT_OUT = (".a",)
_LEFT_OUT_FOLDERS = ("kept",)


@dataclass(frozen=True)
class Project:
    """What a wheel states about itself: its names, and the author's metadata and licences if there are any."""

    identity: Identity
    metadata: StandardMetadata | None = None
    licenses: Mapping[str, bytes] = field(default_factory=dict)
    signing: Signing | None = None


def wheels(
    bundle: Path,
    project: Project,
    *,
    hosts: Sequence[Host] = (),
    split_arch: bool = False,
    allow_incomplete: bool = False,
) -> list[Wheel]:
    """The wheels of a bundle, for the given hosts or for all. Everything is checked before the first is made."""
    manifest = _checked(bundle, allow_incomplete)
    project.identity.check_kernels(manifest.kernels)
    make = _split if split_arch else _whole
    return [wheel for host in _hosts(bundle, manifest, hosts) for wheel in make(bundle, manifest, host, project)]


def _checked(bundle: Path, allow_incomplete: bool) -> Manifest:
    manifest = Manifest.read(bundle)
    if manifest.distributions:
        raise UsageError(f"`{bundle}` is already split by architecture", hint="pass the bundle that `build` made")
    if not manifest.complete and not allow_incomplete:
        raise BuildError(f"`{bundle}` is incomplete", hint="fix the failures, or pass `--allow-incomplete`")
    refuse_unsound(bundle, "no wheel was made of it")
    return manifest


def _hosts(bundle: Path, manifest: Manifest, wanted: Sequence[Host]) -> list[str]:
    for host in wanted:
        if host.name not in manifest.hosts:
            raise UsageError(
                f"`{bundle}` has no code for {host}; it has: {', '.join(manifest.hosts)}",
                hint=f"build it with `--host {host.cpu}`",
            )
    return [host.name for host in wanted] or list(manifest.hosts)


def _whole(bundle: Path, manifest: Manifest, host: str, project: Project) -> list[Wheel]:
    identity, own = project.identity, _of_host(manifest, host)
    files = package_files(bundle, own, host, identity, signing=project.signing)
    files.update(_dist_info(project, project_metadata(project), bundle, own, host))
    return [_wheel(project.identity.file_name, identity, own, host, files)]


def _split(bundle: Path, manifest: Manifest, host: str, project: Project) -> list[Wheel]:
    """A base that holds all but the architectures' own files, and a wheel for each of those."""
    identity, whole = project.identity, _of_host(manifest, host)
    archs = sorted(map(str, manifest.archs))
    parts = {arch: f"{_part_distribution(identity, arch)}=={identity.version}" for arch in archs}
    notes = {note_name(host, arch): f"{requirement}\n".encode() for arch, requirement in parts.items()}
    records = {name: FileRecord(hashlib.sha256(text).hexdigest(), len(text)) for name, text in notes.items()}
    base = whole.replace(files={**whole.files, **records}, distributions=parts)
    files = {
        name: content
        for name, content in package_files(bundle, base, host, identity, notes, project.signing).items()
        if part_of(name.partition("/_bundle/")[2]) is None
    }
    files.update(_dist_info(project, _base_metadata(project, parts), bundle, base, host))
    rest = [_part(bundle, base, host, project, arch) for arch in archs]
    return [_wheel(identity.file_name, identity, base, host, files), *rest]


def _part(bundle: Path, base: Manifest, host: str, project: Project, arch: str) -> Wheel:
    identity = project.identity
    distribution = _part_distribution(identity, arch)
    digest = hashlib.sha256(base.texts()[FILE_NAME]).hexdigest()
    root = f"{identity.package}/_bundle"
    files: dict[str, Content] = {f"{root}/{name}": bundle / name for name in base.files if part_of(name) == arch}
    files[f"{root}/{stamp_name(arch)}"] = stamp_text(arch, digest)
    own = dataclasses.replace(project, identity=dataclasses.replace(identity, distribution=distribution))
    metadata = _metadata(
        own.identity,
        f"The code for {arch} of {identity.distribution}",
        [Requirement(f"{identity.distribution}=={identity.version}")],
    )
    files.update(_dist_info(own, metadata, bundle, base, host))
    return _wheel(own.identity.file_name, identity, base, host, files)


def _part_distribution(identity: Identity, arch: str) -> str:
    """The distribution that holds one architecture of a split package: ``demo-sm-90a``."""
    return str(canonicalize_name(f"{identity.distribution}-{arch}"))


def package_files(
    bundle: Path,
    manifest: Manifest,
    host: str,
    identity: Identity,
    extra: Mapping[str, bytes] | None = None,
    signing: Signing | None = None,
) -> dict[str, Content]:
    """The import package: generated sources, the loader, the bundle. ``extra`` replaces files of the bundle."""
    package = identity.package
    keys = signing.trusted if signing is not None else ()
    files: dict[str, Content] = {
        f"{package}/__init__.py": package_module(identity, manifest, host, keys).encode(),
        f"{package}/__init__.pyi": package_stub(identity, manifest).encode(),
        f"{package}/torch.py": operators_module(identity).encode(),
        f"{package}/torch.pyi": operators_stub(manifest).encode(),
        f"{package}/py.typed": b"",
    }
    if signing is not None:
        signature = signing.signer.signature(manifest.texts()[FILE_NAME])
        files[f"{package}/_bundle/{SIGNATURE}"] = signature
    files.update({f"{package}/_aot_runtime/{path.relative_to(_LOADER)}": path for path in _loader_files()})
    files.update({f"{package}/_bundle/{name}": text for name, text in manifest.texts().items()})
    files.update({f"{package}/_bundle/{name}": (extra or {}).get(name, bundle / name) for name in manifest.files})
    return files


def _loader_files() -> Iterable[Path]:
    # Its modules use relative imports, so the loader works under any name. Serving other libraries is not for packages.
    rooms = (_LOADER, *(_LOADER / room for room in ("core", "description", "frameworks")))
    modules = [path for room in rooms for path in sorted(room.glob("*.py")) if path.name != "__main__.py"]
    return [*modules, _LOADER / "py.typed"]


def _of_host(manifest: Manifest, host: str) -> Manifest:
    """The manifest with the files of one host, without those that a Python package does not need."""
    others = tuple(f"lib/{name}/" for name in manifest.hosts if name != host)
    files = {
        name: record
        for name, record in manifest.files.items()
        if not name.startswith(others or "\0")
        and not name.endswith(_LEFT_OUT)
        and name.split("/")[0] not in _LEFT_OUT_FOLDERS
        and name != SBOM  # a wheel has it in `.dist-info`, where tools look for it
    }
    return manifest.replace(hosts={host: manifest.hosts[host]}, files=files)


def _wheel(name: str, identity: Identity, manifest: Manifest, host: str, files: Mapping[str, Content]) -> Wheel:
    tag = platform_tag(host, manifest.hosts[host])
    dist_info = f"{name}-{identity.version}.dist-info"
    placed = {path.replace("*.dist-info", dist_info, 1): content for path, content in files.items()}
    return Wheel(name, str(identity.version), tag, placed)


# Metadata.


def project_metadata(project: Project) -> StandardMetadata:
    """The author's metadata, or minimal metadata, with what every generated package needs."""
    identity = project.identity
    needed = [Requirement(f"apache-tvm-ffi>={LOWEST_TVM_FFI}")]
    if project.metadata is None:
        return _metadata(identity, "GPU kernels, compiled ahead of time", needed)
    own = project.metadata
    lowest = SpecifierSet(f">={LOWEST_PYTHON[0]}.{LOWEST_PYTHON[1]}")
    licenses = [Path(name) for name in project.licenses]
    return dataclasses.replace(
        own,
        dependencies=[*own.dependencies, *needed],
        requires_python=lowest if own.requires_python is None else own.requires_python & lowest,
        license_files=[*licenses, Path(_NOTICE_NAME), Path(_LICENSE_NAME)],
    )


def _base_metadata(project: Project, parts: Mapping[str, str]) -> StandardMetadata:
    metadata = project_metadata(project)
    extras = {str(canonicalize_name(arch)): [Requirement(text)] for arch, text in parts.items()}
    everything = [requirement for requirements in extras.values() for requirement in requirements]
    optional = {**metadata.optional_dependencies, **extras, "all-archs": everything}
    return dataclasses.replace(metadata, optional_dependencies=optional)


def _metadata(identity: Identity, summary: str, dependencies: list[Requirement]) -> StandardMetadata:
    return StandardMetadata(
        name=identity.distribution,
        version=identity.version,
        description=summary,
        requires_python=SpecifierSet(f">={LOWEST_PYTHON[0]}.{LOWEST_PYTHON[1]}"),
        dependencies=dependencies,
        license_files=[Path(_NOTICE_NAME), Path(_LICENSE_NAME)],
    )


def _dist_info(
    project: Project, metadata: StandardMetadata, bundle: Path, manifest: Manifest, host: str
) -> dict[str, Content]:
    """Everything under ``.dist-info`` except ``WHEEL`` and ``RECORD``. The folder gets its name with the wheel."""
    identity, record = project.identity, manifest.hosts[host]
    files: dict[str, Content] = {
        "*.dist-info/METADATA": bytes(metadata.as_rfc822()),
        f"*.dist-info/licenses/{_NOTICE_NAME}": notice(identity, manifest, record).encode(),
        f"*.dist-info/licenses/{_LICENSE_NAME}": runtime_license(),
        f"*.dist-info/sboms/{identity.file_name}.cdx.json": sbom(identity, bundle, manifest, host).encode(),
    }
    files.update({f"*.dist-info/licenses/{name}": content for name, content in project.licenses.items()})
    if metadata.entrypoints or metadata.scripts or metadata.gui_scripts:
        files["*.dist-info/entry_points.txt"] = _entry_points(metadata).encode()
    return files


def _entry_points(metadata: StandardMetadata) -> str:
    groups = {"console_scripts": metadata.scripts, "gui_scripts": metadata.gui_scripts, **metadata.entrypoints}
    return "\n".join(
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in sorted(entries.items()))
        for group, entries in groups.items()
        if entries
    )


def runtime_license() -> bytes:
    """The licence of the loader and the C runtime: beside the package, or at the root of a checkout."""
    installed = _LOADER / "LICENSE"
    return (installed if installed.is_file() else _LOADER.parents[1] / "LICENSE").read_bytes()
