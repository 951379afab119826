"""Building for a host that this machine is not: its wheels, one compile for all hosts, the glibc floor, policy."""

from __future__ import annotations

import importlib.metadata
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection
from forging import accept
from places import EXAMPLE

from aot.binary.elf import read_shared_library
from aot.binary.objects import members
from aot.binary.policy import load_policies
from aot.bundle.verifying.verify import verify
from aot.cli.main import main
from aot.compile.messages import Compiled
from aot.errors import Failure, ToolchainError, UsageError
from aot.hosts import CPUS, DEFAULT_GLIBC, HIGHEST_GLIBC, LOWEST_GLIBC, Host, parse_glibc, parse_hosts
from aot.link import nvidia
from aot.link.nvidia import distributions, find_libraries
from aot.link.wheels import fetch_command
from aot.link.zig import Zig
from aot.pipeline.build import build
from aot.pipeline.events import Progress
from aot.pipeline.executing.executor import CompileJob
from aot.pipeline.settings import BuildResult, Settings

SAMPLE = EXAMPLE / "kernels"


class Counting(Progress):
    def __init__(self) -> None:
        self.compiled_variants: list[str] = []
        self.begun: list[str] = []
        self.libraries: list[tuple[str, int, int]] = []

    def begins(self, job: CompileJob) -> None:
        self.begun.append(job.variant)

    def linked(self, label: str, number: int, total: int) -> None:
        self.libraries.append((label, number, total))

    def compiled(self, job: CompileJob, outcome: Compiled | Failure) -> None:
        self.compiled_variants.append(job.variant)


@pytest.fixture(scope="module")
def both(
    cache: Path, native: Host, foreign: Host, tmp_path_factory: pytest.TempPathFactory
) -> tuple[BuildResult, Counting]:
    """One kernel for both hosts, and what was compiled for it."""
    counting = Counting()
    settings = Settings(
        str(SAMPLE), ("sm_90a",), out=tmp_path_factory.mktemp("both") / "b", name="b", select=("scale",), jobs=1,
        hosts=(native, foreign), cache=cache,
    )  # fmt: skip
    return build(settings, counting), counting


def test_one_compile_serves_all_hosts(both: tuple[BuildResult, Counting]) -> None:
    result, counting = both
    assert counting.begun == counting.compiled_variants  # one worker
    assert sorted(counting.compiled_variants) == ["scale__f16", "scale__f32"]
    assert {label for label, _, _ in counting.libraries} == {f"sm_90a scale for {cpu}" for cpu in CPUS}
    assert sorted((number, total) for _, number, total in counting.libraries) == [(1, 2), (2, 2)]
    assert set(result.manifest.hosts) == {"x86_64-linux-gnu", "aarch64-linux-gnu"}
    assert verify(result.path) == []


def test_libraries_are_for_the_machine_their_host_names(both: tuple[BuildResult, Counting]) -> None:
    for host in both[0].manifest.hosts:
        for library in (both[0].path / "lib" / host).rglob("*.so"):
            assert read_shared_library(library).machine == host.split("-")[0]


def test_library_under_another_hosts_name_is_refused(both: tuple[BuildResult, Counting], tmp_path: Path) -> None:
    """``verify`` applies each host's policy, on any host."""
    copy = tmp_path / "bundle"
    shutil.copytree(both[0].path, copy)
    name = "sm_90a/scale.so"
    shutil.copyfile(copy / "lib/x86_64-linux-gnu" / name, copy / "lib/aarch64-linux-gnu" / name)
    accept(copy)
    problems = verify(copy)
    assert problems
    assert all("aarch64-linux-gnu" in problem for problem in problems)
    assert f"lib/aarch64-linux-gnu/{name}: It is for x86_64; host aarch64-linux-gnu runs aarch64." in problems


