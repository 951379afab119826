"""A build that is killed at any moment loses nothing: the old bundle stays whole, the next build goes on."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from written import FILL

from aot.bundle.manifest import Manifest
from aot.bundle.verifying.verify import verify
from aot.files import owned_directory, sweep

KILLS = 6  # of the command with its compiler and linker; test_faults.py kills the build itself at each of its steps
LONGEST = 2.2  # seconds until a kill: about a build, most of which is starting up


class Project:
    """A kernel file, a bundle and a cache, built through the command line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "out" / "bundle"
        self.started: list[subprocess.Popen[str]] = []

    def write(self, value: int, variants: int = 2) -> None:
        text = FILL.replace("VALUE", str(value)).replace("VARIANTS", str(variants))
        (self.folder / "fill.py").write_text(text)

    def start(
        self, *arguments: str, arch: str = "sm90", handles: int | None = None, whole: bool = False
    ) -> subprocess.Popen[str]:
        """Begin a build. A whole one has archives and the CUDA runtime in it too, which takes a second longer."""
        command = [sys.executable, "-m", "aot", "build", "--kernels", "fill.py", "--name", "bundle", "--arch", arch]
        command += ["--out", str(self.out), "--cache", str(self.folder / "cache"), "--jobs", "1", *arguments]
        command += [] if whole else ["--cudart", "shared", "--no-archives"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
        environment["TMPDIR"] = str(self.folder / "tmp")
        (self.folder / "tmp").mkdir(exist_ok=True)
        if handles is not None:
            command = ["bash", "-c", f'ulimit -n {handles}; exec "$@"', "bash", *command]
        process = subprocess.Popen(
            command, cwd=self.folder, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
            start_new_session=True,
        )  # fmt: skip
        self.started.append(process)
        return process

    def end(self) -> None:
        """End what a test that failed has left running."""
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()

    @staticmethod
    def read_until(process: subprocess.Popen[str], text: str, times: int = 1) -> None:
        """Read what the build says until it has said this that many times."""
        assert process.stderr is not None
        seen = ""
        while seen.count(text) < times:
            line = process.stderr.readline()
            assert line, f"the build ended before it said {text!r}: {seen}"
            seen += line

    def build(self, whole: bool = False) -> str:
        process = self.start(whole=whole)
        _, said = process.communicate()
        assert process.returncode == 0, said
        return said


@pytest.fixture(autouse=True)
def _heard_interrupts() -> Iterator[None]:
    """A shell's background jobs, as these tests may be, do not hear them, nor what they start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path)
    yield project
    project.end()


def test_killed_at_any_moment_the_bundle_is_whole_and_the_next_build_completes(project: Project) -> None:
    chance = random.Random(2026)
    project.write(1)
    project.build(whole=True)
    for kill in range(KILLS):
        project.write(1 + kill % 3)
        process = project.start(whole=True)
        time.sleep(chance.uniform(0, LONGEST))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert verify(project.out) == []
    project.write(1)
    project.build(whole=True)
    assert verify(project.out) == []
    assert [path.name for path in project.out.parent.iterdir()] == ["bundle"]
    assert list((project.folder / "tmp").glob("aot-*")) == []  # CuTe DSL has a folder of its own there


def test_the_workers_of_a_killed_build_end_though_their_work_never_does(project: Project) -> None:
    (project.folder / "fill.py").write_text(
        "import os, time\nfrom pathlib import Path\n"
        'Path("at.part").write_text(str(os.getpid()))\nos.rename("at.part", "at")\ntime.sleep(3600)\n'
    )
    process = project.start()
    while not (project.folder / "at").exists():
        assert process.poll() is None
        time.sleep(0.05)
    worker = int((project.folder / "at").read_text())
    process.kill()  # it alone, as for want of memory
    process.communicate()
    _wait_until_ended(lambda: _is_running(worker), "the worker outlives its build")


def _wait_until_ended(running: Callable[[], object], otherwise: str) -> None:
    for _ in range(600):
        if not running():
            return
        time.sleep(0.1)
    raise AssertionError(otherwise)


def _members(group: int) -> list[int]:
    """The processes of a group that have not ended."""
    processes = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [process for process in processes if _stat(process)[2:3] == [str(group)] and _is_running(process)]


def _stat(process: int) -> list[str]:
    """What /proc says of a process, from its state on; nothing if it is gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _is_running(process: int) -> bool:
    return _stat(process)[:1] not in ([], ["Z"])  # Z: ended, and not yet buried by whoever it was left to


def test_what_a_killed_build_had_compiled_is_not_compiled_again(project: Project) -> None:
    project.write(1, variants=6)
    process = project.start()
    project.read_until(process, "sm_90a fill__", times=3)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    said = project.build()
    found = re.search(r"(\d) of 6 variants are in the cache", said)
    assert found is not None, said
    assert int(found[1]) >= 3
    assert said.count("sm_90a fill__") == 6 - int(found[1])


def test_interrupted_one_line_says_what_is_kept_and_workers_end(project: Project) -> None:
    project.write(1, variants=200)  # more than it gets done before it hears of it
    process = project.start()
    project.read_until(process, "sm_90a fill__")
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130, said
    (line,) = [line for line in said.splitlines() if "interrupted" in line]
    assert re.fullmatch(
        r"interrupted: \d+ compiled variants? (is|are) kept in `.*`; the next build goes on from there", line
    )
    assert "FAILED" not in said
    _wait_until_ended(lambda: _members(process.pid), "workers outlive their build")
    assert not project.out.exists()


def test_two_builds_into_one_directory_at_once_both_succeed_and_leave_one_whole_bundle(project: Project) -> None:
    project.write(1)
    first = project.start()
    project.read_until(first, "fill__")  # it has read the source
    project.write(2)
    second = project.start()
    for process in (first, second):
        _, said = process.communicate()
        assert process.returncode == 0, said
    assert verify(project.out) == []
    assert [path.name for path in project.out.parent.iterdir()] == ["bundle"]


def test_builds_that_add_to_one_new_directory_take_turns_and_both_results_are_there(project: Project) -> None:
    text = FILL.replace("VALUE", "1").replace("VARIANTS", "1").replace('("sm_90a",)', '("sm_80", "sm_90a")')
    wait = "import time\nfrom pathlib import Path\nPath('read').touch()\nwhile not Path('go').exists():\n    time.sleep(0.05)\n"
    (project.folder / "fill.py").write_text(wait + text)
    first = project.start("--add", arch="sm80")
    while not (project.folder / "read").exists():
        assert first.poll() is None
        time.sleep(0.05)
    second = project.start("--add", arch="sm90")
    line = second.stderr.readline()  # type: ignore[union-attr]
    assert line.endswith(f"warning: another process is writing `{project.out}`; waiting until it is done\n")
    third = project.start("--no-wait")
    _, said = third.communicate()
    assert third.returncode == 1
    assert f"error: another process is writing `{project.out}`" in said
    (project.folder / "go").touch()
    for process in (first, second):
        _, said = process.communicate()
        assert process.returncode == 0, said
    assert verify(project.out) == []
    assert [str(arch) for arch in Manifest.read(project.out).kernels["fill"].archs] == ["sm_80", "sm_90a"]
    assert [path.name for path in project.out.parent.iterdir()] == ["bundle"]


@pytest.mark.parametrize("handles", [8, 12])  # too few to start a worker, and to run the linker
def test_a_build_without_file_handles_says_so_and_leaves_nothing(project: Project, handles: int) -> None:
    project.write(1)
    process = project.start(handles=handles)
    _, said = process.communicate()
    assert process.returncode == 1
    assert "hint: file handles ran out; raise the limit (`ulimit -n`)" in said
    assert "Traceback" not in said
    assert not project.out.exists()


def test_only_directories_without_an_owner_are_swept(tmp_path: Path) -> None:
    left = Path(tempfile.mkdtemp(prefix="build-", dir=tmp_path))
    (left / "file").write_text("half")
    other = tmp_path / "mine"
    other.mkdir()
    with owned_directory(tmp_path, prefix="build-") as owned:
        assert sweep(tmp_path, prefix="build-") == [left]
        assert sorted(tmp_path.iterdir()) == sorted([owned, other])
    assert list(tmp_path.iterdir()) == [other]


def test_a_directory_that_is_swept_before_its_owner_has_it_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def make_and_sweep_the_first(**named: Any) -> str:
        made.append(make(**named))
        if len(made) == 1:
            assert sweep(tmp_path, prefix="build-") == [Path(made[0])]
        return made[-1]

    make = tempfile.mkdtemp
    monkeypatch.setattr(tempfile, "mkdtemp", make_and_sweep_the_first)
    with owned_directory(tmp_path, prefix="build-") as owned:
        assert [str(owned)] == made[1:]
        assert owned.is_dir()
