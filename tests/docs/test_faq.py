"""``docs/faq.md``: the compiler says of each mistake what the page quotes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from places import PROJECT

from aot.compile.dsl import version
from aot.errors import BuildError
from aot.pipeline.settings import BuildResult
from tests.docs.pages import blocks

QUOTED = dict(
    line.split(": ", 1)
    for block in blocks(PROJECT / "docs" / "faq.md")
    if block.language == "text"
    for line in block.code.splitlines()
)


@pytest.fixture(scope="module")
def messages(builder: Callable[..., BuildResult]) -> dict[str, str]:
    if not version().startswith("4.8."):
        pytest.skip("the page quotes CuTe DSL 4.8")
    with pytest.raises(BuildError) as caught:
        builder(Path(__file__).with_name("faq_kernels.py"), ("sm_80",), name="faq")
    return {failure.kernel: failure.message for failure in caught.value.failures}


def test_every_mistake_is_quoted(messages: dict[str, str]) -> None:
    assert messages.keys() == QUOTED.keys()


@pytest.mark.parametrize("kernel", QUOTED)
def test_the_compiler_says_what_is_quoted(messages: dict[str, str], kernel: str) -> None:
    said = " ".join(messages[kernel].split())
    assert QUOTED[kernel] in said
    if kernel != "without_source":  # whose function has no line
        assert "faq_kernels.py:" in said.partition(QUOTED[kernel])[0]
