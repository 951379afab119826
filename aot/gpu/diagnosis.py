"""What a bundle needs against what a machine has: which kernels would run, and what to fix first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from aot_runtime.arch import Arch
from aot_runtime.gpus import GPUS

from ..bundle.manifest import Manifest
from ..errors import counted
from ..hosts import parse_glibc
from ..targets import cuda_of_driver, ranked_archs
from .machine import Device, Machine

__all__ = ["DeviceReport", "Problem", "bundle_problems", "device_report", "gpus_for", "machine_problems"]


@dataclass(frozen=True)
class Problem:
    """Something that keeps a bundle from running here, and the next step."""

    what: str  # the problem
    hint: str  # what to do


@dataclass(frozen=True)
class DeviceReport:
    """What of a bundle would run on a device."""

    device: Device
    kernels: Mapping[str, str]  # by kernel: the architecture whose code would run
    missing: Mapping[str, str]  # by kernel: why none would

    @property
    def text(self) -> str:
        by_arch: dict[str, int] = {}
        for arch in self.kernels.values():
            by_arch[arch] = by_arch.get(arch, 0) + 1
        runs = ", ".join(f"{number} as {arch}" for arch, number in by_arch.items())
        total = len(self.kernels) + len(self.missing)
        return f"{len(self.kernels)} of {counted(total, 'kernel')} would run" + (f": {runs}" if runs else "")


def device_report(manifest: Manifest, device: Device, cuda: int) -> DeviceReport:
    """What would run on a device whose driver supports that CUDA version."""
    kernels: dict[str, str] = {}
    missing: dict[str, str] = {}
    for name, record in manifest.kernels.items():
        running = ranked_archs(record.archs, device.capability)
        able = [arch for arch in running if not _driver_is_too_old(manifest, arch, cuda)]
        if able:
            kernels[name] = str(able[0])
        elif running:
            missing[name] = f"{running[0]} needs driver {manifest.requires['driver'][str(running[0])]} or newer"
        else:
            missing[name] = f"it was built for {', '.join(map(str, record.archs))}"
    return DeviceReport(device, kernels, missing)


def _driver_is_too_old(manifest: Manifest, arch: Arch, cuda: int) -> bool:
    lowest = manifest.requires.get("driver", {}).get(str(arch))
    return lowest is not None and cuda < cuda_of_driver(lowest)


def gpus_for(manifest: Manifest) -> list[str]:
    """The GPUs we know by name that would run every kernel of a bundle, with a driver that is new enough."""
    records = manifest.kernels.values()
    return [
        name for name, capability in GPUS.items() if all(ranked_archs(record.archs, capability) for record in records)
    ]


def machine_problems(machine: Machine) -> Iterator[Problem]:
    """What keeps every bundle from running here, most basic first."""
    if machine.glibc is None:
        yield Problem("this machine's C library is not glibc", "use a distribution with glibc, not one with musl")
    if machine.tvm_ffi is None:
        yield Problem("apache-tvm-ffi is not installed", "`pip install apache-tvm-ffi`")
    driver = machine.driver
    if driver.cuda == 0:
        yield Problem(driver.problem, "install NVIDIA's driver; start a container with `--gpus all`")
    elif driver.problem:
        yield Problem(driver.problem, "run `nvidia-smi`; look at CUDA_VISIBLE_DEVICES")


def bundle_problems(manifest: Manifest, machine: Machine) -> Iterator[Problem]:
    """What keeps a bundle from running here, most basic first."""
    host = manifest.hosts.get(f"{machine.cpu}-linux-gnu")
    if host is None:
        yield Problem(
            f"the bundle has no code for {machine.cpu}; it has {', '.join(manifest.hosts)}",
            f"build it for this CPU too: `python -m aot build --add --host {machine.cpu} ...`",
        )
    elif machine.glibc is not None and machine.glibc < parse_glibc(host.glibc):
        here = "{}.{}".format(*machine.glibc)
        yield Problem(f"the bundle needs glibc {host.glibc}, here is {here}", f"rebuild it with `--glibc {here}`")
    lowest = manifest.requires.get("tvm_ffi", "0")
    if machine.tvm_ffi is not None and _release(machine.tvm_ffi) < _release(lowest):
        yield Problem(
            f"the bundle needs apache-tvm-ffi {lowest}, here is {machine.tvm_ffi}",
            f"`pip install 'apache-tvm-ffi>={lowest}'`",
        )
    yield from machine_problems(machine)
    for device in machine.driver.devices:
        yield from _device_problems(manifest, device_report(manifest, device, machine.driver.cuda))


def _device_problems(manifest: Manifest, report: DeviceReport) -> Iterator[Problem]:
    device = report.device
    capability = "{}.{}".format(*device.capability)
    by_reason: dict[str, list[str]] = {}
    for kernel, reason in report.missing.items():
        by_reason.setdefault(reason, []).append(kernel)
    for reason, kernels in by_reason.items():
        hint = f"build for this GPU too: `python -m aot build --add --arch {capability} ...`"
        if "needs driver" in reason:
            hint = "update NVIDIA's driver; `nvidia-smi` shows its version"
        elif device.capability < (8, 0):
            hint = "use a GPU of compute capability 8.0 or newer"
        what = f"{', '.join(kernels)} would not run on GPU {device.index} ({device.name}, {capability}): {reason}"
        yield Problem(what, hint)


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0])[:3])
