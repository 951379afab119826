"""Names of architectures on the command line: exact ones, GPUs, compute capabilities; and hints for the rest."""

from __future__ import annotations

import pytest
from aot_runtime.arch import Arch, ArchError

from aot.errors import UsageError
from aot.pipeline import spellings
from aot.pipeline.settings import Settings
from aot.pipeline.spellings import Gpu, best_arch, built_archs, parse_archs, parse_wanted, targets
from aot.targets import accepted_archs

ALL = accepted_archs()


def archs(text: str) -> list[Arch]:
    return [Arch.parse(word) for word in text.split()]


def parsed(*texts: str, available: tuple[Arch, ...] = ALL) -> list[str]:
    return [str(arch) for arch in parse_archs(texts, available)]


@pytest.mark.parametrize(
    ("spelling", "exact"),
    [
        ("sm80", "sm_80"), ("sm86", "sm_86"), ("sm87", "sm_87"), ("sm89", "sm_89"), ("sm90", "sm_90a"),
        ("sm100", "sm_100f"), ("sm103", "sm_103f"), ("sm107", "sm_107f"), ("sm110", "sm_110f"), ("sm120", "sm_120f"), ("sm121", "sm_121a"),
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
    [
        ("sm_90b", "sm_90a"), ("sm91", "sm90"), ("SM90", "sm90"), ("sm-90a", "sm_90a"), ("sm_100g", "sm_100f"),
        ("90a", "sm_90a"), ("compute_90", "sm90"), ("hopper", "sm90"), ("sm9O", "sm90"), ("H10", "H100"), ("RTX4091", "RTX 4090"),
    ],
)  # fmt: skip
def test_an_unknown_architecture_is_answered_with_the_nearest_and_the_rest(text: str, meant: str) -> None:
    with pytest.raises(ArchError, match=f"unknown architecture: '{text}'") as caught:
        parsed(text)
    hint = caught.value.hint or ""
    assert hint.startswith(f"did you mean `{meant}`?")
    assert all(str(arch) in hint for arch in ALL)


@pytest.mark.parametrize("text", ["", "gemm", "sm_", "sm90,", "sm90,,sm80"])
def test_what_is_like_no_architecture_is_answered_with_all_of_them(text: str) -> None:
    with pytest.raises(ArchError, match="unknown architecture: '") as caught:
        parsed(text)
    assert "sm_80, sm_86" in (caught.value.hint or "")


@pytest.mark.parametrize("text", ["sm75", "sm_75", "turing", "volta", "compute_61"])
def test_what_is_too_old_is_not_answered_with_another_chip(text: str) -> None:
    with pytest.raises(ArchError) as caught:
        parsed(text)
    assert (caught.value.hint or "").startswith(
        "CuTe DSL cannot compile for compute capabilities below 8.0; known: sm80"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("V100", "CuTe DSL cannot compile for V100 (compute capability 7.0)"),
        ("7.5", "CuTe DSL cannot compile for compute capability 7.5"),
        ("13.0", "CuTe DSL cannot compile for compute capability 13.0"),
    ],
)
def test_devices_that_nothing_compiles_for_are_refused(text: str, said: str) -> None:
    with pytest.raises(ArchError) as caught:
        parsed(text)
    assert caught.value.message == said
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "full", "portable", "written"),
    [  # all that the chip can do; a kernel for sm_80; a kernel for sm_80, sm_90a, sm_100f and sm_120f
        ("A100", "sm_80", "sm_80", "sm_80"),
        ("NVIDIA A100-SXM4-80GB", "sm_80", "sm_80", "sm_80"),
        ("L40S", "sm_89", "sm_80", "sm_80"),
        ("RTX 4090", "sm_89", "sm_80", "sm_80"),
        ("NVIDIA GeForce RTX 4090", "sm_89", "sm_80", "sm_80"),
        ("rtx4090", "sm_89", "sm_80", "sm_80"),
        ("H100", "sm_90a", "sm_90", "sm_90a"),
        ("NVIDIA H100 80GB HBM3", "sm_90a", "sm_90", "sm_90a"),
        ("h200", "sm_90a", "sm_90", "sm_90a"),
        ("GH200", "sm_90a", "sm_90", "sm_90a"),
        ("9.0", "sm_90a", "sm_90", "sm_90a"),
        ("B200", "sm_100f", "sm_100", "sm_100f"),
        ("10.3", "sm_103f", "sm_103", "sm_100f"),
        ("RTX 5090", "sm_120f", "sm_120", "sm_120f"),
        ("8.8", "sm_86", "sm_80", "sm_80"),
        ("8.7", "sm_87", "sm_87", "sm_87"),  # Orin runs only code built for it
    ],
)
def test_a_gpu_stands_for_the_best_that_the_kernels_can_be_built_for(
    text: str, full: str, portable: str, written: str
) -> None:
    assert parsed(text, available=()) == [full]
    assert parsed(text, available=tuple(archs("sm_80"))) == [portable]
    assert parsed(text, available=tuple(archs("sm_80 sm_90a sm_100f sm_120f"))) == [written]


