"""Drives ctest: the C and C++ tests, with every compiler there is, and under the sanitizers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cpp.conftest import HERE, INCLUDES, SOURCES, Project, run, with_entry

# What gcc's sanitizers are told. Code that was opened stays mapped, and what it holds with it. Two of them work in one
# program; the third wants one of its own.
OPTIONS = {
    "address,undefined": {
        "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    },
    "thread": {"TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1"},
}


def test_ctest_passes(project: Project, built: Path) -> None:
    assert "100% tests passed" in project.test(built)


def test_programs_of_clang_link_archives_too(project: Project, tmp_path: Path) -> None:
    if shutil.which("clang++") is None:
        pytest.skip("clang is not installed")
    project.configure(tmp_path, "-DCMAKE_C_COMPILER=clang", "-DCMAKE_CXX_COMPILER=clang++")
    project.build(tmp_path, "headers_cxx17", "linked_static")


# By language; zig's compiler is clang, and is there wherever bundles are built.
COMPILERS = {
    "gcc": {"c": ("gcc",), "c++": ("g++",)},
    "clang": {"c": (sys.executable, "-m", "ziglang", "cc"), "c++": (sys.executable, "-m", "ziglang", "c++")},
}
# clang sees C11 in the macros of glibc 2.43.
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Wno-c11-extensions")


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("standard", ["c99", "c++17", "c++20"])
def test_core_and_headers_compile_without_a_warning(
    project: Project, cache: Path, tmp_path: Path, compiler: str, standard: str
) -> None:
    language = standard.rstrip("0123456789")
    sources = [*SOURCES.glob("*.c"), HERE / "headers.c", *([] if language == "c" else [HERE / "headers.cpp"])]
    includes = [f"-I{INCLUDES[0]}", f"-I{project.bundle / 'include'}", "-isystem", str(INCLUDES[1])]
    zig_caches = {f"ZIG_{name.upper()}_CACHE_DIR": str(cache / "zig" / name) for name in ("global", "local")}

    def compile_one(source: Path) -> None:
        run(*COMPILERS[compiler][language], "-x", language, f"-std={standard}", *WARNINGS, *includes, "-c", source,
            "-o", tmp_path / f"{source.name}.o", environment=zig_caches)  # fmt: skip

    with ThreadPoolExecutor() as pool:
        list(pool.map(compile_one, sources))


@pytest.mark.parametrize("sanitizer", OPTIONS)
def test_threads_and_failures_under_sanitizer(project: Project, tmp_path: Path, sanitizer: str) -> None:
    if not _works(sanitizer, tmp_path):
        pytest.skip(f"this compiler does not run -fsanitize={sanitizer} here")
    flags = [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
    bundle = with_entry(project.bundle, tmp_path / "bundle", flags)
    build = tmp_path / "build"
    project.configure(
        build, f"-DSANITIZER={sanitizer}", "-DCMAKE_C_COMPILER=gcc", "-DCMAKE_CXX_COMPILER=g++", bundle=bundle
    )
    project.build(build)
    project.test(build, OPTIONS[sanitizer])


def _works(sanitizer: str, folder: Path) -> bool:
    if shutil.which("gcc") is None or shutil.which("g++") is None:
        return False
    program = folder / "probe"
    (folder / "probe.c").write_text("int main(void) { return 0; }\n")
    command = ["gcc", f"-fsanitize={sanitizer}", str(folder / "probe.c"), "-o", str(program)]
    return subprocess.run(command, capture_output=True).returncode == 0 and subprocess.run([program]).returncode == 0


def test_every_cpp_file_is_part_of_the_build() -> None:
    listed = (HERE / "CMakeLists.txt").read_text()
    for source in [*HERE.glob("*.c"), *HERE.glob("*.cpp")]:
        assert source.stem in listed or source.name == "selection_module.cpp", f"{source.name} is never compiled"
