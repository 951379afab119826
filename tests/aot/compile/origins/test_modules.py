"""Whose a file is: the author's, an installed distribution's, Python's own, or ours."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from pathlib import Path

import platformdirs
import pytest
from places import EXAMPLE, PROJECT, SAMPLES

from aot.compile.origins.modules import distributions_of, is_source, is_source_module, locate


@pytest.mark.parametrize(
    "path", [PROJECT / "kernels" / "_device.py", SAMPLES / "fill.py", EXAMPLE / "kernels" / "x.py"]
)
def test_files_of_a_checkout_are_the_authors_even_beside_this_project(path: Path) -> None:
    assert is_source(str(path))


@pytest.mark.parametrize("module", ["aot", "aot_runtime", "cutlass", "platformdirs", "json", "os"])
def test_installed_files_and_ours_are_not(module: str) -> None:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    path = getattr(sys.modules.get(module), "__file__", None) or spec.origin  # CuTe DSL is not imported here
    assert not is_source(str(path))
    assert not is_source_module(module)


def test_a_module_is_located_without_importing_the_packages_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("patching/deep", "patching/spaced/deeper", "spaced_alone/inner"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "leaf.py").write_text("")
    for package in ("patching", "patching/deep"):
        (tmp_path / package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("patching.deep.leaf", "patching.spaced.deeper.leaf", "spaced_alone.inner.leaf"):
        assert locate(name) == (tmp_path / f"{name.replace('.', '/')}.py").resolve()
    assert locate("patching.deep") == (tmp_path / "patching" / "deep" / "__init__.py").resolve()
    assert locate("patching.nothing.leaf") is None and locate("nowhere_at_all.leaf") is None
    assert not {name for name in sys.modules if name.startswith(("patching", "spaced_alone"))}


@pytest.mark.parametrize("path", ["<string>", "/proc/self/status", "/etc/hosts"])
def test_what_is_no_file_of_anyones_is_not(path: str) -> None:
    assert not is_source(path)


def test_a_file_among_the_installed_libraries_that_nobody_installed_is_the_authors() -> None:
    libraries = Path(platformdirs.__file__).parents[1]
    assert is_source(str(libraries / "dropped_here_by_hand.py"))
    assert not is_source(str(libraries / "_virtualenv.py"))  # virtualenv and uv put it into every environment


def test_distributions_are_named_with_their_versions() -> None:
    found = distributions_of(["platformdirs.unix", "json", "cutlass.cute", "aot", "nowhere_at_all"])
    assert found["platformdirs"] == importlib.metadata.version("platformdirs")
    assert found["nvidia_cutlass_dsl_libs_base"] == importlib.metadata.version("nvidia-cutlass-dsl")
    assert not {"aot", "json", "nowhere_at_all"} & found.keys()


@pytest.mark.parametrize(
    ("folder", "file", "text"),
    [
        ("aot_probe-1.5.dist-info", "METADATA", ""),
        ("aot_probe-1.5.dist-info", "RECORD", "aot_probe/__init__.py,,\n"),
        ("Probe-1.5.egg-info", "top_level.txt", "aot_probe\n"),
    ],
)
def test_a_distribution_counts_by_its_version_whatever_its_installer_wrote_down(
    folder: str, file: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries = tmp_path / "dist-packages"
    for name, content in {"aot_probe/__init__.py": "", f"{folder}/{file}": text}.items():
        (libraries / name).parent.mkdir(parents=True)
        (libraries / name).write_text(content)
    monkeypatch.syspath_prepend(libraries)
    assert distributions_of(["aot_probe.inner"]) == {folder.partition("-")[0]: "1.5"}


@pytest.mark.parametrize(
    ("info", "is_installed"),
    [
        ("aot_probe-1.5.dist-info/RECORD", True),  # as `pip install --target` leaves it
        ("aot_probe.egg-info/top_level.txt", False),  # a checkout that is installed as editable has one
        ("notes.txt", False),
    ],
)
def test_a_folder_of_the_search_path_that_pip_filled_holds_installed_libraries(
    info: str, is_installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("aot_probe/inner.py", "mine.py", info):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("aot_probe/inner.py,,\n" if name == info else "")
    monkeypatch.syspath_prepend(tmp_path)
    assert is_source(str(tmp_path / "aot_probe" / "inner.py")) is not is_installed
    assert is_source(str(tmp_path / "mine.py"))
    assert (distributions_of(["aot_probe"]) == {"aot_probe": "1.5"}) is is_installed