def test_a_kernel_for_one_chip_is_built_for_no_other() -> None:
    assert best_arch(archs("sm_90a"), (10, 0)) is None
    with pytest.raises(ArchError, match="nothing runs on B200") as caught:
        parsed("B200", available=tuple(archs("sm_90a")))
    assert caught.value.hint == "there are: sm_90a"


def test_what_is_best_runs_on_the_device() -> None:
    for device in {arch.capability for arch in ALL}:
        for written in ("sm_80", "sm_80 sm_90a sm_100f", " ".join(map(str, ALL))):
            best = best_arch(archs(written), device)
            assert best is not None and best.runs_on(device)


def test_in_a_bundle_a_gpu_stands_for_all_that_runs_on_it() -> None:
    def named(text: str) -> list[str]:
        (wanted,) = parse_wanted([text])
        return [str(arch) for arch in built_archs(wanted, archs("sm_80 sm_90 sm_90a"))]

    assert named("H100") == ["sm_90", "sm_90a"]
    assert named("L40S") == ["sm_80"]
    assert named("all") == ["sm_80", "sm_90", "sm_90a"]
    for text in ("B200", "sm_100f"):
        with pytest.raises(ArchError, match="the bundle has no code for ") as caught:
            named(text)
        assert caught.value.hint == "it has sm_80, sm_90, sm_90a"


def test_native_is_the_gpu_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spellings, "native_capability", lambda: (9, 0))
    assert parsed("native") == ["sm_90a"]
    # As the cache remembers it: on a machine with another GPU it is something else.
    assert Settings("kernels", ("sm80, native",)).archs == (Arch.parse("sm_80"), Gpu("9.0", (9, 0)))


def test_what_is_parsed_stays_as_it_is() -> None:
    wanted = parse_wanted(["sm90, H100", "all", "8.0"])
    assert [str(one) for one in wanted] == ["sm_90a", "H100 (compute capability 9.0)", "all", "compute capability 8.0"]
    assert parse_wanted(wanted) == wanted


def test_kernels_are_built_for_what_is_wanted_in_that_order() -> None:
    sm80, sm90 = archs("sm_80 sm_90a")
    written_for = {"add": (sm80,), "gemm": (sm90,), "norm": (sm80, sm90)}
    found = targets(parse_wanted(["sm90", "A100", "H100"]), written_for)
    assert found == {sm90: {"gemm", "norm"}, sm80: {"add", "norm"}, Arch.parse("sm_90"): {"add"}}
    assert [*found][:2] == [sm90, sm80]
    assert targets(parse_wanted(["all"]), written_for) == {sm80: {"add", "norm"}, sm90: {"gemm", "norm"}}
    with pytest.raises(UsageError, match="no kernel is written for sm_80") as caught:
        targets([sm80], {"gemm": (sm90,)})
    assert "sm_90a" in str(caught.value.hint)


def test_without_a_gpu_native_says_so() -> None:
    def missing() -> None:
        raise ArchError("`native` is the GPU of this machine, which has none")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(ArchError, match="which has none"):
        patch.setattr(spellings, "native_capability", missing)
        parsed("native")
