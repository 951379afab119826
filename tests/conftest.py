"""Fixtures that many tests share: the stand-in for CUDA, and a bundle that runs against it."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from without_frameworks import ALLOWED  # before anything imports TVM-FFI, and that torch

# isort: split
import aot_runtime
import hypothesis
import platformdirs
import pytest
from once import once
from standin import Standin

from aot.binary import disassembly, policy
from aot.binary.elf import SharedLibrary
from aot.hosts import Host
from aot.link.zig import Zig
from aot.pipeline.build import build
from aot.pipeline.settings import BuildResult, Settings

pytest_plugins = ["cpu_times", "longest_first", "packaged", "shared", "warm_workers", "with_frameworks"]

# No test looks at a clock: machines that build are busy.
hypothesis.settings.register_profile(
    "project", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.load_profile("project")

# Tests of the cache name one of their own; the others build as if for the first time.
os.environ["AOT_CACHE"] = "none"

# zig's caches take seconds to fill. They hold nothing of ours, so that tests with a cache of their own share them.
for _kind in ("global", "local"):
    os.environ.setdefault(
        f"ZIG_{_kind.upper()}_CACHE_DIR", str(Path(platformdirs.user_cache_dir("cute-aot")) / "zig" / _kind)
    )

# Programs that the extra for tests installs, as cmake, lie beside this interpreter; a system's own go first.
os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])


@lru_cache(maxsize=256)
def _beyond_baseline(library: SharedLibrary, guards: tuple[disassembly.Guard, ...]) -> list[disassembly.Violation]:
    return disassembly.beyond_baseline(library, guards)


@pytest.fixture(scope="session", autouse=True)
def _instructions_are_read_once() -> Iterator[None]:
    """A process disassembles a library once, since the result depends on its content alone.

    Most bundles of the tests contain the same CUDA runtime, and its 128,000 instructions take the better part of a second.
    """

    def remembered(library: SharedLibrary, guards: Iterable[disassembly.Guard] = ()) -> list[disassembly.Violation]:
        return list(_beyond_baseline(replace(library, path=""), tuple(guards)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy, "beyond_baseline", remembered)
        yield


@lru_cache(maxsize=16)
def _files_of(*folders: Path) -> bytes:
    """A digest of all files of folders."""
    files = sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())
    return hashlib.sha256(b"".join(hashlib.sha256(path.read_bytes()).digest() for path in files)).digest()


@pytest.fixture(scope="session", autouse=True)
def _the_runtime_is_compiled_once(run_folder: Path) -> Iterator[None]:
    """A run compiles each C source of the runtime once for a host, since every bundle of the tests has the same objects.

    There are twenty, and even what zig finds in its own cache takes it a twentieth of a second.
    """
    compile_c = Zig.compile_c
    objects: dict[str, bytes] = {}

    def remembered(zig: Zig, host: Host, source: Path, output: Path, includes: Sequence[Path], **flags: bool) -> None:
        folder = aot_runtime.native.source_directory()
        if not source.is_relative_to(folder):
            return compile_c(zig, host, source, output, includes, **flags)
        asked = zig.executable, host, source, includes, flags, _files_of(folder, aot_runtime.native.include_directory())
        key = hashlib.sha256(repr(asked).encode()).hexdigest()
        if key not in objects:
            made = once(
                run_folder / "objects" / f"{key}.o", lambda path: compile_c(zig, host, source, path, includes, **flags)
            )
            objects[key] = made.read_bytes()
        output.write_bytes(objects[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Zig, "compile_c", remembered)
        yield


@pytest.fixture(scope="session")
def cache() -> Path:
    """Where the command line keeps its caches too: zig's costs some seconds to fill."""
    return Path(platformdirs.user_cache_dir("cute-aot"))


@pytest.fixture(scope="session")
def builder(
    cache: Path, artifacts_of_run: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., BuildResult]:
    """Build a bundle with the settings given, into a place of its own.

    Kernels that another test of this run has compiled come from the run's artifacts. A test of what compiling does
    passes ``artifacts=None``, and builds as if for the first time. A second worker needs a second to import CuTe DSL, as long
    as three variants take to compile: only builds of many variants ask for one.
    """

    def run(kernels: str | Path, archs: tuple[str, ...] = ("sm_90a",), **settings: object) -> BuildResult:
        out = settings.pop("out", None) or tmp_path_factory.mktemp("bundle") / "bundle"
        given = {"name": "bundle", "artifacts": artifacts_of_run, "jobs": 1, **settings}
        return build(Settings(str(kernels), archs, out=Path(str(out)), cache=cache, **given))  # type: ignore[arg-type]

    return run


@pytest.fixture(scope="session")
def build_bundle(builder: Callable[..., BuildResult]) -> Callable[..., BuildResult]:
    """See ``builder``. A test file may have a fixture of this name with other settings; shared bundles do not take it."""
    return builder


@pytest.fixture
def ends() -> Iterator[None]:
    """For what must neither wait nor run for ever: after five minutes the test fails, and the rest of the run goes on."""

    def give_up(number: int, frame: object) -> None:
        pytest.fail("this did not end within five minutes")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(300)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of half a megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)]
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small file system: {mounted.stderr.strip()}")
    yield disk
    # Lazily: a process that the test ended may still be leaving.
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.fixture
def read_only() -> Iterator[Callable[[Path], None]]:
    """Makes a folder read-only, even for root."""
    mounted: list[Path] = []

    def mount(folder: Path) -> None:
        if os.geteuid() != 0:
            pytest.skip("only root can mount a folder read-only")
        for options in (["--bind", str(folder), str(folder)], ["-o", "remount,bind,ro", str(folder)]):
            done = subprocess.run(["mount", *options], capture_output=True, text=True)
            if done.returncode != 0:
                pytest.skip(f"cannot mount a folder read-only: {done.stderr.strip()}")
            mounted.append(folder)

    yield mount
    for folder in dict.fromkeys(mounted):
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture(scope="session")
def standin_process(standin_directory: Path) -> Standin:
    """The stand-in in this process. If real CUDA is here already, its tests fail: skipping them would hide hundreds."""
    return Standin.load(standin_directory)


@pytest.fixture(scope="session", autouse=True)
def _no_real_cuda(request: pytest.FixtureRequest) -> None:
    """The stand-in is there before the first test, so that none can open the real driver, as `aot doctor` would."""
    if not ALLOWED:
        request.getfixturevalue("standin_process")


@pytest.fixture
def cuda(standin_process: Standin) -> Iterator[Standin]:
    """A machine with one device of capability 9.0; ``cuda.reset`` makes it another."""
    standin_process.reset(capabilities=[(9, 0)])
    yield standin_process
    standin_process.reset(capabilities=[(9, 0)])


@pytest.fixture(scope="session")
def bundle(standin_process: Standin, standin_bundle_path: Path) -> aot_runtime.Bundle:
    """The test kernels, loaded once. Devices are asked once per process: see ``fresh_bundle``."""
    return aot_runtime.load(standin_bundle_path)


@pytest.fixture
def fresh_bundle(cuda: Standin, standin_bundle_path: Path, tmp_path: Path) -> Callable[..., aot_runtime.Bundle]:
    """A bundle that nothing has used yet, on a machine with devices of those capabilities.

    A bundle asks each device once per process, so that a test with devices of its own takes a copy.
    """

    def make(*capabilities: tuple[int, int], verify: bool = True) -> aot_runtime.Bundle:
        cuda.reset(capabilities=capabilities or [(9, 0)])
        copy = tmp_path / "bundle"
        shutil.copytree(standin_bundle_path, copy)
        return aot_runtime.load(copy, verify=verify)

    return make
