"""Occupancy follows from registers, threads and shared memory; the numbers are those of NVIDIA's calculator."""

from __future__ import annotations

import pytest
from aot_runtime.arch import Arch

from aot.bundle.details import LaunchDetails
from aot.bundle.occupancy import occupancy
from aot.targets import accepted_archs


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
