"""What the loader needs: TVM-FFI and the standard library. No compiler, no framework, nothing of the builder."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from observing import run_python
from places import PROJECT, TESTS
from standin import Standin

FOREIGN = ("cutlass", "torch", "numpy", "aot")

# Prints the modules that a piece of code brings in, by the first part of their names.
NEW_MODULES = """
import json, sys
before = set(sys.modules)
exec(sys.argv[1])
print(json.dumps(sorted({name.split(".")[0] for name in set(sys.modules) - before})))
"""


def new_modules(code: str, *arguments: object) -> set[str]:
    return set(json.loads(run_python(NEW_MODULES, code, *arguments)))


def test_importing_the_loader_imports_the_standard_library_alone() -> None:
    added = new_modules("import aot_runtime")
    assert added - {"aot_runtime"} <= sys.stdlib_module_names
    assert not added & {"tvm_ffi", *FOREIGN}


def test_without_jax_the_module_for_jax_says_what_to_install() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"`jax` is not installed\n\nhint: `pip install jax jax-tvm-ffi`"):
        importlib.import_module("aot_runtime.jax")


def test_without_torch_the_module_for_torch_says_what_to_install() -> None:
    code = """
    import sys
    sys.modules["torch"] = None
    try:
        import aot_runtime.torch
    except ModuleNotFoundError as error:
        print(error.name, error, sep="\\n")
    """
    name, said = run_python(code).split("\n", 1)
    assert name == "torch" and "`torch` is not installed\n\nhint: `pip install torch`" in said


def test_importing_the_loader_prints_nothing_and_opens_no_library() -> None:
    code = """
    from pathlib import Path
    def mapped():
        return {line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    import json, keyword, posixpath, re, dataclasses, pathlib  # what it may load of the standard library
    before = mapped()
    import aot_runtime
    print(*(path for path in mapped() - before if ".so" in path and "lib-dynload" not in path))
    """
    assert run_python(code) == ""


def test_reading_a_manifest_needs_no_tvm_ffi(standin_bundle_path: Path) -> None:
    code = """
from pathlib import Path
from aot_runtime.description.manifest import Manifest
assert Manifest.read(Path(sys.argv[2])).kernels["fill"].variants
"""
    assert new_modules(code, standin_bundle_path) - {"aot_runtime"} <= sys.stdlib_module_names


def test_loading_and_explaining_imports_tvm_ffi_alone(standin_bundle_path: Path) -> None:
    # TVM-FFI itself imports torch where that is installed; what counts is what comes on top.
    code = """
import tvm_ffi
before.update(sys.modules)
import aot_runtime
bundle = aot_runtime.load(sys.argv[2])
info = aot_runtime.TensorInfo("f32", (8,))
assert bundle.explain("fill", "9.0", info).chosen.variant == "fill__f32__aligned"
"""
    added = new_modules(code, standin_bundle_path)
    assert added - {"aot_runtime"} <= sys.stdlib_module_names


def test_loading_and_explaining_opens_nothing_of_cuda(standin_bundle_path: Path) -> None:
    code = """
    import sys
    from pathlib import Path
    import aot_runtime
    bundle = aot_runtime.load(sys.argv[1])
    print(bundle.explain("fill", "9.0", aot_runtime.TensorInfo("f32", (8,))).chosen.variant)
    maps = Path("/proc/self/maps").read_text()
    assert "sm_90a/fill.so" in maps and "libbundle_cuda.so" not in maps
    assert "torch" in sys.modules or not any(name in maps for name in ("libcuda.so", "libcudart"))
    """
    assert run_python(code, standin_bundle_path) == "fill__f32__aligned"


# An environment without CuTe DSL


@pytest.fixture(scope="module")
def bare_python(project_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has this project's wheel and TVM-FFI, and nothing else."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], check=True)
    python = folder / "env" / "bin" / "python"
    assert project_wheel.name.endswith("-py3-none-any.whl")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", str(python)]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", str(project_wheel)], check=True)
    link_distribution("apache-tvm-ffi", next(folder.glob("env/lib/python*/site-packages")))
    link_distribution("typing-extensions", next(folder.glob("env/lib/python*/site-packages")))
    return python


def test_the_wheel_says_that_its_packages_are_typed(bare_python: Path) -> None:
    packages = next(bare_python.parents[1].glob("lib/python*/site-packages"))
    assert (packages / "aot" / "py.typed").is_file()
    assert (packages / "aot_runtime" / "py.typed").is_file()


def link_distribution(name: str, packages: Path) -> None:
    """Put an installed distribution into another environment without fetching it again."""
    distribution = importlib.metadata.distribution(name)
    for top in {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}:
        (packages / top).symlink_to(Path(str(distribution.locate_file(top))).resolve())


def test_a_bundle_runs_where_cute_dsl_is_not_installed(
    bare_python: Path, standin_bundle_path: Path, standin_process: Standin, standin_directory: Path
) -> None:
    code = """
import importlib.util, inspect, sys
from pathlib import Path
sys.path.append(sys.argv[1])
for name in ("cutlass", "torch", "numpy", "elftools", "ziglang"):
    assert importlib.util.find_spec(name) is None, name
from standin import Standin
cuda = Standin.load(Path(sys.argv[2]))
cuda.reset([(9, 0), (8, 9)])
import aot_runtime
assert "site-packages" in aot_runtime.__file__
bundle = aot_runtime.load(sys.argv[3])
for device in (0, 1):
    bundle.fill(cuda.tensor((300,), "float16", device=device), value=2.0)
try:
    bundle.fill(cuda.tensor((300,), "int8"))
except aot_runtime.ArgumentError as error:
    assert "out.dtype is int8, must be float16" in error.message
imported = {name for name, module in sys.modules.items() if module is not None}
assert not {"aot", "cutlass", "torch", "numpy"} & imported
print([(launch.device, launch.grid[0], launch.block[0]) for launch in cuda.launches])
"""
    command = [str(bare_python), "-I", "-c", code, str(TESTS), str(standin_directory), str(standin_bundle_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[(0, 3, 128), (1, 3, 128)]"


def test_the_wheel_carries_the_sources_of_the_runtime(bare_python: Path) -> None:
    code = """
from aot_runtime.native import include_directory, source_directory
print(*sorted(path.name for path in source_directory().iterdir()))
assert "site-packages" in str(source_directory())
"""
    done = subprocess.run([str(bare_python), "-I", "-c", code], capture_output=True, text=True, check=True)
    assert {path.name for path in (PROJECT / "runtime" / "src").iterdir()} <= set(done.stdout.split())


CMAKE_PROJECT = """
cmake_minimum_required(VERSION 3.20)
project(app C)
find_package(cute_aot 0.1 CONFIG REQUIRED)
cute_aot_import_bundle(kernels "{bundle}")
add_executable(app main.c)
target_link_libraries(app PRIVATE kernels)
"""
PROGRAM = """
#include <bundle.h>
int main(void) {
  aot_bundle handle;
  const aot_interface* library = NULL;
  if (bundle_aot(&handle) == AOT_OK && aot_describe(handle, &library) == AOT_OK) puts(library->name);
  return 0;
}
"""


def test_cmake_finds_headers_and_functions_in_the_installed_wheel(
    bare_python: Path, standin_bundle_path: Path, tmp_path: Path
) -> None:
    cmake = shutil.which("cmake")
    assert cmake is not None
    asked = [str(bare_python), "-I", "-m", "aot", "config", "--cmakedir"]
    folder = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    assert "site-packages" in folder
    (tmp_path / "CMakeLists.txt").write_text(CMAKE_PROJECT.format(bundle=standin_bundle_path))
    (tmp_path / "main.c").write_text(PROGRAM)
    for command in (
        ["-S", tmp_path, "-B", tmp_path / "build", f"-Dcute_aot_DIR={folder}"],
        ["--build", tmp_path / "build"],
    ):
        done = subprocess.run([cmake, *command], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    # libtvm_ffi was found where pip put it, beside the package.
    said = subprocess.run([tmp_path / "build" / "app"], capture_output=True, text=True, check=True).stdout
    assert said == "bundle\n"


FIRST_CALLS = """
import os, sys
from pathlib import Path
from standin import Standin
cuda = Standin.load(Path(sys.argv[1]))
import aot_runtime
bundle = aot_runtime.load(sys.argv[2])
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
before = set(sys.modules)
bundle.fill(cuda.tensor((8,), "float32"))
try:
    bundle.fill("neither a tensor nor an array")
except aot_runtime.ArgumentError:
    pass
print(*(set(sys.modules) - before))
"""


def test_first_calls_of_a_forked_child_import_nothing(standin_directory: Path, standin_bundle_path: Path) -> None:
    """A child that was forked while another thread imports a module waits for that import for ever."""
    assert run_python(FIRST_CALLS, standin_directory, standin_bundle_path) == ""
