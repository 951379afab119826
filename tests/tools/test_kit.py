"""The kit for machines without a network: made here, run here, as it would be there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
from places import EXAMPLE, PROJECT
from standin import hide_driver, search_path

from aot.bundle.verifying.verify import verify
from aot.errors import BuildError, UsageError
from aot.hosts import Host
from aot.pipeline.settings import BuildResult
from tools.kit import make as kit_module
from tools.kit.__main__ import main
from tools.kit.make import KitSettings, Step, make_kit

CPP_DEMO = PROJECT / "cpp_demo"
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"

CONFTEST = """
def pytest_addoption(parser):
    parser.addoption("--bundle")
"""
TEST = """
import aot_runtime
import pytest
pytestmark = pytest.mark.gpu

def test_bundle_is_the_kits_own(request):
    bundle = aot_runtime.load(request.config.getoption("--bundle"))
    vector = aot_runtime.TensorInfo("f16", (8,))
    assert bundle.explain("scale", "9.0", vector, vector).chosen.arch == "sm_90a"

def test_that_is_skipped():
    pytest.skip("no NVIDIA GPU here")

def test_that_fails():
    import os
    assert not os.environ.get("SHALL_FAIL"), "told to"
"""
BENCHMARK = '''
"""Counts to one. Needs a GPU, in principle."""
import argparse, json
parser = argparse.ArgumentParser()
parser.add_argument("bundle")
parser.add_argument("--out")
options = parser.parse_args()
json.dump({"counted": 1, "bundle": options.bundle}, open(options.out, "w"))
'''


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("project")
    files = {
        "tests/conftest.py": CONFTEST,
        "tests/test_scale.py": TEST,
        "tests/test_elsewhere.py": "import a_module_that_no_gpu_machine_has\nNOTE = 'pytest.mark.gpu'\n",
        "benchmarks/count.py": BENCHMARK,
        "benchmarks/without.py": '"""Runs anywhere."""\n',
        "pyproject.toml": '[tool.pytest.ini_options]\nmarkers = ["gpu: needs a GPU"]\n',
        "extra/hello.sh": "echo hello from {the} kit\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture(scope="module")
def kit(project: Path, sample_bundle: Path, native: Host, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("kit") / "kit"
    steps = (Step.parse("hello=bash extra/hello.sh"),)
    return make_kit(KitSettings(sample_bundle, project, out, native, PYTHON, include=(Path("extra"),), steps=steps))


def run(kit: Path, results: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """As on a bare machine: this interpreter's own packages and this checkout are out of sight."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    base = getattr(sys, "_base_executable", sys.executable)  # not the virtual environment's
    command = [base, str(kit / "run.py"), "--results", str(results), "--work", str(results.parent / "work")]
    return subprocess.run(command, env={**clean, **environment}, capture_output=True, text=True, cwd="/")


def test_kit_runs_everything_and_writes_down_what_came_out(kit: Path, tmp_path: Path) -> None:
    done = run(kit, tmp_path / "results.json")
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["passed"] is True
    assert [step["name"] for step in results["steps"]] == ["verify", "tests", "benchmark count", "hello"]
    tests = {test["name"].rpartition("::")[2]: test["outcome"] for test in results["steps"][1]["tests"]}
    assert tests == {
        "test_bundle_is_the_kits_own": "passed",
        "test_that_is_skipped": "skipped",
        "test_that_fails": "passed",
    }
    assert results["steps"][2]["results"]["counted"] == 1
    assert results["steps"][3]["output"] == "hello from {the} kit\n"
    assert results["machine"]["cpu"] == Host.native().cpu
    (wheel,) = (kit / "wheels").glob("apache_tvm_ffi-*")
    assert results["machine"]["versions"]["apache-tvm-ffi"] == wheel.name.split("-")[1]
    assert results["kit"]["bundle"]["name"] == "sample_kernels"


