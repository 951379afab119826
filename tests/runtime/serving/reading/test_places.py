"""Where a function is defined stays the same when CuTe DSL replaces its code."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from aot_runtime.serving.reading.reads import text_of

LIBRARY = """
def decorated(function):
    return function

@decorated
@decorated
def scale(v):
    return v
"""


def test_code_that_cute_dsl_replaces_is_found_where_its_decorators_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "replaced_library.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(tmp_path)
    library = importlib.import_module("replaced_library")
    before = text_of("replaced_library", "@scale")
    library.scale._preprocessed = True  # as CuTe DSL before 4.8 leaves it: with the code of a `def` without decorators
    library.scale.__code__ = library.scale.__code__.replace(co_firstlineno=7)
    assert before == text_of("replaced_library", "@scale") == "replaced_library:5"
