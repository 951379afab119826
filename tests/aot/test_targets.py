"""The limits of architectures, which a build machine cannot ask a device for."""

from __future__ import annotations

import pytest
from aot_runtime.arch import Arch

from aot.targets import Target, accepted_archs, builds_for, cuda_of_driver, lowest_driver, serves

ALL = accepted_archs()


@pytest.mark.parametrize(
    ("arch", "shared_memory", "cluster"),
    [
        ("sm_80", 163, 1), ("sm_86", 99, 1), ("sm_87", 163, 1), ("sm_89", 99, 1), ("sm_90a", 227, 16),
        ("sm_100f", 227, 16), ("sm_103a", 227, 16), ("sm_107f", 327, 16), ("sm_120f", 99, 8), ("sm_121", 99, 8),
    ],
)  # fmt: skip
def test_limits_are_nvidias(arch: str, shared_memory: int, cluster: int) -> None:
    target = Target.of(Arch.parse(arch))
    assert (target.shared_memory, target.max_cluster) == (shared_memory * 1024, cluster)
    assert (target.max_threads, target.max_registers) == (1024, 65536)


@pytest.mark.parametrize(
    ("written_for", "arch", "builds"),
    [
        ("sm_80 sm_90a", "sm_80", True),
        ("sm_80 sm_90a", "sm_90a", True),
        ("sm_80 sm_90a", "sm_90", True),  # sm_80's code, on a device that is there
        ("sm_80", "sm_120", True),
        ("sm_80", "sm_90a", False),  # the author has something else in mind for it, or nothing
        ("sm_80", "sm_100f", False),
        ("sm_90", "sm_80", False),
        ("sm_90a", "sm_90", False),  # may use what the portable subset lacks
        ("sm_100f", "sm_100", False),
    ],
)
def test_portable_code_is_built_for_later_portable_architectures(written_for: str, arch: str, builds: bool) -> None:
    assert builds_for(map(Arch.parse, written_for.split()), Arch.parse(arch)) == builds


@pytest.mark.parametrize(
    ("written_for", "arch", "expected"),
    [
        ("sm_90a", "sm_90a", True),
        ("sm_80", "sm_100f", True),
        ("sm_90", "sm_90a", True),
        ("sm_100f", "sm_103a", True),
        ("sm_90", "sm_80", False),
        ("sm_90a", "sm_100f", False),  # uses what only 9.0 has
        ("sm_100a", "sm_100f", False),
        ("sm_100f", "sm_100", False),  # may use what the portable subset lacks
        ("sm_103f", "sm_100f", False),
    ],
)
def test_code_serves_its_own_architecture_and_those_that_have_all_it_uses(
    written_for: str, arch: str, expected: bool
) -> None:
    assert serves(Arch.parse(written_for), Arch.parse(arch)) == expected


def test_code_has_the_clusters_that_it_was_written_for() -> None:
    assert Target.of(Arch.parse("sm_90a"), Arch.parse("sm_80")).max_cluster == 1
    assert Target.of(Arch.parse("sm_100f"), Arch.parse("sm_90")).max_cluster == 16


def test_every_accepted_architecture_has_limits_and_a_driver_for_cuda_13() -> None:
    for arch in ALL:
        assert Target.of(arch).shared_memory > 48 * 1024
        assert lowest_driver(arch, 13)


def test_a_newer_architecture_never_asks_for_an_older_driver() -> None:
    assert lowest_driver(Arch.parse("sm_80"), 12) == "525.60.13"
    assert lowest_driver(Arch.parse("sm_100f"), 12) == "570.26"
    assert lowest_driver(Arch.parse("sm_107f"), 12) is None
    assert lowest_driver(Arch.parse("sm_110"), 12) is None


def test_the_cuda_version_of_every_lowest_driver_is_known() -> None:
    for arch in accepted_archs():
        of_rubin = arch.capability == (10, 7)
        assert cuda_of_driver(lowest_driver(arch, 13) or "") == (13040 if of_rubin else 13000)
    assert cuda_of_driver("570.26") == 12080
