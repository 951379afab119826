"""One list of errors for Python, C and C++: the headers are written from the classes here."""

from __future__ import annotations

import re

import aot_runtime
import pytest
from aot_runtime import errors
from places import PROJECT

from tools.errors import coded, name_in_c, regions
from tools.generated import rewritten

SOURCES = PROJECT / "runtime" / "src"


@pytest.mark.parametrize("path", regions(), ids=lambda path: path.name)
def test_the_headers_and_the_page_have_these_errors(path: object) -> None:
    (found,) = ((one, listed) for one, listed in regions().items() if one == path)
    text = found[0].read_text()
    assert rewritten(text, found[1]) == text, "run `python tools/errors.py`"


def test_every_code_is_of_one_class_which_callers_can_import() -> None:
    codes = [error.code for error in coded()]
    assert sorted(set(codes)) == codes == list(range(1, len(codes) + 1))
    assert all(error.__name__ in aot_runtime.__all__ for error in coded())
    assert name_in_c(errors.NotFoundError) == "AOT_ERROR_NOT_FOUND" and name_in_c(errors.AotError) == "AOT_ERROR_OTHER"


def test_python_knows_every_kind_that_c_raises() -> None:
    known = {f"Aot{error.__name__}" for error in errors._RAISED_IN_C}
    raised = {kind for path in SOURCES.rglob("*.c") for kind in re.findall(r'"(Aot\w+Error)"', path.read_text())}
    assert raised == known


def test_a_class_without_a_code_has_that_of_its_base() -> None:
    assert errors.PublicKeyError("").code == errors.UsageError.code
    assert errors.ManifestError("").code == errors.BundleError.code


def test_an_unknown_kernel_is_shown_without_quotes_of_its_own() -> None:
    assert str(errors.NotFoundError("bundle 'a' has no kernel 'b'", hint="look")) == (
        "bundle 'a' has no kernel 'b'\nhint: look"
    )
