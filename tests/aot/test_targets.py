"""Architectures on the command line, and the limits that a build machine cannot ask a device for."""

from __future__ import annotations

import pytest
from aot_runtime.arch import Arch, ArchError

from aot.targets import Target, accepted_archs, builds_for, cuda_of_driver, lowest_driver, parse_archs

ALL = accepted_archs()


def parsed(*texts: str, available: tuple[Arch, ...] = ALL) -> list[str]:
    return [str(arch) for arch in parse_archs(texts, available)]


@pytest.mark.parametrize(
    ("spelling", "exact"),
    [
        ("sm80", "sm_80"), ("sm86", "sm_86"), ("sm87", "sm_87"), ("sm89", "sm_89"), ("sm90", "sm_90a"),
        ("sm100", "sm_100f"), ("sm103", "sm_103f"), ("sm110", "sm_110f"), ("sm120", "sm_120f"), ("sm121", "sm_121f"),
    ],
)  # fmt: skip
def test_a_spelling_without_underscore_stands_for_the_most_that_chip_can_do(spelling: str, exact: str) -> None:
    assert parsed(spelling) == [exact]


def test_exact_names_stand_for_themselves() -> None:
    assert [parsed(str(arch)) for arch in ALL] == [[str(arch)] for arch in ALL]


def test_lists_keep_their_order_and_name_each_architecture_once() -> None:
    assert parsed("sm90, sm_80", "sm_90a,sm100") == ["sm_90a", "sm_80", "sm_100f"]


def test_all_is_what_the_kernels_are_written_for_sorted() -> None:
    available = (Arch.parse("sm_100f"), Arch.parse("sm_80"), Arch.parse("sm_90a"))
    assert parsed("all", available=available) == ["sm_80", "sm_90a", "sm_100f"]
    assert parsed("sm90,all", available=available) == ["sm_90a", "sm_80", "sm_100f"]


@pytest.mark.parametrize(
    ("text", "meant"),
    [("sm_90b", "sm_90"), ("sm91", "sm90"), ("SM90", "sm90"), ("sm-90a", "sm_90a"), ("sm_100g", "sm_100")],
)
def test_an_unknown_architecture_is_answered_with_the_nearest_and_the_rest(text: str, meant: str) -> None:
    with pytest.raises(ArchError, match=f"unknown architecture: '{text}'") as caught:
        parsed(text)
    hint = caught.value.hint or ""
    assert hint.startswith(f"did you mean `{meant}")
    assert all(str(arch) in hint for arch in ALL)


@pytest.mark.parametrize("text", ["", "hopper", "sm_75", "sm90,", "sm90,,sm80"])
def test_what_is_like_no_architecture_is_answered_with_all_of_them(text: str) -> None:
    with pytest.raises(ArchError, match="unknown architecture: '") as caught:
        parsed(text)
    assert "sm_80, sm_86" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("arch", "shared_memory", "cluster"),
    [
        ("sm_80", 163, 1), ("sm_86", 99, 1), ("sm_87", 163, 1), ("sm_89", 99, 1), ("sm_90a", 227, 16),
        ("sm_100f", 227, 16), ("sm_103a", 227, 16), ("sm_120f", 99, 8), ("sm_121", 99, 8),
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


def test_every_accepted_architecture_has_limits_and_a_driver_for_cuda_13() -> None:
    for arch in ALL:
        assert Target.of(arch).shared_memory > 48 * 1024
        assert lowest_driver(arch, 13)


def test_a_newer_architecture_never_asks_for_an_older_driver() -> None:
    assert lowest_driver(Arch.parse("sm_80"), 12) == "525.60.13"
    assert lowest_driver(Arch.parse("sm_100f"), 12) == "570.26"
    assert lowest_driver(Arch.parse("sm_110"), 12) is None


def test_the_cuda_version_of_every_lowest_driver_is_known() -> None:
    for arch in accepted_archs():
        assert cuda_of_driver(lowest_driver(arch, 13) or "") == 13000
    assert cuda_of_driver("570.26") == 12080