def test_kit_holds_the_cpp_demos_and_runs_them_where_there_is_a_compiler(
    project: Path, sample_bundle: Path, native: Host, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kit_module, "_fetch_wheels", _take_installed_tvm_ffi)
    shutil.copytree(project, tmp_path / "project")
    shutil.copytree(CPP_DEMO, tmp_path / "project" / "cpp_demo", ignore=shutil.ignore_patterns("__pycache__"))
    kernels = tmp_path / "project" / "cpp_demo" / "kernels" / "demo.py"
    kernels.write_text(re.sub(r"^ARCHS = .*$", 'ARCHS = ("sm_90a",)', kernels.read_text(), flags=re.MULTILINE))
    kit = make_kit(KitSettings(sample_bundle, tmp_path / "project", tmp_path / "kit", native, PYTHON, cache=cache))
    assert verify(kit / "cpp_demo" / "bundle") == []
    assert (kit / "aot_runtime" / "cmake" / "cute_aotConfig.cmake").is_file()
    plan = json.loads((kit / "kit.json").read_text())
    plan["steps"] = [step for step in plan["steps"] if step["name"] == "cpp_demo"]
    (kit / "kit.json").write_text(json.dumps(plan))

    paths = {"PYTHONPATH": str(Path(sysconfig.get_path("purelib"))), "PATH": os.environ["PATH"]}
    paths["CMAKE_BUILD_TYPE"] = "Debug"  # takes half of the time
    assert run(kit, tmp_path / "results.json", **paths, **search_path(hide_driver(tmp_path / "hidden"))).returncode == 0
    (step,) = json.loads((tmp_path / "results.json").read_text())["steps"]
    assert step["skipped"] == "skipped: there is no usable GPU, as the lines above say"
    for name in ("static_link", "dynamic_link", "open_at_run_time", "plain_c"):  # each was built, and said why
        assert f"exit : {name} 77" in step["output"]
    assert "refused: there is no NVIDIA driver on this machine" in step["output"]

    run(kit, tmp_path / "results.json", PATH=str(tmp_path))
    (step,) = json.loads((tmp_path / "results.json").read_text())["steps"]
    assert step["skipped"] == "not installed: cmake, cc, c++"


def demo_run(folder: Path, extension: int, **exit_codes: int) -> subprocess.CompletedProcess[str]:
    """``run_all.sh`` where the demos end with these codes: its tools are played by scripts."""
    tools = folder / "tools"
    tools.mkdir()
    programs = "".join(f'printf "exit %d" {code} > "$build/{name}"; chmod +x "$build/{name}"; '
                       for name, code in exit_codes.items())  # fmt: skip
    _script(tools / "cmake", f'[ "$1" = -S ] || exit 0; build=$4; mkdir -p "$build"; {programs}')
    _script(tools / "python", f'case "$*" in *check.py) exit {extension};; *) echo a place;; esac')
    command = ["sh", str(CPP_DEMO / "run_all.sh"), str(folder), str(folder / "build")]
    environment = {**os.environ, "CMAKE": str(tools / "cmake"), "PYTHON": str(tools / "python")}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def _script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("gpu", "torch", "code", "said"),
    [
        (0, 0, 0, "exit : extension 0"),
        (0, 77, 0, "left out: extension (the lines above say why); 4 demos passed"),
        (77, 77, 77, "skipped: there is no usable GPU, as the lines above say"),
        (1, 77, 1, "exit : extension 77"),
    ],
    ids=["all run", "torch is missing", "no GPU", "failures"],
)
def test_demos_say_what_was_left_out(tmp_path: Path, gpu: int, torch: int, code: int, said: str) -> None:
    names = ("static_link", "dynamic_link", "open_at_run_time", "plain_c")
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "demo_extension.so").touch()
    done = demo_run(tmp_path, torch, **dict.fromkeys(names, gpu))
    assert done.returncode == code, done.stderr
    *_, earlier, last = done.stdout.splitlines()
    assert said == (earlier if last == "left out: torch_package (no torch)" else last)


def _take_installed_tvm_ffi(settings: KitSettings, folder: Path) -> None:
    """The steps find it in this interpreter's packages."""
    folder.mkdir()


def test_kit_that_fails_says_so_and_finishes(kit: Path, tmp_path: Path) -> None:
    done = run(kit, tmp_path / "results.json", SHALL_FAIL="1")
    assert done.returncode == 1
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["passed"] is False
    failed = [test for test in results["steps"][1]["tests"] if test["outcome"] == "failure"]
    assert [test["name"].rpartition("::")[2] for test in failed] == ["test_that_fails"]
    assert "told to" in failed[0]["message"]
    assert results["steps"][-1]["name"] == "hello"


def test_kit_writes_nothing_into_its_own_folder(kit: Path, tmp_path: Path) -> None:
    before = sorted(kit.rglob("*"))
    run(kit, tmp_path / "results.json")
    assert sorted(kit.rglob("*")) == before


