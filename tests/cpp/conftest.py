"""Bundles, compilers and the stand-in for the C and C++ tests."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aot_runtime.native
import pytest
import tvm_ffi.libinfo
from aot_runtime.arch import Arch
from forging import accept
from once import once
from places import SAMPLES
from standin import search_path

from aot.bundle.details import read_details
from aot.bundle.manifest import Manifest
from aot.bundle.types import function_kinds
from aot.files import sha256_of
from aot.hosts import Host
from aot.kinds import TENSOR
from aot.link.libraries import NO_IDENTITY, EntryFunction, KernelBuild, entry_source, entry_sources

HERE = Path(__file__).parent
KERNELS = SAMPLES
PROJECT = HERE.parents[1]
HOST = Host.native().name
SOURCES = aot_runtime.native.source_directory()
INCLUDES = (aot_runtime.native.include_directory(), Path(tvm_ffi.libinfo.find_include_path()))
TVM_FFI = Path(tvm_ffi.libinfo.find_libtvm_ffi())


def run(*command: str | Path, cwd: Path | None = None, environment: dict[str, str] | None = None) -> str:
    """Run a command that must succeed; returns what it printed."""
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=None if environment is None else {**os.environ, **environment},
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout[-6000:]}{done.stderr[-6000:]}"
    return done.stdout


def cmake() -> str:
    found = shutil.which("cmake")
    assert found is not None
    return found


def entry_symbol_source(bundle: Path) -> str:
    """The C source of a bundle's entry library, made again from what the bundle says of itself."""
    manifest = Manifest.read(bundle)
    kinds = function_kinds(v for path in sorted((bundle / "details").iterdir()) for v in read_details(path))
    root = bundle / "lib" / HOST

    def linked(path: Path, arch: Arch) -> KernelBuild:
        driver = manifest.requires["driver"][str(arch)]
        return KernelBuild(arch, path.relative_to(root).as_posix(), path.stat().st_size, sha256_of(path), driver)

    builds = {
        kernel.name: [linked(root / str(arch) / f"{kernel.name}.so", arch) for arch in kernel.archs]
        for kernel in manifest.kernels.values()
    }
    functions = [
        EntryFunction(
            name,
            kernel.name,
            f"{name}({', '.join(parameter.name for parameter in kernel.parameters)})",
            len(kernel.parameters),
            any((TENSOR, TENSOR) in intervals for intervals in kinds[name].values()),
            kernel.doc,
        )
        for kernel in manifest.kernels.values()
        for name in kernel.functions
    ]
    support = linked(root / f"lib{manifest.name}_cuda.so", manifest.kernels[next(iter(manifest.kernels))].archs[0])
    return entry_source(
        manifest.name, sorted(functions, key=lambda item: item.name), builds, support, HOST, NO_IDENTITY
    )


def with_entry(bundle: Path, out: Path, flags: Sequence[str], edit: Callable[[str], str] = lambda text: text) -> Path:
    """A copy of a bundle whose entry library this machine's compiler made, with other flags or tables.

    There is no debug information: it would triple the size of a file that tests hash again and again.
    """
    shutil.copytree(bundle, out)
    root = out / "lib" / HOST
    name = Manifest.read(bundle).name
    tables = out / "tables.c"
    tables.write_text(edit(entry_symbol_source(bundle)))
    core = [SOURCES / f"aot_{part}.c" for part in entry_sources()]
    includes = [word for path in (SOURCES, *INCLUDES) for word in ("-isystem", str(path))]
    entry = root / f"lib{name}.so"
    run("cc", "-std=gnu99", "-O0", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-Bsymbolic", *flags, *includes,
        tables, *core, "-o", entry, "-ldl", "-pthread")  # fmt: skip
    accept(out, entry.relative_to(out).as_posix())
    return out


@pytest.fixture(scope="session")
def other_bundle(shared_bundle: Callable[..., Path]) -> Path:
    return shared_bundle("cpp_other", KERNELS, ("sm_90a",), select=("fill",), shared_cudart=True, name="other")


@pytest.fixture(scope="session")
def newer_bundle(shared_bundle: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle as its author might build it a day later: the same name, other code."""
    changed = tmp_path_factory.mktemp("newer") / "fill.py"
    changed.write_text((KERNELS / "fill.py").read_text().replace("THREADS = 96", "THREADS = 224"))
    return shared_bundle("cpp_newer", changed, ("sm_90a",), select=("fill_epilogue",), shared_cudart=True)


@dataclass(frozen=True)
class Project:
    """The CMake project in this folder, ready to be configured in several ways."""

    bundle: Path
    other: Path
    newer: Path
    standin: Path
    traps: Path

    def configure(self, folder: Path, *settings: str, bundle: Path | None = None) -> None:
        run(
            cmake(), "-S", HERE, "-B", folder, *(["-G", "Ninja"] if shutil.which("ninja") else []),
            f"-Dcute_aot_DIR={aot_runtime.native.cmake_directory()}", f"-DBUNDLE={bundle or self.bundle}",
            f"-DOTHER_BUNDLE={self.other}", f"-DNEWER_BUNDLE={self.newer}", f"-DSTANDIN={self.standin}", f"-DCUTE_AOT_TVM_FFI_LIBRARY={TVM_FFI}",
            f"-DTVM_FFI_INCLUDE={INCLUDES[1]}", *settings,
        )  # fmt: skip

    def build(self, folder: Path, *targets: str) -> None:
        run(cmake(), "--build", folder, *(["--target", *targets] if targets else []))

    def test(self, folder: Path, environment: dict[str, str] | None = None) -> str:
        """Run ctest, on a machine where the real driver would be found first."""
        ctest = Path(cmake()).with_name("ctest")
        variables = {**search_path(self.traps), **(environment or {})}
        return run(ctest, "--test-dir", folder, "--output-on-failure", environment=variables)


@pytest.fixture(scope="session")
def project(cpp_bundle: Path, other_bundle: Path, newer_bundle: Path, standin_directory: Path, traps: Path) -> Project:
    return Project(cpp_bundle, other_bundle, newer_bundle, standin_directory, traps)


@pytest.fixture(scope="session")
def built(project: Project, run_folder: Path) -> Path:
    """The project, built with the machine's own compiler."""

    def make(folder: Path) -> None:
        project.configure(folder)
        project.build(folder)

    return once(run_folder / "cpp_build", make)


@pytest.fixture(scope="session")
def selection(run_folder: Path) -> Any:
    """The selection of ``runtime/src`` as a Python module."""
    module = once(run_folder / "selection", _build_selection) / "selection_module.so"
    spec = importlib.util.spec_from_file_location("selection_module", module)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def _build_selection(folder: Path) -> None:
    import pybind11

    folder.mkdir()
    includes = [word for path in (SOURCES, *INCLUDES, Path(pybind11.get_include()), Path(sysconfig.get_path("include")))
                for word in ("-isystem", path)]  # fmt: skip
    objects = []
    for part in entry_sources():
        objects.append(folder / f"{part}.o")
        run("cc", "-std=gnu99", "-O0", "-fPIC", *includes, "-c", SOURCES / f"aot_{part}.c", "-o", objects[-1])
    run("c++", "-std=c++17", "-O0", "-fPIC", "-shared", *includes, HERE / "selection_module.cpp", *objects, TVM_FFI,
        f"-Wl,-rpath,{TVM_FFI.parent}", "-ldl", "-pthread", "-o", folder / "selection_module.so")  # fmt: skip
