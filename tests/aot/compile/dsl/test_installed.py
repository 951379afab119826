"""A supported version gets its module; any other gets one error that names the versions and the next step."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from places import PROJECT

import aot.compile.dsl
from aot.compile.dsl import SUPPORTED, choose, installed, missing, v4_6, v4_7, v4_8, version, warning
from aot.errors import ToolchainError

PACKAGE = Path(aot.compile.dsl.__file__).parent


@pytest.mark.parametrize(
    ("seen", "module"), [("4.8.1", v4_8), ("4.8.99", v4_8), ("4.8.0.dev1", v4_8), ("4.7.1", v4_7), ("4.6.3", v4_6)]
)
def test_a_supported_version_gets_its_own_module(seen: str, module: Any) -> None:
    assert choose(seen) is module


@pytest.mark.compiler
def test_the_installed_version_is_supported_and_lacks_nothing() -> None:
    assert installed() is choose(version())
    assert missing(installed()) == []


@pytest.mark.parametrize("seen", ["4.5.3", "3.9", "unknown"])
def test_another_version_is_refused_with_what_was_seen_and_what_would_do(seen: str) -> None:
    with pytest.raises(ToolchainError) as raised:
        choose(seen)
    assert raised.value.message == (
        f"CuTe DSL {seen} is installed, which is not a supported version; supported are 4.6, 4.7, 4.8"
    )
    assert "`pip install 'nvidia-cutlass-dsl>=4.6,<4.9'`" in str(raised.value.hint)


@pytest.mark.parametrize("seen", ["4.60.0", "4.9.0", "5.1"])
def test_newer_versions_are_tried_with_the_newest_module_and_a_warning(seen: str) -> None:
    assert choose(seen) is SUPPORTED[max(SUPPORTED)]
    assert seen in warning(seen)
    assert warning("4.8.1") == warning("4.6.3") == ""


def test_what_is_missing_is_named_in_full() -> None:
    needs = {
        "json": ("loads", "lost", "JSONDecoder.decode", "JSONDecoder.lost"),
        "json.nowhere": ("x",),
        "nowhere": ("y",),
    }
    assert missing(SimpleNamespace(NEEDS=needs)) == [  # type: ignore[arg-type]
        "json.lost",
        "json.JSONDecoder.lost",
        "json.nowhere.x",
        "nowhere.y",
    ]


def test_an_installation_that_lacks_another_library_says_so_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_dsl.py").write_text("import a_library_that_is_not_there\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="a_library_that_is_not_there"):
        missing(SimpleNamespace(NEEDS={"broken_dsl": ("x",)}))  # type: ignore[arg-type]


def imported_from_cutlass(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "cutlass" and not node.level:
            yield from ((str(node.module), alias.name) for alias in node.names)


@pytest.mark.parametrize("name", ["v4_8", "v4_7"])
def test_every_name_that_is_imported_is_listed_as_needed(name: str) -> None:
    needs = getattr(aot.compile.dsl, name).NEEDS
    listed = {(module, item.partition(".")[0]) for module, items in needs.items() for item in items}
    modules = {*needs, *(f"{module}.{item}" for module, item in listed)}
    paths = [PACKAGE / f"{name}.py", PACKAGE / "tracing.py", PACKAGE.parent / "cute_dsl.py"]
    imported = {pair for path in paths for pair in imported_from_cutlass(path)}
    assert len(imported) >= 5
    assert not [
        (module, item)
        for module, item in imported
        if (module, item) not in listed and f"{module}.{item}" not in modules
    ]


def test_nothing_else_imports_private_parts() -> None:
    """Everything else that compiles uses documented modules alone."""
    for path in PACKAGE.parent.glob("*.py"):
        for module, item in imported_from_cutlass(path):
            assert not any(part.startswith("_") for part in f"{module}.{item}".split(".")), path
            assert module.partition(".")[2] in ("", "cute", "cute.runtime", "cute.typing", "utils"), path


def test_the_build_extra_allows_the_supported_versions_and_their_wheels_are_pinned() -> None:
    text = (PROJECT / "pyproject.toml").read_text()
    specifiers = {SpecifierSet(found) for found in re.findall(r'"nvidia-cutlass-dsl(?:\[cu13\])?([^"\[]+)"', text)}
    assert len(specifiers) == 1
    (allowed,) = specifiers
    pinned = json.loads((PROJECT / "aot/data/wheels.json").read_text())["sha256"]
    versions = {
        match[1] for name in pinned if (match := re.fullmatch(r"nvidia-cutlass-dsl-libs-cu12-(.+)-x86_64", name))
    }
    assert {tuple(Version(item).release[:2]) for item in versions} == set(SUPPORTED)
    assert all(item in allowed for item in versions)
    major, minor = max(SUPPORTED)
    assert f"{major}.{minor + 1}.0" not in allowed
