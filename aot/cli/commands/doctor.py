"""Compare this machine with what a bundle needs, or with what building needs, and say what to fix first."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from ...bundle.manifest import Manifest
from ...errors import NO_TEMPORARY, ToolchainError
from ...gpu.diagnosis import DeviceReport, Problem, bundle_problems, device_report, gpus_for, machine_problems
from ...gpu.machine import Machine, read_machine
from ...records import encode
from ...versions import install_extras, installed_version
from ..report import print_json, print_message, table
from ..schema import Key

__all__ = ["KEYS", "configure_parser", "execute"]


class CacheFolder(TypedDict):
    """A folder that builds use."""

    what: str  # what it holds
    path: str  # where it is
    writable: bool  # whether this user may write there


class AbilityData(TypedDict):
    """Something one may want to do on this machine."""

    what: str  # what it is
    able: bool  # whether it can be done
    problem: str | None  # what is in the way
    hint: str | None  # what to do about it


class GpuData(TypedDict):
    """What of a bundle would run on a GPU."""

    index: int  # the number of the GPU
    kernels: Mapping[str, str]  # the architecture whose code would run, by kernel
    missing: Mapping[str, str]  # why none would, by kernel


class BundleData(TypedDict):
    """A bundle, and what of it would run here."""

    name: str  # of the bundle
    hosts: tuple[str, ...]  # CPUs and C libraries that it has code for
    archs: tuple[str, ...]  # architectures that it has code for
    runs_on: tuple[str, ...]  # GPUs that run all of it, as far as cute-aot knows them by name
    gpus: tuple[GpuData, ...]  # what would run on the GPUs of this machine


KEYS = (
    Key("machine", Machine, "this machine, its driver and its GPUs"),
    Key("packages", Mapping[str, str | None], "versions by name; null if a package is not installed"),
    Key("caches", tuple[CacheFolder, ...], "folders that builds use"),
    Key("can", tuple[AbilityData, ...], "what this machine can do"),
    Key("bundle", BundleData | None, "what would run of the bundle; null without BUNDLE"),
    Key("problems", tuple[Problem, ...], "what keeps the bundle from running, the first to fix first"),
)
_RUNNING = ("cute-aot", "apache-tvm-ffi", "torch", "jax")
_BUILDING = (
    "nvidia-cutlass-dsl",
    "ziglang",
    "pyelftools",
    "capstone",
    "platformdirs",
    "packaging",
    "pyproject-metadata",
)


@dataclass(frozen=True)
class _Ability:
    """Something one may want to do on this machine, and what is in the way."""

    what: str
    problem: Problem | None

    def data(self) -> AbilityData:
        problem = self.problem
        return {
            "what": self.what,
            "able": problem is None,
            "problem": problem.what if problem else None,
            "hint": problem.hint if problem else None,
        }


def configure_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "bundle",
        type=Path,
        nargs="?",
        metavar="BUNDLE",
        help="directory that `build` printed; without it, the machine alone",
    )


def execute(arguments: argparse.Namespace) -> int:
    machine = read_machine()
    manifest = Manifest.read(arguments.bundle) if arguments.bundle is not None else None
    packages = {name: installed_version(name) for name in (*_RUNNING, *_BUILDING)}
    abilities = list(_abilities(machine))
    if manifest is None:
        reports, problems = [], [ability.problem for ability in abilities[:1] if ability.problem is not None]
    else:
        reports = [device_report(manifest, device, machine.driver.cuda) for device in machine.driver.devices]
        problems = list(bundle_problems(manifest, machine))
    caches = list(_caches())
    if arguments.json:
        data = {"machine": encode(machine), "packages": packages, "caches": caches}
        about = None if manifest is None else _bundle_data(manifest, reports)
        can = [ability.data() for ability in abilities]
        print_json({**data, "can": can, "bundle": about, "problems": encode(tuple(problems))})
    else:
        print(table(("", ""), [*_machine_rows(machine), *_package_rows(packages), *_cache_rows(caches)]).strip())
        print()
        _print_verdicts(arguments, abilities, manifest, reports, problems)
    return 1 if problems else 0


def _abilities(machine: Machine) -> Iterator[_Ability]:
    found = list(machine_problems(machine))
    without_driver = [problem for problem in found if problem.what != machine.driver.problem]
    yield _Ability("load bundles", next(iter(without_driver), None))
    yield _Ability("run kernels", next(iter(found), None))
    yield _Ability("build bundles", _build_problem())


def _build_problem() -> Problem | None:
    from ...compile.dsl import choose, version

    try:
        choose(version())
    except ToolchainError as error:
        return Problem(error.message, error.hint or install_extras("build"))
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        return Problem("there is no folder for temporary files", NO_TEMPORARY)
    missing = [name for name in _BUILDING if installed_version(name) is None]
    return Problem(f"{', '.join(missing)} not installed", install_extras("build")) if missing else None


def _caches() -> Iterator[CacheFolder]:
    try:
        from ...cache.places import find_places

        places = find_places(None, os.environ)
    except (ModuleNotFoundError, FileNotFoundError):  # without platformdirs or temporary files nothing is built here
        return
    for what, path in (("compiled code", places.artifacts), ("zig and NVIDIA's libraries", places.tools)):
        if path is not None:
            yield {"what": what, "path": str(path), "writable": _is_writable(path)}


def _is_writable(path: Path) -> bool:
    existing = next(folder for folder in (path, *path.absolute().parents) if os.path.exists(folder))
    return os.access(existing, os.W_OK)


def _machine_rows(machine: Machine) -> Iterator[tuple[str, str]]:
    glibc = "no glibc" if machine.glibc is None else "glibc {}.{}".format(*machine.glibc)
    yield "machine", f"{machine.system} {machine.cpu}, {glibc}, Python {machine.python}"
    driver = machine.driver
    version = f"{driver.version or 'version not known'}, supports CUDA {driver.cuda_text}"
    yield "driver", f"{version}{f'; {driver.problem}' if driver.problem else ''}" if driver.cuda else driver.problem
    for device in driver.devices:
        yield f"GPU {device.index}", "{}, compute capability {}.{}".format(device.name, *device.capability)


def _package_rows(packages: dict[str, str | None]) -> Iterator[tuple[str, str]]:
    for name, version in packages.items():
        if version is not None or name in ("cute-aot", "apache-tvm-ffi", "nvidia-cutlass-dsl"):
            yield name, version or "not installed"


def _cache_rows(caches: list[CacheFolder]) -> Iterator[tuple[str, str]]:
    for cache in caches:
        yield "cache", f"{cache['path']}: {cache['what']}{'' if cache['writable'] else ', may only be read'}"


def _print_verdicts(
    arguments: argparse.Namespace,
    abilities: list[_Ability],
    manifest: Manifest | None,
    reports: list[DeviceReport],
    problems: list[Problem],
) -> None:
    for ability in abilities:
        print(f"{ability.what}: {'yes' if ability.problem is None else f'no: {ability.problem.what}'}")
        if ability.problem is not None and manifest is None:
            print(f"    {ability.problem.hint}")
    if manifest is not None:
        hosts, archs = ", ".join(manifest.hosts), ", ".join(map(str, manifest.archs))
        print(f"\n{arguments.bundle}: bundle {manifest.name} for {hosts}; {archs}")
        print(f"all of it runs on: {', '.join(gpus_for(manifest)) or 'no GPU that cute-aot knows by name'}")
    for report in reports:
        print(f"GPU {report.device.index}: {report.text}")
    for problem in problems:
        print(f"problem: {problem.what}")
    if problems:
        print_message(f"hint: for the first problem: {problems[0].hint}")


def _bundle_data(manifest: Manifest, reports: list[DeviceReport]) -> BundleData:
    devices: list[GpuData] = [
        {"index": report.device.index, "kernels": dict(report.kernels), "missing": dict(report.missing)}
        for report in reports
    ]
    return {
        "name": manifest.name,
        "hosts": tuple(manifest.hosts),
        "archs": tuple(map(str, manifest.archs)),
        "runs_on": tuple(gpus_for(manifest)),
        "gpus": tuple(devices),
    }