def test_kit_is_small_and_holds_what_it_needs(kit: Path) -> None:
    assert sum(path.stat().st_size for path in kit.rglob("*") if path.is_file()) < 60 << 20
    for name in (
        "run.py",
        "kit.json",
        "bundle/manifest.json",
        "aot_runtime/core/bundle.py",
        "aot_runtime/LICENSE",
        "aot_runtime/src/aot_open.c",
    ):
        assert (kit / name).is_file(), name
    assert not list(kit.rglob("__pycache__"))


def test_kit_for_another_machine_is_refused_there_with_a_sentence(kit: Path, tmp_path: Path) -> None:
    plan = json.loads((kit / "kit.json").read_text())
    for key, value, message in (
        ("host", "riscv64-linux-gnu", "this kit is for riscv64-linux-gnu, this machine is"),
        ("python", "3.9", f"this kit is for Python 3.9, this is {PYTHON}"),
    ):
        copy = tmp_path / key
        copy.mkdir()
        (copy / "run.py").write_bytes((kit / "run.py").read_bytes())
        (copy / "kit.json").write_text(json.dumps({**plan, key: value}))
        done = run(copy, tmp_path / "results.json")
        assert done.returncode == 2
        assert f"error: {message}" in done.stderr
        assert not (tmp_path / "results.json").exists()


def test_kit_for_another_host_holds_that_hosts_wheels(
    build_bundle: Callable[..., BuildResult], foreign: Host, native: Host, project: Path, tmp_path: Path
) -> None:
    result = build_bundle(EXAMPLE / "kernels", select=("clip",), hosts=(native, foreign))
    kit = make_kit(KitSettings(result.path, project, tmp_path / "kit", foreign, "3.12"))
    (tvm_ffi,) = (kit / "wheels").glob("apache_tvm_ffi-*.whl")
    assert "cp312" in tvm_ffi.name
    assert foreign.cpu in tvm_ffi.name
    assert [path.name for path in (kit / "bundle" / "lib").iterdir()] == [foreign.name]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"python": "three"}, "not a Python version: 'three'"),
        ({"include": (Path("nowhere"),)}, "nowhere` does not exist"),
        ({"project": Path("/")}, "has no tests"),
    ],
)
def test_wrong_settings_are_answered_with_a_sentence(
    change: dict[str, object], message: str, sample_bundle: Path, project: Path, native: Host, tmp_path: Path
) -> None:
    settings = {"bundle": sample_bundle, "project": project, "out": tmp_path / "kit", "host": native, "python": PYTHON}
    with pytest.raises(UsageError, match=message):
        make_kit(KitSettings(**{**settings, **change}))  # type: ignore[arg-type]
    assert not (tmp_path / "kit").exists()


def test_something_that_is_not_a_kit_is_not_replaced(sample_bundle: Path, project: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("")
    code = main([str(sample_bundle), "--project", str(project), "--out", str(tmp_path)])
    assert code == 2
    assert (tmp_path / "precious").exists()


def test_wheels_that_cannot_be_had_are_named_with_the_command(
    sample_bundle: Path, project: Path, native: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)  # wheels that this machine keeps elsewhere are not to be found
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    settings = KitSettings(sample_bundle, project, tmp_path / "kit", native, PYTHON, wheelhouse=tmp_path)
    with pytest.raises(BuildError, match="pip could not get the wheels") as raised:
        make_kit(settings)
    assert "run `pip download" in str(raised.value.hint)
    assert sorted(tmp_path.iterdir()) == []


def test_kit_beyond_the_limit_names_what_is_large(
    sample_bundle: Path, project: Path, native: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kit_module, "MAX_BYTES", 1 << 20)
    monkeypatch.setattr(kit_module, "_fetch_wheels", lambda settings, folder: _write(folder / "big.whl", 2 << 20))
    with pytest.raises(BuildError, match=r"the kit has \d MiB, 1 is the limit; largest: wheels/big\.whl \(2 MiB\)"):
        make_kit(KitSettings(sample_bundle, project, tmp_path / "kit", native, PYTHON))
    assert sorted(tmp_path.iterdir()) == []


def _write(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(size))


def test_step_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(UsageError, match="not a step: 'bash run'"):
        Step.parse("bash run")
