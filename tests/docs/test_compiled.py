"""``docs/faq.md`` and ``docs/guides/kernels.md``: the compiler says, and makes, what the pages say of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from places import PROJECT

from aot.bundle.details import read_details
from aot.compile.dsl import version
from aot.compile.messages import Options
from aot.pipeline.settings import BuildResult
from tests.docs.pages import blocks

QUOTED = dict(
    line.split(": ", 1)
    for page in ("docs/faq.md", "docs/guides/kernels.md")
    for block in blocks(PROJECT / page)
    if block.language == "text"
    for line in block.code.splitlines()
)


@pytest.fixture(scope="module")
def built(builder: Callable[..., BuildResult]) -> BuildResult:
    if not version().startswith("4.8."):
        pytest.skip("the pages quote CuTe DSL 4.8")
    settings = {"name": "compiled", "archives": False, "options": Options(keep=("ptx",))}
    return builder(Path(__file__).with_name("compiled"), ("sm_90a",), **settings)


@pytest.fixture(scope="module")
def messages(built: BuildResult) -> dict[str, str]:
    return {failure.kernel: " ".join(failure.message.split()) for failure in built.failures}


def test_every_mistake_is_quoted(messages: dict[str, str]) -> None:
    assert messages.keys() == QUOTED.keys()


@pytest.mark.parametrize("kernel", QUOTED)
def test_the_compiler_says_what_is_quoted(messages: dict[str, str], kernel: str) -> None:
    said = messages[kernel]
    assert QUOTED[kernel] in said
    if kernel not in ("without_source", "wide_block"):  # whose function has no line; which is seen in finished code
        assert "mistakes.py:" in said.partition(QUOTED[kernel])[0]


# What is compiled from the patterns.


def instructions(built: BuildResult, variant: str, pattern: str) -> list[str]:
    return re.findall(pattern, (built.path / "kept" / "sm_90a" / f"{variant}.ptx").read_text())


def test_alignment_makes_one_load_of_four(built: BuildResult) -> None:
    pattern = r"(?:ld|st)\.global\S*"
    assert instructions(built, "copy__aligned", pattern) == ["ld.global.v4.b32", "st.global.v4.b32"]
    assert instructions(built, "copy__not_aligned", pattern) == 4 * ["ld.global.b32"] + 4 * ["st.global.b32"]


def test_the_larger_number_drops_nan_unless_told_otherwise(built: BuildResult) -> None:
    assert instructions(built, "maximum", r"\bmax\S*") == ["max.f32", "max.NaN.f32"]


def test_extents_of_64_bits_are_cut_by_shape(messages: dict[str, str], built: BuildResult) -> None:
    # Its jit function asserts the widths while it is compiled.
    assert "long" not in messages and (built.path / "kept" / "sm_90a" / "long.ptx").is_file()


def test_room_for_blocks_limits_registers_and_spills(built: BuildResult) -> None:
    variants = read_details(built.path / "details" / "sm_90a.json", "scale")
    found = {variant.name: (variant.launches[0].registers, variant.launches[0].local_memory) for variant in variants}
    assert found == {"scale__any": (136, 0), "scale__three": (80, 664)}
    page = " ".join((PROJECT / "docs" / "guides" / "kernels.md").read_text().split())
    assert "takes 136 registers" in page and "may take 80, and 664 bytes go to the stack" in page


def test_an_early_launch_waits_before_it_loads(built: BuildResult) -> None:
    found = instructions(built, "early", r"griddepcontrol\.wait|ld\.global|st\.global")
    assert found == ["griddepcontrol.wait", "ld.global", "st.global"]