def test_wheel_of_a_bundle_for_both_hosts_comes_for_each(
    both: tuple[BuildResult, Counting], make_wheels: Callable[..., list[Path]]
) -> None:
    for wheel in make_wheels(both[0].path):
        done = subprocess.run([sys.executable, "-m", "auditwheel", "show", str(wheel)], capture_output=True, text=True)
        said = " ".join(done.stdout.split())
        cpu = wheel.stem.partition("manylinux_2_28_")[2]
        assert f'platform tag: "manylinux_2_17_{cpu}"' in said, said + done.stderr


def test_old_glibc_is_a_floor_that_holds(build_bundle: Callable[..., BuildResult]) -> None:
    hosts = parse_hosts([], (2, 17))
    result = build_bundle(SAMPLE, ("sm_80",), select=("clip",), hosts=hosts)
    assert {record.glibc for record in result.manifest.hosts.values()} == {"2.17"}
    assert verify(result.path) == []


def test_no_host_means_this_one_and_all_means_every_one() -> None:
    assert parse_hosts([], (2, 28)) == (Host.native(),)
    assert [host.cpu for host in parse_hosts(["all"], (2, 28))] == list(CPUS)
    assert parse_hosts(["arm64,x86_64", "aarch64-linux-gnu"], (2, 31)) == (
        Host("aarch64", (2, 31)),
        Host("x86_64", (2, 31)),
    )


def test_glibc_floors_are_the_policys() -> None:
    for host, policy in load_policies().items():
        assert host.removesuffix("-linux-gnu") in CPUS
        assert (policy.glibc_default, policy.glibc_lowest) == (DEFAULT_GLIBC, LOWEST_GLIBC)


def test_newest_glibc_is_the_newest_that_zig_knows(cache: Path) -> None:
    """zig's list: a count, names that end with a zero, a count, versions of three bytes, the newest last."""
    content = Zig.find(cache / "zig").executable.with_name("lib").joinpath("libc/glibc/abilists").read_bytes()
    at = 1
    for _ in range(content[0]):
        at = content.index(0, at) + 1
    newest = at + 1 + 3 * (content[at] - 1)
    assert tuple(content[newest : newest + 2]) == HIGHEST_GLIBC


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "riscv64"], "unknown host: 'riscv64'"),
        (["--host", "amd"], "unknown host: 'amd'\n\nhint: did you mean `amd64`?"),
        (["--glibc", "new"], "not a glibc version: 'new'"),
        (["--glibc", "2.16"], "glibc 2.16 is too old\n\nhint: 2.17 to 2.44 are supported"),
        (["--glibc", "2.99"], "glibc 2.99 is not known\n\nhint: 2.17 to 2.44 are supported"),
    ],
)
def test_wrong_host_is_answered_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    out = tmp_path / "out"
    assert main(["build", "--kernels", str(SAMPLE), "--arch", "sm90", "--out", str(out), *arguments]) == 2
    assert f"error: {message}" in capsys.readouterr().err
    assert not out.exists()


def test_glibc_is_read_once_and_printed_back() -> None:
    assert Host("x86_64", parse_glibc("2.31")).glibc_text == "2.31"
    with pytest.raises(UsageError):
        parse_glibc("2.31.1")


# The other host's wheels.


@pytest.fixture
def names() -> tuple[str, str, str, str]:
    launch, runtime = distributions(12)
    return launch, importlib.metadata.version(launch), runtime, importlib.metadata.version(runtime)


def other(native: Host) -> Host:
    return Host({"x86_64": "aarch64", "aarch64": "x86_64"}[native.cpu])


def test_missing_wheel_is_named_with_the_command_that_fetches_it(
    native: Host, names: tuple[str, str, str, str], tmp_path: Path
) -> None:
    wheelhouse, host = tmp_path / "wheelhouse", other(native)
    with pytest.raises(ToolchainError) as raised:
        find_libraries(host, 12, tmp_path / "cache", wheelhouse)
    assert raised.value.message == f"`{wheelhouse}` holds no wheel of {names[0]} {names[1]} for {host}"
    command = " ".join(fetch_command(names[0], names[1], host, wheelhouse))
    assert raised.value.hint == f"fetch it: `pip {command}`"
    assert f"--dest {wheelhouse} {names[0]}=={names[1]}" in command
    assert not (tmp_path / "cache").exists()


