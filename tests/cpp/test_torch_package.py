"""Demo 6 on the CPU: AOTInductor compiles a model that uses operators from C, and a C++ program without Python runs it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import tvm_ffi.libinfo
from places import PROJECT
from played_torch import DEMO, Played, make_bundle

pytestmark = [
    pytest.mark.torch,
    # Torch warns about parts of itself that it calls.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
FOLDER = PROJECT / "cpp_demo"


@pytest.fixture(scope="module")
def torch() -> Any:
    torch = pytest.importorskip("torch", reason="packages of AOTInductor need torch")
    if shutil.which("c++") is None:
        pytest.skip("there is no C++ compiler")
    return torch


@pytest.fixture(scope="module")
def package(torch: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    import aot_runtime.torch

    folder = tmp_path_factory.mktemp("package")
    aot_runtime.torch.register(Played("demo", folder, DEMO))
    spec = importlib.util.spec_from_file_location("torch_package", FOLDER / "torch_package.py")
    assert spec is not None and spec.loader is not None
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    demo.make_package(folder / "demo.pt2", "cpu")
    return folder / "demo.pt2"


@pytest.fixture(scope="module")
def program(torch: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As the demo's CMakeLists.txt builds it."""
    home = Path(torch.__file__).parent
    program = tmp_path_factory.mktemp("program") / "torch_package"
    includes = [f"-isystem{home / 'include'}", f"-isystem{home / 'include/torch/csrc/api/include'}"]
    libraries = [str(home / "lib" / f"lib{name}.so") for name in ("torch", "torch_cpu", "c10")]
    flags = ["-std=c++20", "-O0", "-Wall", "-Wextra", "-Wpedantic", "-Werror", *includes, "-Wl,--no-as-needed"]
    command = ["c++", *flags, str(FOLDER / "torch_package.cpp"), *libraries, f"-Wl,-rpath,{home / 'lib'}", "-ldl"]
    done = subprocess.run([*command, "-o", str(program)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return program


def run(program: Path, library: Path, package: Path) -> subprocess.CompletedProcess[str]:
    command = [program, tvm_ffi.libinfo.find_libtvm_ffi(), library, package, "cpu"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_a_package_runs_without_python(program: Path, package: Path, tmp_path: Path) -> None:
    library = make_bundle(tmp_path / "demo", "demo", DEMO)
    done = run(program, library, package)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ok   : a package of AOTInductor") == 2
    # An exception from C passes through AOTInductor, which turns it into an exception of its own.
    library.with_name("libdemo.so").write_bytes(b"")
    done = run(program, library, package)
    assert done.returncode == 1
    assert "libdemo.so` is not the file this bundle was built with" in done.stderr
