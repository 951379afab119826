"""TVM-FFI is found without importing it, and imported without torch. Hints name the file that cute-aot was installed from."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.requirements import Requirement

from aot import versions
from aot.errors import ToolchainError
from aot.versions import NEWEST_BUILDER, extra_requirements, install_cute_dsl, install_extras

FIND = """
import sys
from pathlib import Path
from aot import versions
from aot.pipeline.assembling.linking import linkers
assert versions.tvm_ffi_library().is_file()
with linkers(Path(sys.argv[1]), Path(sys.argv[1]), 1, None) as linker_for:
    assert (versions.tvm_ffi_headers() / "tvm" / "ffi" / "c_api.h").is_file()
sys.exit("tvm_ffi" in sys.modules)
"""


def test_its_files_are_found_and_nothing_is_imported(tmp_path: Path) -> None:
    path = os.pathsep.join(map(os.path.abspath, sys.path))
    subprocess.run([sys.executable, "-c", FIND, str(tmp_path)], env={**os.environ, "PYTHONPATH": path}, check=True)


def test_a_missing_tvm_ffi_is_said_with_the_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "tvm_ffi", raising=False)
    with pytest.raises(ToolchainError) as error:
        versions.tvm_ffi_headers()
    assert "apache-tvm-ffi" in str(error.value.hint)


def test_torch_is_missing_while_tvm_ffi_is_imported_and_there_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with versions.without_torch(), pytest.raises(ImportError):
        import torch
    import torch

    assert torch.__file__ == str(tmp_path / "torch.py")
    with versions.without_torch():  # it is imported already, and may be in use
        assert sys.modules["torch"] is torch
    del sys.modules["torch"]


Record = Callable[[dict[str, Any] | None], None]


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Record:
    """Play an installation of version 7.0 with this PEP 610 record."""

    def play(record: dict[str, Any] | None) -> None:
        text = None if record is None else json.dumps(record)
        played = SimpleNamespace(version="7.0", read_text=lambda name: text if name == "direct_url.json" else None)
        monkeypatch.setattr(importlib.metadata, "distribution", lambda name: played)

    return play


def words(hint: str) -> list[str]:
    return shlex.split(hint.strip("`"))


def test_the_wheel_that_was_installed_is_named(record: Record, tmp_path: Path) -> None:
    wheel = tmp_path / "a folder" / "cute_aot-7.0-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.touch()
    record({"url": wheel.as_uri(), "archive_info": {}})
    assert words(install_extras("build", "dask")) == ["pip", "install", f"{wheel}[build,dask]"]


@pytest.mark.parametrize("editable", [True, False])
def test_the_checkout_that_was_installed_is_named(record: Record, tmp_path: Path, editable: bool) -> None:
    record({"url": tmp_path.as_uri(), "dir_info": {"editable": True} if editable else {}})
    assert words(install_extras("sign")) == ["pip", "install", *["-e"] * editable, f"{tmp_path}[sign]"]


@pytest.mark.parametrize(
    "origin",
    [None, {"url": "file:///nowhere/cute_aot-7.0-py3-none-any.whl"}, {"url": "https://user:secret@host/cute_aot.whl"}],
)
def test_without_a_file_that_is_there_the_place_of_the_guide_is_named(record: Record, origin: Any) -> None:
    record(origin)
    assert words(install_extras("build")) == ["pip", "install", "./wheels/cute_aot-7.0-py3-none-any.whl[build]"]


def test_without_an_installation_no_command_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    assert "pip" not in install_extras("build", "sign")


def needed(extra: str) -> set[str]:
    """The requirements of an extra on this machine, as ``packaging`` reads the metadata."""
    found: set[str] = set()
    for need in map(Requirement, importlib.metadata.requires("cute-aot") or ()):
        if need.marker is None or not need.marker.evaluate({"extra": extra}) or need.marker.evaluate({"extra": ""}):
            continue
        own = need.name == "cute-aot"
        found |= {item for name in need.extras for item in needed(name)} if own else {f"{need.name}{need.specifier}"}
    return found


def test_a_python_that_cute_dsl_is_not_made_for_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """pip would look for a wheel that nobody made."""
    monkeypatch.setattr(sys, "version_info", (*NEWEST_BUILDER, 0))
    assert install_cute_dsl() == install_extras("build")
    newer = (NEWEST_BUILDER[0], NEWEST_BUILDER[1] + 1)
    monkeypatch.setattr(sys, "version_info", (*newer, 0))
    assert "{}.{}:".format(*newer) in install_cute_dsl() and "pip install" not in install_cute_dsl()


@pytest.mark.parametrize("extra", ["tools", "build", "cu13", "dev"])
def test_the_requirements_of_an_extra_are_those_of_the_metadata(extra: str) -> None:
    asked = [Requirement(text) for text in extra_requirements(extra)]
    here = {f"{need.name}{need.specifier}" for need in asked if need.marker is None or need.marker.evaluate()}
    assert here == needed(extra)
    assert "cute-aot" not in {need.name for need in asked}


def test_an_extra_that_does_not_exist_requires_nothing() -> None:
    assert extra_requirements("nothing") == []


@pytest.mark.parametrize("words", [["explain", "BUNDLE", "fill_stream_zero", "out=f32[8]", "--device", "9.0"]])
def test_commands_and_load_say_that_tvm_ffi_is_missing(words: list[str], small_bundle_path: Path) -> None:
    code = "import sys; sys.modules['tvm_ffi'] = None; from aot.cli.main import main; sys.exit(main(sys.argv[1:]))"
    load = "import sys; sys.modules['tvm_ffi'] = None; import aot_runtime; aot_runtime.load(sys.argv[1])"
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    words = [str(small_bundle_path) if word == "BUNDLE" else word for word in words]
    done = subprocess.run([sys.executable, "-c", code, *words], env=path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "pip install apache-tvm-ffi" in done.stderr
    loaded = subprocess.run(
        [sys.executable, "-c", load, str(small_bundle_path)], env=path, capture_output=True, text=True
    )
    assert "aot_runtime.errors.TvmFfiError" in loaded.stderr
    assert "pip install apache-tvm-ffi" in loaded.stderr


def test_versions_are_those_that_python_finds() -> None:
    names = {str(found.metadata["Name"]) for found in importlib.metadata.distributions()}
    assert {name: versions.installed_version(name) for name in names} == {
        name: importlib.metadata.version(name) for name in names
    }
    assert versions.installed_version("nobody-has-installed-this") is None
