"""A bundle's library for torch: built, verified, and the same whenever its kernels are."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from forging import accept
from places import PROJECT

from aot.bundle.layout import TORCH_IDENTITY, torch_library_path
from aot.bundle.manifest import Manifest
from aot.bundle.operators import operators, operators_digest
from aot.bundle.verifying.verify import verify
from aot.cli.main import main
from aot.hosts import CPUS, Host
from aot.pipeline.settings import BuildResult

NATIVE = torch_library_path(Host.native().name, "demo")


@pytest.fixture
def demo(demo_bundle_path: Path) -> Path:
    """The build has verified it."""
    return demo_bundle_path


def test_every_host_has_one_and_files_json_names_it(
    builder: Callable[..., BuildResult], native: Host, foreign: Host
) -> None:
    settings = {"name": "demo", "shared_cudart": True, "archives": False, "hosts": (native, foreign)}
    result = builder(PROJECT / "cpp_demo" / "kernels", ("sm_90a",), **settings)
    names = {torch_library_path(f"{cpu}-linux-gnu", "demo") for cpu in CPUS}
    assert names <= set(result.manifest.files)


def test_a_library_of_other_operators_is_named(demo: Path, tmp_path: Path) -> None:
    bundle = shutil.copytree(demo, tmp_path / "bundle")
    library = bundle / NATIVE
    digest = operators_digest(operators(Manifest.read(bundle).kernels)).encode()
    assert library.read_bytes().count(digest) == 1, TORCH_IDENTITY
    library.write_bytes(library.read_bytes().replace(digest, 64 * b"0"))
    accept(bundle, NATIVE)
    assert verify(bundle) == [f"{NATIVE} does not register the operators that follow from the kernels"]


def test_a_bundle_of_before_has_no_such_library_and_is_sound(demo: Path, tmp_path: Path) -> None:
    bundle = shutil.copytree(demo, tmp_path / "bundle")
    for library in bundle.glob("lib/*/libdemo_torch.so"):
        library.unlink()
    accept(bundle)
    assert verify(bundle) == []


def test_pruning_leaves_the_operators_of_what_is_left(
    demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = shutil.copytree(demo, tmp_path / "bundle")
    assert main(["prune", str(bundle), "--kernel", "activate"]) == 0
    capsys.readouterr()
    assert b"axpy.out(" in (bundle / NATIVE).read_bytes()
    assert b"activate" in (demo / NATIVE).read_bytes()
    assert b"activate" not in (bundle / NATIVE).read_bytes()


def test_a_wheel_carries_it(demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["wheel", str(demo), "--host", Host.native().cpu, "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (name for name in archive.namelist() if name.endswith(f"/{NATIVE}"))
        assert archive.read(path) == (demo / NATIVE).read_bytes()
