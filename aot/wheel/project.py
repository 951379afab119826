"""Wheels of a kernel project. Its kernels are first built into a temporary bundle."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ..bundle.publish import publish, staging
from ..errors import BuildError
from ..files import scratch_directory
from ..hosts import Host
from ..pipeline.build import build
from ..pipeline.events import Progress
from ..pipeline.settings import BuildResult
from .archive import Content, Wheel, wheel_file, write_files
from .identity import platform_tag
from .make import package_files, project_metadata, wheels
from .pyproject import ConfigSettings, KernelProject

__all__ = ["editable_wheel", "metadata_files", "project_wheels"]

_EDITABLE = Path("build") / "aot"  # inside the project


def project_wheels(
    project: KernelProject,
    hosts: Sequence[Host],
    config: ConfigSettings,
    progress: Progress,
    *,
    split_arch: bool = False,
) -> list[Wheel]:
    """Build a project for the given hosts in one build, and make its wheels."""
    signed = project.signed(config.sign[-1] if config.sign else None)  # a wrong key is noticed before the long part
    with scratch_directory(Path(tempfile.gettempdir()), prefix="aot-wheel-") as scratch:
        result = _build(project, hosts, config, scratch / "bundle", progress)
        made = wheels(result.path, signed, hosts=hosts, split_arch=split_arch)
        return [_in_memory(wheel) for wheel in made]


def _build(
    project: KernelProject, hosts: Sequence[Host], config: ConfigSettings, out: Path, progress: Progress
) -> BuildResult:
    with progress:
        result = build(project.settings(hosts, config, out), progress)
    if result.failures:
        raise BuildError("some kernels failed", failures=result.failures)
    return result


def _in_memory(wheel: Wheel) -> Wheel:
    # The temporary bundle is deleted soon, and wheels are small.
    files = {name: item if isinstance(item, bytes) else item.read_bytes() for name, item in wheel.files.items()}
    return dataclasses.replace(wheel, files=files)


def metadata_files(project: KernelProject, host: Host) -> dict[str, bytes]:
    """The ``.dist-info`` of a wheel that is not built yet."""
    identity = project.project.identity
    dist_info = f"{identity.file_name}-{identity.version}.dist-info"
    tag = f"py3-none-manylinux_{host.glibc[0]}_{host.glibc[1]}_{host.cpu}"
    return {
        f"{dist_info}/METADATA": bytes(project_metadata(project.project).as_rfc822()),
        f"{dist_info}/WHEEL": wheel_file(tag),
    }


def editable_wheel(project: KernelProject, host: Host, config: ConfigSettings, progress: Progress) -> Wheel:
    """Build the package into the project, and make a wheel that points there."""
    identity = project.project.identity
    folder = (project.root / _EDITABLE).resolve()
    with scratch_directory(Path(tempfile.gettempdir()), prefix="aot-editable-") as scratch:
        result = _build(project, (host,), config, scratch / "bundle", progress)
        _place(package_files(result.path, result.manifest, host.name, identity), folder / identity.package)
    dist_info = f"{identity.file_name}-{identity.version}.dist-info"
    files: dict[str, Content] = {
        f"__editable__.{identity.file_name}.pth": f"{folder}\n".encode(),
        f"{dist_info}/METADATA": bytes(project_metadata(project.project).as_rfc822()),
    }
    tag = platform_tag(host.name, result.manifest.hosts[host.name])
    return Wheel(identity.file_name, str(identity.version), tag, files)


def _place(files: dict[str, Content], package: Path) -> None:
    """Replace the package with the new one in one step: a process may be using the old one."""
    with staging(package) as staged:
        write_files(files, staged)
        inner = staged / package.name
        for path in inner.iterdir():
            shutil.move(path, staged / path.name)
        inner.rmdir()
        publish(staged, package)
