"""What a file says about itself is read off its text: nothing is executed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from aot.compile.origins.sources import Source, read_source

Read = Callable[[str], Source]


@pytest.fixture
def source(tmp_path: Path) -> Read:
    def read(text: str, module: str = "package.module") -> Source:
        path = tmp_path / f"{module.rpartition('.')[2]}.py"
        path.write_text(text)
        read_source.cache_clear()
        return read_source(module, path)

    return read


@pytest.mark.parametrize(
    ("text", "imports"),
    [
        ("import a.b.c", {"a.b.c", "a.b", "a"}),
        ("def f():\n    from a import b", {"a", "a.b"}),
        ("from . import b", {"package", "package.b"}),
        ("from .a import b", {"package.a", "package.a.b"}),
        ("this is not Python", set()),
    ],
)
def test_imports_count_wherever_they_stand(source: Read, text: str, imports: set[str]) -> None:
    assert set(source(text).imports) == imports


@pytest.mark.parametrize(
    "text",
    [
        "import cutlass.cute as cute\ncute.compile = print",
        "import cutlass\ncutlass.cute.compile = print",
        "from cutlass import cute\ncute.compile, x = print, 1",
        "from library import Class\nClass.method = print",
        "from library import TABLE\nTABLE['key'] = 1",
        "import library\nlibrary.COUNT += 1",
        "import library\ndel library.name",
        "import library\nsetattr(library.part, 'name', 1)",
        "import library\nvars(library)['name'] = 1",
        "import library\ngetattr(library, 'Class').method = print",
        "def later():\n    import library\n    library.name = 1",
        "import os\nos.environ['TILE'] = '1'",
    ],
)
def test_assigning_to_what_was_imported_is_a_patch(source: Read, text: str) -> None:
    assert source(text).patches


@pytest.mark.parametrize(
    "text",
    [
        "import library\nvalue = library.name",
        "import library\nclass Own:\n    def f(self):\n        self.name = library.name",
        "import library\ntable = {}\ntable[library.name] = 1",
        "import library\nlibrary.register(1)",
        "def kernel(out, index, value):\n    out[index] = value",
    ],
)
def test_assigning_to_what_is_a_files_own_is_no_patch(source: Read, text: str) -> None:
    assert not source(text).patches


@pytest.mark.parametrize(
    ("text", "reads", "everything"),
    [
        ("import os\nos.environ['TILE']", True, False),
        ("import os\nos.environ.get('TILE', '')", True, False),
        ("from os import environ\n'TILE' in environ", True, False),
        ("import os\nos.getenv('TILE')", True, False),
        ("import os\ndict(os.environ)", True, True),
        ("import os\n[name for name in os.environ]", True, True),
        ("import os\nenvironment = os.environ\nenvironment['TILE']", True, True),
        ("import os\nos.getcwd()", False, False),
    ],
)
def test_reading_the_environment_is_seen(source: Read, text: str, reads: bool, everything: bool) -> None:
    found = source(text)
    assert (found.reads_environment, found.reads_all_variables) == (reads, everything)


def test_strings_that_could_name_a_variable_are_kept_and_others_are_not(source: Read) -> None:
    found = source("'''A sentence.'''\nA = 'TILE'\nB = f'SIZE_{A}' + 'x y'\nC = 'WIDTH_' + A\nD = 'DEPTH_%s' % A")
    assert found.strings == {"TILE"}
    assert found.prefixes == {"SIZE_", "WIDTH_", "DEPTH_"}


@pytest.mark.parametrize("call", ["importlib.import_module('a' + b)", "__import__(name)", "exec(text)"])
def test_computed_imports_are_seen(source: Read, call: str) -> None:
    assert source(call).imports_by_name


def test_imports_of_functions_are_told_from_those_of_the_file(source: Read) -> None:
    read = source(
        "from typing import TYPE_CHECKING\nimport a\nif TYPE_CHECKING:\n    import b\n"
        "@a.decorated\ndef outer():\n    import c\n    def inner():\n        import d\n"
        "class K:\n    import e\n    def method(self):\n        import f\n"
    )
    assert read.immediate >= {"a", "e"}
    assert not read.immediate & {"b", "c", "d", "f"}
    assert set(read.deferred) == {("c", 5), ("d", 5), ("f", 12)}
