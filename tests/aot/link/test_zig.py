"""zig's caches lie where we put them, unless the user chose a place; libraries get the routines that they call."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from aot.binary.elf import read_shared_library
from aot.errors import ToolchainError
from aot.files import is_marked
from aot.hosts import Host
from aot.link.zig import Zig

VARIABLES = ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")


def test_caches_follow_the_folder_of_the_tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    seen = Zig.find(tmp_path)._environment()
    assert [seen[name] for name in VARIABLES] == [str(tmp_path / "global"), str(tmp_path / "local")]
    assert is_marked(tmp_path / "global")  # so that `cache --clear` knows it


def test_a_place_that_the_user_chose_is_respected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLES[0], "/chosen")
    monkeypatch.setenv(VARIABLES[1], "")
    seen = Zig.find(tmp_path)._environment()
    assert [seen[name] for name in VARIABLES] == ["/chosen", str(tmp_path / "local")]


def test_routines_of_the_compiler_are_built_for_a_library_that_calls_one(cache: Path, tmp_path: Path) -> None:
    zig, calls = Zig.find(cache / "zig"), []

    def linked(name: str, expression: str) -> Path:
        source = tmp_path / f"{name}.c"
        source.write_text(
            "#include <stdlib.h>\n"
            f'__attribute__((visibility("default"))) long {name}(__int128 x, long y) {{ return {expression}; }}\n'
        )
        zig.compile_c(Host.native(), source, tmp_path / f"{name}.o", [])
        zig.link(Host.native(), [str(tmp_path / f"{name}.o")], tmp_path / f"lib{name}.so", exports=[name])
        return tmp_path / f"lib{name}.so"

    run = Zig._cc
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Zig, "_cc", lambda self, *rest: calls.append(rest) or run(self, *rest))
        plain, divides = linked("plain", "labs(y) + (long)x"), linked("divides", "(long)(x / y)")
    assert len(calls) == 5  # two compiles, and one library is linked a second time
    assert {symbol.name for symbol in read_shared_library(divides).undefined if symbol.version is None} == set()
    assert divides.stat().st_size > plain.stat().st_size


def test_a_full_disk_is_the_error_and_not_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "zig").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "zig").chmod(0o755)
    zig = Zig(tmp_path / "zig", tmp_path / "cache")
    with pytest.raises(ToolchainError) as error:
        zig.archive(tmp_path, "SAVE")
    assert "ar -M" in error.value.message
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=32 << 10))
    with pytest.raises(ToolchainError) as error:
        zig.archive(tmp_path, "SAVE")
    assert "ar -M" not in error.value.message
    assert str(tmp_path) in str(error.value.hint)
