"""Modules are compared by their text, and found without importing anything."""

from __future__ import annotations

import importlib
import inspect
import linecache
import os
import py_compile
import sys
import types
import zipfile
from pathlib import Path
from typing import Any

import pytest
from aot_runtime.serving.values import sources


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "served_package"
    (folder / "inner").mkdir(parents=True)
    for name in ("__init__.py", "one.py", "inner/__init__.py", "inner/two.py"):
        (folder / name).write_text(f"raise RuntimeError('{name} was imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sources, "_files", {})
    return folder


def test_modules_that_are_not_loaded_are_found_and_not_imported(package: Path) -> None:
    assert sources.locate_source("served_package.inner.two") == str(package / "inner" / "two.py")
    assert sources.locate_source("served_package.inner") == str(package / "inner" / "__init__.py")
    (package.parent / "served_alone.py").write_text("")
    assert sources.locate_source("served_alone") == str(package.parent / "served_alone.py")
    assert sources.source_digest("served_package.three") is None
    assert sources.source_digest("no_such_package.three") is None
    assert "served_package" not in sys.modules


def changed(expected: dict[str, str]) -> list[str]:
    return [name for name, digest in expected.items() if sources.source_digest(name) != digest]


def test_an_edit_and_a_missing_file_are_changes(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["served_package", "served_package.one", "served_package.inner.two"]
    expected = {name: str(sources.source_digest(name)) for name in names}
    assert changed(expected) == []
    (package / "one.py").write_text("# edited\n")
    (package / "inner" / "two.py").unlink()
    monkeypatch.setattr(sources, "_files", {})
    assert changed(expected) == ["served_package.one", "served_package.inner.two"]


def digest_of_import(name: str, monkeypatch: pytest.MonkeyPatch) -> str | None:
    monkeypatch.setattr(sources, "_files", {})
    importlib.invalidate_caches()
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, name, importlib.import_module(name))
    return sources.source_digest(name)


def test_a_module_in_an_archive_goes_by_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for number, text in enumerate(["A = 1\n", "A = 1\n", "A = 2\n"]):
        with zipfile.ZipFile(tmp_path / f"{number}.zip", "w") as archive:
            archive.writestr("zipped_alone.py", text)
        monkeypatch.syspath_prepend(tmp_path / f"{number}.zip")
        found.append(digest_of_import("zipped_alone", monkeypatch))
    assert None not in found and found[0] == found[1] != found[2]


def test_a_module_without_its_source_goes_by_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, source = [], tmp_path / "compiled_alone.py"
    monkeypatch.syspath_prepend(tmp_path)
    for number, text in enumerate(["A = 1\n", "A = 1\n", "A = 2\n"]):
        source.write_text(text)
        os.utime(source, (number, number))  # a part of the file that says nothing
        py_compile.compile(str(source), str(tmp_path / "compiled_alone.pyc"))
        source.unlink()
        found.append(digest_of_import("compiled_alone", monkeypatch))
    assert None not in found and found[0] == found[1] != found[2]


def test_a_file_is_read_once_for_its_digest_and_its_classes(package: Path) -> None:
    (package / "one.py").write_text("class One:\n    pass\n\nclass Two(One): pass\n# class three\n")
    assert sources.source_digest("served_package.one") is not None
    (package / "one.py").unlink()
    assert sources.class_statements(str(package / "one.py")) == {b"One", b"Two"}
    assert sources.class_statements(str(package / "none.py")) == frozenset()


CLASSES = {
    "plain": ("class Norm:\n    x = 1\n\n    def run(self):\n        return 2\n", "\n\ndef other():\n    return 3\n"),
    "at the end": ("class Norm:\n    def run(self):\n        return 2\n", ""),
    "decorated method": ("class Norm:\n    @staticmethod\n    def run():\n        return 2\n", "\nY = 1\n"),
    "decorated": ("@staticmethod\nclass Norm:\n    def run():\n        return 2\n", "\nY = 1\n"),
    "text without indent": (
        'class Norm:\n    """Words\nclass of nothing\n    """\n\n    def run(self):\n        return 2\n',
        "Z = 1\n",
    ),
}


@pytest.mark.parametrize(("text", "rest"), CLASSES.values(), ids=CLASSES)
def test_the_text_of_a_class_is_all_of_it_and_nothing_behind_it(
    text: str, rest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(content: str, name: str) -> str:
        path = tmp_path / f"{name}.py"
        path.write_text(content)
        module = types.ModuleType("script")
        module.__file__ = str(path)
        monkeypatch.setitem(sys.modules, "script", module)
        exec(compile(content, str(path), "exec"), module.__dict__)
        return sources.class_text(inspect.unwrap(module.Norm)).rstrip()

    whole = found(f"A = 1\n\n{text}{rest}", "one")
    assert whole == found(f"A = 2\n\n\n{text}{rest}# more\n", "two") == text.rstrip()
    assert whole != found(f"A = 1\n\n{text.replace('return 2', 'return 4')}{rest}", "three")


def test_a_class_of_a_notebook_is_the_one_that_its_methods_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (f"class Norm:\n    def run(self):\n        return {number}\n" for number in (1, 2))
    module = types.ModuleType("cells")  # without a file
    monkeypatch.setitem(sys.modules, "cells", module)
    monkeypatch.setitem(linecache.cache, "a cell", (0, None, f"{first}\n{second}".splitlines(keepends=True), "a cell"))
    exec(compile(f"{first}\n{second}", "a cell", "exec"), vars(module))
    module.Norm.other = lambda self: 3  # from another file
    assert sources.class_text(module.Norm) == second


FUNCTIONS = {
    "plain": "def run(x):\n    return x\n",
    "decorated": "@same\n@same\ndef run(x):\n    return x\n",
    "long signature": "def run(\n    x,\n    y=2,\n):\n    return x\n",
    "ends in a text without indent": 'def run(x):\n    return """\nmov.u32 a, b;\n"""\n',
    "inner function": "def run(x):\n    def inner():\n        return x\n\n    return inner\n",
}


@pytest.mark.parametrize("text", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize("rest", ["", "\n\ndef other():\n    return 1\n", "A = 1\n"], ids=["end", "function", "value"])
def test_the_text_of_a_function_is_all_of_it_and_nothing_behind_it(text: str, rest: str, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(f"def same(f):\n    return f\n\n\n{text}{rest}")
    names: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    assert sources.function_text(names["run"].__code__) == text
    # CuTe DSL before 4.7 replaces the code of a function by one that begins below its decorators.
    exec(compile(path.read_text().replace("@same", ""), str(path), "exec"), names)
    assert sources.function_text(names["run"].__code__) == text


@pytest.mark.parametrize("name", ["plain", "decorated", "long signature", "inner function"])
def test_plain_code_is_cut_out_of_its_file_without_parsing_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs of libraries ask for the texts of hundreds of functions before their first launch."""

    def parsed(*_: object) -> str:
        raise AssertionError("the file was parsed")

    monkeypatch.setattr(sources.inspect, "getsource", parsed)
    path = tmp_path / "script.py"
    method = "class Norm:\n" + "".join(f"    {line}" for line in FUNCTIONS[name].splitlines(keepends=True))
    path.write_text(f"def same(f):\n    return f\n\n\n{FUNCTIONS[name]}\n\n{method}\n\nclass Other:\n    pass\n")
    names: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    assert sources.function_text(names["run"].__code__) == FUNCTIONS[name]
    assert sources.function_text(names["Norm"].run.__code__) == method.partition("\n")[2]


def test_the_text_of_generated_code_is_that_which_is_there_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library may give all that it generates one name, and CuTe DSL compiles the text that it finds under it."""

    def make(text: str) -> types.CodeType:
        monkeypatch.setitem(linecache.cache, "<lib>", (len(text), None, text.splitlines(True), "<lib>"))
        names: dict[str, Any] = {}
        exec(compile(text, "<lib>", "exec"), names)
        code: types.CodeType = names["run"].__code__
        return code

    first = make("def run(v):\n    return v * 2\n")
    assert sources.function_text(first).endswith("* 2\n")
    make("def run(v):\n    return v * 3\n")
    assert sources.function_text(first).endswith("* 3\n")
