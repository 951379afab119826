"""Static linking: nothing goes missing in silence, nothing clashes, nothing unused stays."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import aot_runtime.native
import pytest

from aot.binary.elf import read_shared_library
from aot.binary.objects import defined_symbols, members
from aot.bundle.manifest import Manifest
from aot.cli.main import main
from tests.cpp.conftest import HERE, HOST, INCLUDES, TVM_FFI, Project, run


def link(project: Project, source: Path, output: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["c++", "-std=c++17", f"-I{INCLUDES[0]}", f"-I{project.bundle / 'include'}", str(source), *arguments,
               str(TVM_FFI), str(project.standin / "libcudart.so.12"), f"-Wl,-rpath-link,{project.standin}", "-ldl",
               "-pthread", "-Wl,--gc-sections", "-o", str(output)]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True)


def archives(project: Project, *parts: str) -> list[str]:
    return [str(project.bundle / "lib" / HOST / f"libbundle{part}.a") for part in parts]


def test_forgotten_architecture_is_a_link_error(project: Project, tmp_path: Path) -> None:
    done = link(project, HERE / "hello.cpp", tmp_path / "hello", *archives(project, "", "_sm_90a", "_cuda"))
    assert done.returncode != 0
    assert "aot_bundle_arch__sm_80" in done.stderr


def test_no_architecture_at_all_is_a_link_error(project: Project, tmp_path: Path) -> None:
    done = link(project, HERE / "hello.cpp", tmp_path / "hello", *archives(project, "", "_cuda"))
    assert done.returncode != 0
    assert "aot_bundle_arch__sm_80" in done.stderr


@pytest.mark.parametrize("whole", [True, False])
def test_all_architectures_are_there_and_unused_kernels_are_not(project: Project, tmp_path: Path, whole: bool) -> None:
    files = archives(project, "", "_sm_90a", "_sm_80", "_cuda")
    given = ["-Wl,--whole-archive", *files[:-1], "-Wl,--no-whole-archive", files[-1]] if whole else files
    done = link(project, HERE / "hello.cpp", tmp_path / "hello", *given)
    assert done.returncode == 0, done.stderr
    symbols = run("nm", tmp_path / "hello")
    for arch in ("sm_80", "sm_90a"):
        assert f"aot_bundle_kernel__fill__{arch}\n" in symbols
    assert "kernel__fill_pair__" not in symbols
    assert "fill_epilogue" not in symbols


def test_every_symbol_of_an_archive_carries_the_bundles_name(project: Project) -> None:
    for part in ("", "_sm_80", "_sm_90a"):
        for name, content in members(Path(archives(project, part)[0]).read_bytes()):
            wrong = [symbol for symbol in defined_symbols(content) if not symbol.startswith("aot_bundle_")]
            assert not wrong, f"{name} in libbundle{part}.a defines {wrong}"


def test_archives_have_every_kernel_that_the_manifest_names(project: Project) -> None:
    manifest = Manifest.read(project.bundle)
    for arch in ("sm_80", "sm_90a"):
        (archive,) = archives(project, f"_{arch}")
        defined = {symbol for _, content in members(Path(archive).read_bytes()) for symbol in defined_symbols(content)}
        kernels = [kernel.name for kernel in manifest.kernels.values() if arch in map(str, kernel.archs)]
        expected = {f"aot_bundle_kernel__{name}__{arch}" for name in kernels}
        assert expected <= defined


def test_nothing_that_a_call_reaches_ends_the_process(project: Project) -> None:
    root = project.bundle / "lib" / HOST
    support = root / "libbundle_cuda.so"
    assert "cuda_dialect_assert_success" not in {symbol.name for symbol in read_shared_library(support).exported}
    for library in (path for path in root.rglob("*.so") if path != support):
        undefined = {symbol.name for symbol in read_shared_library(library).undefined}
        assert not undefined & {"abort", "exit", "_exit", "raise", "__assert_fail"}, library


def test_config_prints_what_links(project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for extra in (["--static", "--arch", "sm90"], []):
        assert main(["config", "--cflags", "--ldflags", "--libs", *extra, str(project.bundle)]) == 0
        flags = capsys.readouterr().out.split()
        program = tmp_path / "program"
        run("c++", "-std=c++17", HERE / "hello.cpp", *flags, project.standin / "libcudart.so.12",
            f"-Wl,-rpath-link,{project.standin}", "-o", program)  # fmt: skip
        run(program, environment={"LD_LIBRARY_PATH": str(project.standin)})


def test_config_prints_run_paths_for_where_a_program_is_installed(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = ["--rpath", "$ORIGIN/../lib", "--rpath", "$ORIGIN"]
    wanted = ["-Wl,-rpath,$ORIGIN/../lib", "-Wl,-rpath,$ORIGIN"]
    for extra in (["--static"], []):
        assert main(["config", "--ldflags", *paths, *extra, str(project.bundle)]) == 0
        assert [flag for flag in substituted(capsys.readouterr().out) if "rpath" in flag] == wanted
        assert main(["config", "--json", *paths, *extra, str(project.bundle)]) == 0
        assert [flag for flag in json.loads(capsys.readouterr().out)["ldflags"] if "rpath" in flag] == wanted
    assert main(["config", "--tvm-ffi"]) == 0
    assert capsys.readouterr().out == f"{TVM_FFI}\n"


def substituted(output: str) -> list[str]:
    """The words that a compiler gets if a shell puts the output of a command in place of ``$(...)``."""
    command = ["sh", "-c", 'printf "%s\\n" $1', "sh", output]  # split like the output of `$(...)`
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def test_config_prints_a_path_as_it_is_and_quotes_words_with_spaces(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aot_runtime.native, "include_directory", lambda: tmp_path / "with space")
    assert main(["config", "--includedir"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/with space\n"
    assert main(["config", "--cflags"]) == 0
    assert shlex.split(capsys.readouterr().out) == [f"-I{tmp_path}/with space"]
    assert main(["config", "--cflags", str(project.bundle)]) == 0
    assert shlex.split(capsys.readouterr().out) == [f"-I{tmp_path}/with space", f"-I{project.bundle}/include"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--libs", "--rpath", "lib"], "`--rpath` needs `--ldflags` and a bundle"),
        (["--libs", "--no-cudart"], "`--no-cudart` needs `--static`"),
    ],
)
def test_config_refuses_options_that_would_do_nothing(
    project: Project, capsys: pytest.CaptureFixture[str], words: list[str], reason: str
) -> None:
    assert main(["config", *words, str(project.bundle)]) == 2
    assert reason in capsys.readouterr().err
    assert main(["config", "--ldflags", "--rpath", "lib"]) == 2
    assert "`--rpath` needs `--ldflags` and a bundle" in capsys.readouterr().err


def test_two_versions_of_a_bundle_do_not_link_into_one_program(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = []
    for bundle in (project.bundle, project.newer):
        assert main(["config", "--ldflags", "--libs", "--static", str(bundle)]) == 0
        words += capsys.readouterr().out.split()
    done = link(project, HERE / "hello.cpp", tmp_path / "hello", *words)
    assert done.returncode != 0
    assert "multiple definition of `aot_bundle_core'" in done.stderr


def test_config_explains_what_it_cannot_do(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config"]) == 2
    assert main(["config", "--libs", "--static"]) == 2
    assert main(["config", "--libs", "--static", "--arch", "sm100", str(project.bundle)]) == 2
    assert "the bundle has no code for sm_100f" in capsys.readouterr().err
