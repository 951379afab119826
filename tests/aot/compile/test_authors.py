"""An error of the compiler is shown with the author's own line first."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aot.compile.authors import compile_message


def raised(source: Path, call: str) -> BaseException:
    """What a function of a file raises."""
    names: dict[str, object] = {}
    exec(compile(source.read_text(), str(source), "exec"), names)
    with pytest.raises(Exception) as caught:
        eval(call, names)
    return caught.value


@pytest.fixture
def author(tmp_path: Path) -> Path:
    path = tmp_path / "kernel.py"
    path.write_text("import json\n\ndef kernel():\n    return json.loads('nonsense')\n\ndef launch():\n    kernel()\n")
    return path


def test_the_innermost_line_of_the_author_comes_first(author: Path) -> None:
    message = compile_message(raised(author, "launch()"), f"{author}:1")
    assert message.splitlines() == [
        f"{author}:4: JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
        "    return json.loads('nonsense')",
    ]


@pytest.mark.parametrize("column", ["", ":5"])
def test_a_line_that_a_diagnostic_names_goes_before_the_traceback(author: Path, column: str) -> None:
    text = f"\nerror[X]: not launched\n  --> {author}:7{column}\n   |\n 7 |     kernel()"
    message = compile_message(RuntimeError(f"\x1b[31m{text}\x1b[0m"), f"{author}:1")
    assert message.startswith(f"{author}:7: RuntimeError: error[X]: not launched\n")
    assert "\x1b" not in message
    assert message.count("kernel()") == 1  # the diagnostic has shown it already


def test_lines_of_ours_and_of_installed_packages_are_no_authors(author: Path, tmp_path: Path) -> None:
    import aot.compile.authors as ours

    text = f"error[Y]: no decorator\n  --> {ours.__file__}:85:16"
    assert compile_message(RuntimeError(text), f"{author}:1") == f"RuntimeError: {text}"
    package = tmp_path / "site-packages" / "library" / "gemm.py"
    package.parent.mkdir(parents=True)
    package.write_text("def launch():\n    raise ValueError('no tile')\n")
    error = raised(package, "launch()")
    here = re.escape(str(package))
    # A library's kernels are its author's, if it is the library that declares them.
    assert re.match(rf"{here}:2: ValueError: no tile", compile_message(error, f"{package}:1"))
    assert not re.match(here, compile_message(error, f"{author}:1"))
