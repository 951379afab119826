"""The CMake package: found where it was installed, builds bundles when it must and only then."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import aot_runtime.native
import pytest
from elftools.elf.elffile import ELFFile

from aot.bundle.verifying.verify import verify
from aot.cli.commands.config import SYSTEM
from tests.cpp.conftest import HERE, HOST, KERNELS, PROJECT, TVM_FFI, Project, cmake, run

CMAKE_DIR = aot_runtime.native.cmake_directory()

BUNDLE_PROJECT = """
cmake_minimum_required(VERSION 3.20)
project(app CXX)
set(CMAKE_CXX_STANDARD 17)
find_package(cute_aot CONFIG REQUIRED)
cute_aot_add_bundle(bundle KERNELS kernels ARCHS sm90 SELECT fill CUDART shared {kind})
target_link_libraries(bundle INTERFACE "{standin}/libcudart.so.12")
add_executable(app hello.cpp)
target_link_libraries(app PRIVATE bundle)
target_link_options(app PRIVATE "-Wl,--as-needed,-rpath-link,{standin}")
"""


def test_version_is_the_one_of_the_project() -> None:
    (version,) = re.findall(r'^version = "(.*)"$', (PROJECT / "pyproject.toml").read_text(), re.MULTILINE)
    text = (CMAKE_DIR / "cute_aotConfigVersion.cmake").read_text()
    assert f'set(PACKAGE_VERSION "{version}")' in text
    assert f"\nVersion: {version}\n" in (aot_runtime.native.pkgconfig_directory() / "cute-aot.pc").read_text()
    assert f'"{".".join(version.split(".")[:2])}"' in text


def headers_of(pc: Path) -> Path:
    """The folder of headers that a pkg-config file names, as pkg-config reads it."""
    (line,) = [line for line in pc.read_text().splitlines() if line.startswith("includedir=")]
    assert "Cflags: -I${includedir}\n" in pc.read_text()
    return Path(line.removeprefix("includedir=").replace("${pcfiledir}", str(pc.parent)))


def test_pkg_config_finds_the_headers() -> None:
    folder = aot_runtime.native.pkgconfig_directory()
    assert (headers_of(folder / "cute-aot.pc") / "aot" / "aot.h").is_file()
    program = shutil.which("pkg-config")
    if program is not None:
        flags = run(program, "--cflags", "--libs", "cute-aot", environment={"PKG_CONFIG_PATH": str(folder)}).split()
        (include,) = [flag.removeprefix("-I") for flag in flags if flag.startswith("-I")]
        assert (Path(include) / "aot" / "aot.h").is_file()
        assert set(SYSTEM) <= set(flags)


@pytest.mark.parametrize(("wanted", "found"), [("", True), ("0", True), ("0.1", True), ("0.1.0", True), ("0.2", False),
                                               ("1.0", False), ("0.1.9", False)])  # fmt: skip
def test_version_that_is_asked_for(tmp_path: Path, wanted: str, found: bool) -> None:
    script = tmp_path / "ask.cmake"
    parts = [*wanted.split("."), "", ""]
    script.write_text(
        f'set(PACKAGE_FIND_VERSION "{wanted or "0"}")\nset(PACKAGE_FIND_VERSION_MAJOR "{parts[0] or 0}")\n'
        f'set(PACKAGE_FIND_VERSION_MINOR "{parts[1] or 0}")\nset(PACKAGE_FIND_VERSION_COUNT {len([p for p in parts if p])})\n'
        f'include("{CMAKE_DIR}/cute_aotConfigVersion.cmake")\nmessage(STATUS "compatible=${{PACKAGE_VERSION_COMPATIBLE}}")\n'
    )
    assert f"compatible={str(found).upper()}" in run(cmake(), "-P", script)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("sm_90a", "sm_90a"), ("sm90", "sm_90;sm_90a"), ("9.0", "sm_90;sm_90a"), ("H100", "sm_90;sm_90a"),
        ("A10", "sm_80"), ("rtx4090", "sm_80"), ("NVIDIA GB300", "sm_100f"), ("native", "sm_90;sm_90a"),
    ],
)  # fmt: skip
def test_architectures_of_a_bundle_by_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str, found: str
) -> None:
    """The same names as on the command line. A GPU stands for all code that runs on it."""
    asked = tmp_path / "nvidia-smi"
    asked.write_text("#!/bin/sh\necho 9.0\necho 8.0\n")
    asked.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    script = tmp_path / "match.cmake"
    script.write_text(
        f'cmake_minimum_required(VERSION 3.20)\ninclude("{CMAKE_DIR}/cute_aot_bundle.cmake")\n'
        f'_cute_aot_match_archs(b "{wanted}" "sm_80;sm_90;sm_90a;sm_100f" result)\nmessage(STATUS "found ${{result}}!")\n'
    )
    assert f"found {found}!" in run(cmake(), "-P", script)


def test_installed_package_is_relocatable(project: Project, tmp_path: Path) -> None:
    run(cmake(), "-S", PROJECT, "-B", tmp_path / "build")
    run(cmake(), "--install", tmp_path / "build", "--prefix", tmp_path / "first")
    shutil.move(tmp_path / "first", tmp_path / "moved")
    (pc,) = (tmp_path / "moved").rglob("cute-aot.pc")
    assert (headers_of(pc) / "aot" / "aot.h").is_file()
    source = tmp_path / "app"
    source.mkdir()
    shutil.copy(HERE / "hello.cpp", source)
    (source / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\nproject(app CXX)\nset(CMAKE_CXX_STANDARD 17)\n"
        f'find_package(cute_aot 0.1 CONFIG REQUIRED)\ncute_aot_import_bundle(kernels "{project.bundle}")\n'
        "add_executable(app hello.cpp)\ntarget_link_libraries(app PRIVATE kernels)\n"
    )
    run(cmake(), "-S", source, "-B", tmp_path / "app_build", f"-DCMAKE_PREFIX_PATH={tmp_path / 'moved'}",
        f"-DCUTE_AOT_TVM_FFI_LIBRARY={TVM_FFI}", "-G", "Unix Makefiles")  # fmt: skip
    run(cmake(), "--build", tmp_path / "app_build")
    run(tmp_path / "app_build" / "app")
    assert "moved/include" in (tmp_path / "app_build" / "CMakeFiles" / "app.dir" / "flags.make").read_text()


def test_libtvm_ffi_is_found_by_the_python_that_is_named(project: Project, tmp_path: Path) -> None:
    """As in an environment that is not activated: no program of it is on the path."""
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\nproject(app C)\nfind_package(cute_aot CONFIG REQUIRED)\n"
        f'cute_aot_import_bundle(kernels "{project.bundle}")\n'
    )
    command = [cmake(), "-S", tmp_path, "-B", tmp_path / "build", f"-Dcute_aot_DIR={CMAKE_DIR}"]
    environment = {"PATH": os.defpath, "HOME": str(tmp_path)}

    def said(*more: str) -> str:
        done = subprocess.run([*command, *more], env=environment, capture_output=True, text=True)
        return " ".join(done.stderr.split())

    assert "CUTE_AOT_PYTHON" in said("-DCUTE_AOT_PYTHON=nowhere")
    assert said(f"-DCUTE_AOT_PYTHON={sys.executable}") == ""


INSTALLING_PROJECT = """
cmake_minimum_required(VERSION 3.20)
project(app CXX)
set(CMAKE_CXX_STANDARD 17)
find_package(cute_aot CONFIG REQUIRED)
cute_aot_import_bundle(kernels "{bundle}" ARCHS sm90)
cute_aot_install_bundle("{bundle}" DESTINATION share/kernels)
add_executable(app hello.cpp)
target_link_libraries(app PRIVATE kernels "{standin}/libcudart.so.12" "{standin}/libcuda.so.1")
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)
cute_aot_install_runtime(app BUNDLES share/kernels)
install(TARGETS app DESTINATION bin)
"""


def test_installed_bundle_moves_with_its_program(project: Project, tmp_path: Path) -> None:
    source, build, copy = tmp_path / "app", tmp_path / "build", tmp_path / "bundle"
    source.mkdir()
    shutil.copytree(project.bundle, copy)
    shutil.copy(HERE / "hello.cpp", source)
    text = INSTALLING_PROJECT.format(bundle=copy, standin=project.standin)
    (source / "CMakeLists.txt").write_text(text)
    run(cmake(), "-S", source, "-B", build, f"-Dcute_aot_DIR={CMAKE_DIR}", f"-DCUTE_AOT_TVM_FFI_LIBRARY={TVM_FFI}")
    run(cmake(), "--build", build)
    run(cmake(), "--install", build, "--prefix", tmp_path / "first")
    shutil.move(tmp_path / "first", tmp_path / "moved")
    shutil.rmtree(copy)
    shutil.rmtree(build)
    assert verify(tmp_path / "moved" / "share" / "kernels") == []
    # Nothing of the builder's environment: libtvm_ffi.so is that beside the program.
    app = tmp_path / "moved" / "bin" / "app"
    with app.open("rb") as file:
        dynamic = ELFFile(file).get_section_by_name(".dynamic")
        (path,) = [tag.runpath for tag in dynamic.iter_tags() if tag.entry.d_tag == "DT_RUNPATH"]
    assert path == f"$ORIGIN/../lib:$ORIGIN/../share/kernels/lib/{HOST}"
    assert (tmp_path / "moved" / "lib" / "libtvm_ffi.so").read_bytes() == TVM_FFI.read_bytes()
    # An argument makes it call the kernel, whose code lies in the bundle.
    run(app, "call", environment={"LD_LIBRARY_PATH": str(project.standin)})


@pytest.mark.parametrize(("kind", "generator"), [("STATIC", "Ninja"), ("SHARED", "Unix Makefiles")])
def test_bundle_is_built_when_a_kernel_changed_and_only_then(
    project: Project, tmp_path: Path, kind: str, generator: str
) -> None:
    source, build = tmp_path / "app", tmp_path / "build"
    source.mkdir()
    shutil.copytree(KERNELS, source / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    kernels = source / "kernels" / "fill.py"
    text = kernels.read_text()
    assert '("f16", "bf16", "f32")' in text
    kernels.write_text(text.replace('("f16", "bf16", "f32")', '("f32",)'))  # a third of the variants is enough here
    shutil.copy(HERE / "hello.cpp", source)
    (source / "CMakeLists.txt").write_text(BUNDLE_PROJECT.format(kind=kind, standin=project.standin))
    run(cmake(), "-S", source, "-B", build, "-G", generator, f"-Dcute_aot_DIR={CMAKE_DIR}",
        f"-DCUTE_AOT_PYTHON={sys.executable}", f"-DCUTE_AOT_TVM_FFI_LIBRARY={TVM_FFI}")  # fmt: skip
    run(cmake(), "--build", build)
    app, manifest = build / "app", build / "bundle" / "manifest.json"
    first = (app.stat().st_mtime_ns, manifest.stat().st_mtime_ns)
    run(cmake(), "--build", build)
    assert (app.stat().st_mtime_ns, manifest.stat().st_mtime_ns) == first
    kernels.touch()
    run(cmake(), "--build", build)
    assert manifest.stat().st_mtime_ns > first[1]
    assert kind == "SHARED" or app.stat().st_mtime_ns > first[0], "a static program was not linked again"
    run(app, environment={"LD_LIBRARY_PATH": str(project.standin)})


@pytest.mark.parametrize("host", [HOST.partition("-")[0], HOST])
def test_a_host_is_named_as_builds_take_it_or_in_full(project: Project, tmp_path: Path, host: str) -> None:
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\nproject(app C)\nfind_package(cute_aot CONFIG REQUIRED)\n"
        f'cute_aot_import_bundle(b "{project.bundle}" HOST {host})\n'
    )
    run(cmake(), "-S", tmp_path, "-B", tmp_path / "build", f"-Dcute_aot_DIR={CMAKE_DIR}",
        f"-DCUTE_AOT_TVM_FFI_LIBRARY={TVM_FFI}")  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('cute_aot_import_bundle(b "/nowhere")', "is not a bundle"),
        ('cute_aot_import_bundle(b "{bundle}" STATIC ARCHS sm_100f)', "was not built for sm_100f"),
        ('cute_aot_import_bundle(b "{bundle}" STATIC ARCHS sm100)', "was not built for sm100; it was for: sm_"),
        ('cute_aot_import_bundle(b "{bundle}" STATIC ARCHS sm_90)', "was not built for sm_90; it was for: sm_"),
        ("cute_aot_install_runtime(app)", "there is no target `app`"),
        ("cute_aot_install_runtime(DESTINATION lib)", "give the targets"),
        ("cute_aot_install_runtime(app FROM /usr/bin)", "`/usr/bin` is not relative to the prefix"),
        ('cute_aot_import_bundle(b "{bundle}" HOST riscv64-linux-gnu)', "holds no code for riscv64"),
        ('cute_aot_import_bundle(b "{bundle}" STATTIC)', "not understood: STATTIC"),
        ("cute_aot_add_bundle(b KERNELS nowhere ARCHS sm90)", "does not exist"),
        ("cute_aot_add_bundle(b ARCHS sm90)", "KERNELS and ARCHS"),
        ('cute_aot_install_bundle("{bundle}")', "give the bundle's directory and DESTINATION"),
        (
            'cute_aot_import_bundle(one "{bundle}" STATIC)\ncute_aot_import_bundle(two "{newer}" STATIC)\n'
            'file(WRITE "${{CMAKE_BINARY_DIR}}/main.c" "int main(void) {{ return 0; }}")\n'
            'add_executable(app "${{CMAKE_BINARY_DIR}}/main.c")\ntarget_link_libraries(app PRIVATE one two)',
            "does not agree with the value of AOT_BUNDLE_bundle already determined",
        ),
    ],
)
def test_mistakes_are_explained_when_configuring(project: Project, tmp_path: Path, lines: str, said: str) -> None:
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\nproject(app C)\nfind_package(cute_aot CONFIG REQUIRED)\n"
        + lines.format(bundle=project.bundle, newer=project.newer)
    )
    command = [cmake(), "-S", tmp_path, "-B", tmp_path / "build", f"-Dcute_aot_DIR={CMAKE_DIR}",
               f"-DCUTE_AOT_TVM_FFI_LIBRARY={TVM_FFI}"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert said in re.sub(r"\s+", " ", done.stderr)
