"""Occupancy follows from registers, threads and shared memory, by the rules of NVIDIA's ``cuda_occupancy.h``."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import standin
from aot_runtime.arch import Arch

from aot.bundle.comparing.occupancy import occupancy
from aot.bundle.details import LaunchDetails
from aot.targets import accepted_archs, arch_facts


def launch(threads: int, registers: int, memory: int | None = 0) -> LaunchDetails:
    return LaunchDetails("k", registers, 0, memory, (threads, 1, 1), None, 0)


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "memory", "share"),
    [
        ("sm_80", 128, 32, 0, 1.0),  # threads are the limit
        ("sm_80", 32, 8, 0, 0.5),  # 32 blocks of a warp each
        ("sm_86", 32, 8, 0, 1 / 3),  # 16 blocks of a warp each, of 48 warps
        ("sm_90a", 256, 255, 0, 0.125),  # registers: one block
        ("sm_90a", 256, 128, 0, 0.25),
        ("sm_90a", 128, 32, 100 * 1024, 0.125),  # shared memory: two blocks
        ("sm_86", 128, 32, 99 * 1024, 128 / 1536),
        ("sm_100f", 1, 1, 0, 0.5),  # a warp is the least
    ],
)
def test_the_scarcest_resource_counts(arch: str, threads: int, registers: int, memory: int, share: float) -> None:
    assert occupancy(Arch.parse(arch), launch(threads, registers, memory)) == pytest.approx(share)


def test_what_is_known_at_run_time_alone_has_no_number() -> None:
    arch = Arch.parse("sm_90a")
    assert occupancy(arch, launch(128, 32, None)) is None
    assert occupancy(arch, LaunchDetails("k", 32, 0, 0, None, None, 0)) is None


def test_every_architecture_has_the_numbers() -> None:
    for arch in accepted_archs():
        share = occupancy(arch, launch(128, 32))
        assert share is not None and 0 < share <= 1


@pytest.fixture(scope="module")
def nvidia(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The functions of NVIDIA's header, which comes with the CUDA runtime that bundles link."""
    try:
        files = importlib.metadata.files("nvidia-cuda-runtime-cu12") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("nvidia-cuda-runtime-cu12 is not installed")
    header = next(Path(str(file.locate())) for file in files if file.name == "cuda_occupancy.h")
    folder = tmp_path_factory.mktemp("occupancy")
    source, library = Path(__file__).with_name("occupancy_of_nvidia.c"), folder / "occupancy.so"
    command = [*standin.compiler(), "-shared", "-fPIC", "-w", f"-I{header.parent}", str(source), "-o", str(library)]
    subprocess.run(command, check=True, env={**os.environ, **standin.compiler_environment(folder)})
    return ctypes.CDLL(str(library))


CAPABILITIES = [
    text for text in arch_facts()["capabilities"] if text not in ("10.7", "11.0")
]  # the header of CUDA 12 lacks these


@pytest.mark.parametrize("capability", [*CAPABILITIES, "11.0"])
def test_the_limits_are_those_of_nvidia(nvidia: Any, capability: str) -> None:
    # CUDA 12 counted Thor as 10.1.
    major, minor = map(int, ("10.1" if capability == "11.0" else capability).split("."))
    facts = arch_facts()["capabilities"][capability]
    assert facts["sm"]["blocks"] == nvidia.most_blocks_of_nvidia(major, minor)
    assert nvidia.is_most_memory_of_nvidia(major, minor, facts["sm"]["shared_memory"]) == 1
    assert facts["shared_memory"] == facts["sm"]["shared_memory"] - 1024  # the system takes the rest


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_occupancy_is_that_of_nvidia(nvidia: Any, capability: str) -> None:
    major, minor = map(int, capability.split("."))
    facts, arch = arch_facts()["capabilities"][capability], Arch(major, minor)
    sm = facts["sm"]
    limits = (sm["threads"], sm["shared_memory"], facts["shared_memory"])
    for threads in (1, 32, 96, 128, 160, 224, 256, 384, 416, 512, 1024):
        for registers in (8, 24, 33, 40, 72, 80, 96, 128, 168, 255):
            for memory in (0, 1, 127, 4096, 20_000, 33_333, 50_000, 99 * 1024, facts["shared_memory"]):
                if memory > facts["shared_memory"]:
                    continue
                blocks = nvidia.blocks_of_nvidia(major, minor, *limits, threads, registers, memory)
                warps = -(-threads // 32)
                share = occupancy(arch, launch(threads, registers, memory))
                seen = (threads, registers, memory)
                assert share == pytest.approx(blocks * warps * 32 / sm["threads"]), seen
