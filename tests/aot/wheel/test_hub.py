"""Folders that Hugging Face's ``kernels`` loads: a package and its ``metadata.json`` for each host and CUDA version."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aot.bundle.manifest import Manifest
from aot.cli.main import main


@pytest.fixture
def hub(small_bundle_path: Path, tmp_path: Path) -> Path:
    words = ["--layout", "hub", "--package", "hub_demo", "--version", "3.1", "--out", str(tmp_path), "-q"]
    assert main(["wheel", str(small_bundle_path), *words, "--license", "Apache-2.0"]) == 0
    return tmp_path / "build"


def test_each_folder_is_a_package_that_says_what_it_needs(hub: Path, small_bundle_path: Path) -> None:
    cpus = {host.split("-")[0] for host in Manifest.read(small_bundle_path).hosts}
    assert {path.name for path in hub.iterdir()} == {
        f"tvm-ffi01-{cuda}-{cpu}-linux" for cuda in ("cu120", "cu130") for cpu in cpus
    }
    for folder in hub.iterdir():
        metadata = json.loads((folder / "metadata.json").read_text())
        assert (metadata["name"], metadata["version"], metadata["license"]) == ("hub-demo", 3, "Apache-2.0")
        assert metadata["python-depends"] == ["tvm-ffi"]
        archs = {f"{arch.major}.{arch.minor}{arch.suffix}" for arch in Manifest.read(small_bundle_path).archs}
        assert metadata["backend"] == {"type": "cuda", "archs": sorted(archs)}
        assert (folder / "NOTICE").is_file() and (folder / "_bundle" / "manifest.json").is_file()


def test_the_package_is_imported_under_any_name(hub: Path) -> None:
    place = next(path for path in hub.iterdir())
    name = f"_hub_demo_{place.name.replace('-', '_')}"
    spec = importlib.util.spec_from_file_location(name, place / "__init__.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
        assert module.__version__ == "3.1" and set(module.__all__) >= {"explain", "preload"}
    finally:
        for loaded in [one for one in sys.modules if one == name or one.startswith(f"{name}.")]:
            del sys.modules[loaded]


LOADS = """
import json, sys
import kernels, kernels.backends
from packaging.version import Version

kernels.backends._backend = lambda: kernels.backends.CUDA(version=Version(sys.argv[1]))  # this machine may have none
module = kernels.get_kernel("someone/hub-demo", version=3)
print(json.dumps([module.__file__, module.__version__, sorted(module.__all__)]))
"""


@pytest.mark.parametrize(("cuda", "folder"), [("12.8", "cu120"), ("13.1", "cu130")])
def test_the_package_kernels_loads_the_folder_of_this_machine(hub: Path, cuda: str, folder: str) -> None:
    try:
        importlib.metadata.version("kernels")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("Hugging Face's `kernels` is not installed")
    variables = {
        "LOCAL_KERNELS": f"someone/hub-demo={hub.parent}",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(hub / "cache"),
    }
    # Outside of the project, whose own folder is called `kernels`.
    done = subprocess.run(
        [sys.executable, "-c", LOADS, cuda], capture_output=True, text=True, cwd=hub, env={**os.environ, **variables}
    )
    assert done.returncode == 0, done.stderr
    file, version, names = json.loads(done.stdout.splitlines()[-1])
    assert Path(file).parent.parent == hub and folder in file
    assert version == "3.1" and {"explain", "preload"} <= set(names)


def test_folders_are_replaced_and_wrong_usage_is_named(
    hub: Path, small_bundle_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = next(iter(hub.iterdir()))
    (folder / "left.txt").write_text("of an earlier version")
    words = ["wheel", str(small_bundle_path), "--package", "hub_demo", "--out", str(hub.parent), "-q"]
    assert main([*words, "--layout", "hub"]) == 0
    assert not (folder / "left.txt").exists()
    assert main([*words, "--license", "MIT"]) == 2 and "--layout hub" in capsys.readouterr().err
    assert main([*words, "--layout", "hub", "--split-arch"]) == 2