def test_tampered_wheel_is_refused(native: Host, names: tuple[str, str, str, str], tmp_path: Path) -> None:
    host = other(native)
    wheel = tmp_path / f"{names[0].replace('-', '_')}-{names[1]}-cp312-cp312-manylinux_2_28_{host.cpu}.whl"
    wheel.write_bytes(b"not what NVIDIA published")
    with pytest.raises(ToolchainError, match="it is not the wheel that was tested") as raised:
        find_libraries(host, 12, tmp_path / "cache", tmp_path)
    assert str(wheel) in raised.value.message
    assert "delete it and fetch it again: `pip download" in str(raised.value.hint)
    assert not (tmp_path / "cache").exists()


def test_untested_version_is_refused_with_the_tested_ones(
    native: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvidia, "_installed_version", lambda name: "9.9")
    with pytest.raises(ToolchainError, match=r"no digest is recorded for nvidia-cutlass-dsl-libs-cu12 9\.9") as raised:
        find_libraries(other(native), 12, tmp_path, tmp_path)
    assert "nvidia-cutlass-dsl-libs-cu12-4.8.1" in str(raised.value.hint)


def test_fetch_that_fails_says_how_to_do_without_a_network(
    native: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(ToolchainError, match="pip could not fetch nvidia-cutlass-dsl-libs-cu12") as raised:
        find_libraries(other(native), 12, tmp_path / "cache")
    assert "then build with `--wheelhouse wheelhouse`" in str(raised.value.hint)
    assert not (tmp_path / "cache").exists()


def test_wheels_of_every_host_and_backend_are_pinned() -> None:
    pinned = json.loads(Path(nvidia.__file__).parents[1].joinpath("data/wheels.json").read_text())["sha256"]
    for cuda in (12, 13):
        for name in distributions(cuda):
            for cpu in CPUS:
                assert any(key.startswith(f"{name}-") and key.endswith(f"-{cpu}") for key in pinned), (name, cpu)


# What ends a process. NVIDIA's launch support asserts in one function, which no launcher may call: see llvm_ir.py.
ENDS_PROCESS = {"abort", "exit", "_exit", "_Exit", "quick_exit", "raise", "__assert_fail"}


def functions_that_call(content: bytes, names: set[str]) -> set[str]:
    """The functions of an object file that refer to one of the names."""
    if not any(f"\0{name}\0".encode() in content for name in names):
        return set()
    elf = ELFFile(io.BytesIO(content))
    symbols = elf.get_section_by_name(".symtab")
    functions = [symbol for symbol in symbols.iter_symbols() if symbol["st_info"]["type"] == "STT_FUNC"]
    found = set()
    for section in elf.iter_sections():
        if not isinstance(section, RelocationSection):
            continue
        for relocation in section.iter_relocations():
            if symbols.get_symbol(relocation["r_info_sym"]).name not in names:
                continue
            at = relocation["r_offset"]
            inside = [
                symbol.name
                for symbol in functions
                if symbol["st_shndx"] == section["sh_info"]
                and symbol["st_value"] <= at < symbol["st_value"] + symbol["st_size"]
            ]
            found.update(inside or [f"{section.name}+{at}"])
    return found


def test_only_one_function_of_nvidias_ends_the_process(native: Host, foreign: Host, cache: Path) -> None:
    for host in (native, foreign):
        libraries = find_libraries(host, 12, cache)
        archives = [libraries.launch_support, libraries.cudart_static, libraries.culibos]
        calls = {
            name
            for archive in archives
            if archive is not None
            for _, content in members(archive.read_bytes())
            for name in functions_that_call(content, ENDS_PROCESS)
        }
        assert calls == {"cuda_dialect_assert_success"}, host
