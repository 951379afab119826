"""NVIDIA's libraries that are linked are those that were tested, or those that were installed."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from places import PROJECT

from aot.errors import ToolchainError
from aot.files import sha256_of
from aot.hosts import CPUS, Host
from aot.link import nvidia, wheels
from aot.link.nvidia import distributions, find_libraries, linked_digests
from aot.versions import NEWEST_BUILDER

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NATIVE = Host.native()


@pytest.fixture
def altered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The installed launch support with one byte more, where it is looked for."""
    installed = nvidia._installed
    library = Path(shutil.copy(find_libraries(NATIVE, 12, tmp_path).launch_support, tmp_path))
    library.write_bytes(library.read_bytes() + b"\0")

    def with_altered(name: str) -> tuple[dict[str, Path], dict[str, set[str]]]:
        libraries, recorded = installed(name)
        return {**libraries, **({library.name: library} if library.name in libraries else {})}, recorded

    monkeypatch.setattr(nvidia, "_installed", with_altered)
    return library


def test_an_altered_library_of_this_host_is_refused(altered: Path, tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match=f"{altered.name}` has sha256 .*: it is not the library of nvidia-cutlass"):
        find_libraries(NATIVE, 12, tmp_path)


def test_what_the_installer_wrote_down_counts_for_versions_that_were_not_looked_at(
    altered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvidia, "pinned_libraries", lambda name, version, host: {})
    with pytest.raises(ToolchainError, match="it is not the library of nvidia-cutlass"):
        find_libraries(NATIVE, 12, tmp_path)


def test_an_altered_library_in_the_cache_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel of another host is compared when it is fetched; its libraries, whenever they are linked."""
    other = Host.parse("x86_64" if NATIVE.cpu == "aarch64" else "aarch64")
    launch = distributions(12)[0]
    (key,) = (key for key in wheels._pinned()["libraries"] if key.startswith(launch) and key.endswith(other.cpu))
    folder = tmp_path / "wheels" / key
    folder.mkdir(parents=True)
    (folder / "libcuda_dialect_runtime_static.a").write_bytes(b"!<arch>\n")
    with pytest.raises(ToolchainError, match="it is not the library of nvidia-cutlass"):
        find_libraries(other, 12, tmp_path)


def test_every_python_that_can_build_has_a_library_that_is_known() -> None:
    """NVIDIA's wheels for different versions of Python hold different builds of one library."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    allowed = SpecifierSet(project["requires-python"])
    builders = {f"cp3{minor}" for minor in range(NEWEST_BUILDER[1] + 1) if f"3.{minor}" in allowed}
    libraries = wheels._pinned()["libraries"]
    for cpu in CPUS:
        for cuda in (12, 13):
            (key,) = (key for key in libraries if key.startswith(distributions(cuda)[0]) and key.endswith(cpu))
            assert libraries[key]["libcuda_dialect_runtime_static.a"].keys() == builders, key


def test_what_is_linked_has_its_digests_by_host(tmp_path: Path) -> None:
    libraries = {NATIVE: find_libraries(NATIVE, 12, tmp_path)}
    linked = linked_digests(libraries, shared_cudart=False)
    support = f"{NATIVE.name}/libcuda_dialect_runtime_static.a"
    assert linked.keys() == {support, f"{NATIVE.name}/libcudart_static.a", f"{NATIVE.name}/libculibos.a"}
    assert linked[support] == sha256_of(libraries[NATIVE].launch_support)
    assert linked_digests(libraries, shared_cudart=True) == {support: linked[support]}
