"""Compiling on a real Dask cluster of processes: same bytes, workers may be lost, other workers are refused."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from aot_runtime.arch import Arch
from certificates import make_certificates

from aot.errors import UsageError
from aot.pipeline.address import Address
from aot.pipeline.executing.executor import CompileJob
from aot.pipeline.executing.orders import Artifact, receive
from aot.versions import install_extras

LONGEST = 300  # seconds: a build that hangs is a failure, not a wait for ever

# Each compile notes that it began; those that are told to wait do so until the file "go" is there.
KERNEL = """
import os, time
from pathlib import Path
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
import aot

HERE = Path(__file__).parent

class Launch:
    def __init__(self, n):
        self.n = n
    @cute.jit
    def __call__(self, out: cute.Tensor, stream: CUstream):
        self._begin()
        write(out).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)
    def _begin(self):
        begun = HERE / "begun" / str(self.n)
        begun.mkdir(parents=True, exist_ok=True)
        (begun / str(os.getppid())).touch()
        while (HERE / "wait").exists():
            time.sleep(0.05)

@cute.kernel
def write(out: cute.Tensor):
    out[cute.arch.thread_idx()[0]] = out.element_type(1)

@aot.kernel(parameters=(aot.Out("out", shape="out.shape", dtype="out.dtype"),), archs=("sm_80", "sm_90a"),
            axes={"n": (32, 64, 96)})
def fill(target, n):
    return aot.Spec(Launch(n), {"out": aot.Tensor("f32", (n,)), "stream": aot.Stream()})
"""


@dataclass(frozen=True)
class Dask:
    """A process of Dask, and the file with what it says."""

    process: subprocess.Popen[bytes]
    log: Path

    @classmethod
    def start(cls, *arguments: str, folder: Path, **environment: str) -> Dask:
        log = folder / f"{arguments[0]}-{time.monotonic_ns()}.log"
        with log.open("wb") as said:
            command, variables = [sys.executable, "-m", "dask", *arguments], {**os.environ, **environment}
            return cls(subprocess.Popen(command, cwd=folder, stdout=said, stderr=said, env=variables), log)

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until it has said this: a build gives a cluster a few seconds only."""
        while (found := re.search(pattern, self.log.read_text())) is None:
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.1)
        return found


class Cluster:
    """A scheduler and its workers, each a process."""

    def __init__(self, folder: Path, *tls: str) -> None:
        self.folder, self.tls = folder, tls
        options = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
        options += ["--protocol", "tls", *tls] if tls else []
        scheduler = Dask.start("scheduler", *options, folder=folder)
        self.processes = [scheduler.process]
        self.port = int(scheduler.wait_for(r"Scheduler at: +t(?:cp|ls)://127\.0\.0\.1:(\d+)")[1])
        self.url = f"{'tls' if tls else 'dask'}://127.0.0.1:{self.port}"

    def add_worker(self, *arguments: str, **environment: str) -> Dask:
        address = f"{'tls' if self.tls else 'tcp'}://127.0.0.1:{self.port}"
        options = ["--no-nanny", "--nthreads", "1", "--no-dashboard", "--host", "127.0.0.1", *self.tls]
        worker = Dask.start("worker", address, *options, *arguments, folder=self.folder, **environment)
        self.processes.append(worker.process)
        return worker

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A scheduler; tests start the workers that they need, and end them."""
    cluster = Cluster(tmp_path_factory.mktemp("dask"))
    yield cluster
    cluster.close()


@contextmanager
def workers(
    cluster: Cluster, count: int, *arguments: str, **environment: str
) -> Iterator[list[subprocess.Popen[bytes]]]:
    started = [cluster.add_worker(*arguments, **environment) for _ in range(count)]
    try:
        for worker in started:
            worker.wait_for("Registered to:")
        yield [worker.process for worker in started]
    finally:
        for worker in started:
            worker.process.kill()
            worker.process.wait()


class Project:
    """Kernels, and builds of them through the command line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "kernels").mkdir()
        (folder / "kernels" / "fill.py").write_text(KERNEL)

    def start(self, out: str, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "aot", "build", "--name", "bundle", "--cudart", "shared", "--no-archives"]
        command += ["--out", out, "--jobs", "2", "--cache", "none", *arguments]
        return subprocess.Popen(command, cwd=self.folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)

    def build(self, out: str, *arguments: str) -> tuple[int, str]:
        process = self.start(out, *arguments)
        _, said = process.communicate(timeout=LONGEST)
        return process.returncode, said

    def contents(self, out: str) -> dict[str, bytes]:
        bundle = self.folder / out
        return {str(path.relative_to(bundle)): path.read_bytes() for path in bundle.rglob("*") if path.is_file()}

    def begun(self) -> dict[str, set[int]]:
        """Processes that began to compile, by variant."""
        folders = (self.folder / "kernels" / "begun").glob("*")
        return {folder.name: {int(path.name) for path in folder.iterdir()} for folder in folders}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_a_worker_killed_in_the_middle_costs_nothing_and_the_bytes_are_those_of_a_local_build(
    cluster: Cluster, project: Project
) -> None:
    archs = ("--arch", "sm80,sm90")
    assert project.build("local", *archs)[0] == 0
    local = project.begun()
    (project.folder / "kernels" / "wait").touch()
    with workers(cluster, 2) as (victim, other):
        process = project.start("remote", *archs, "--executor", cluster.url)
        while not any(victim.pid in pids for pids in project.begun().values()):
            assert process.poll() is None
            time.sleep(0.1)
        (lost,) = [variant for variant, pids in project.begun().items() if victim.pid in pids]
        os.kill(victim.pid, signal.SIGKILL)
        (project.folder / "kernels" / "wait").unlink()
        _, said = process.communicate(timeout=LONGEST)
    assert process.returncode == 0, said
    assert said.count(": FAILED") == 0
    assert len(re.findall(r"\[\d/6\] sm_", said)) == 6
    begun = {variant: pids - local[variant] for variant, pids in project.begun().items()}
    assert begun[lost] >= {victim.pid, other.pid}  # what the lost one was at was begun again
    assert project.contents("remote") == project.contents("local")


def test_a_damaged_artifact_is_asked_for_again_and_a_kernel_that_crashes_fails_alone(
    cluster: Cluster, project: Project
) -> None:
    bad = KERNEL.replace("def fill(", "def bad(").replace("self._begin()", "os.kill(os.getpid(), 11)")
    (project.folder / "kernels" / "bad.py").write_text(bad)
    damage = project.folder / "damage.py"
    damage.write_text(DAMAGE)
    with workers(cluster, 1, "--preload", str(damage), DAMAGED=str(project.folder / "damaged")):
        code, said = project.build("remote", "--arch", "sm90", "--executor", cluster.url)
    assert (project.folder / "damaged").exists()
    assert len(re.findall(r"sm_90a fill__n\d+: [\d.]+ s", said)) == 3
    assert re.search(r"failed: sm_90a bad__n\d+ and 2 more \(sm_90a\): the compiler was ended by SIGSEGV", said), said
    assert code == 1


DAMAGE = """
import os
from pathlib import Path
from aot.pipeline.executing import orders

def once_damaged(*arguments):
    artifact, mark = orders.make_whole(*arguments), Path(os.environ["DAMAGED"])
    if mark.exists():
        return artifact
    mark.touch()
    return orders.Artifact(artifact.sha256, artifact.content[:-1] + bytes([artifact.content[-1] ^ 1]))

if not hasattr(orders, "make_whole"):  # Dask loads this twice
    orders.make_whole, orders.make_artifact = orders.make_artifact, once_damaged
"""


def test_a_scheduler_that_is_lost_is_named_and_no_bundle_is_left(project: Project) -> None:
    cluster = Cluster(project.folder)
    (project.folder / "kernels" / "wait").touch()
    with workers(cluster, 1):
        process = project.start("remote", "--arch", "sm90", "--executor", cluster.url)
        while not project.begun():
            assert process.poll() is None
            time.sleep(0.1)
        cluster.close()
        _, said = process.communicate(timeout=LONGEST)
    assert process.returncode == 1
    assert f"error: lost the Dask scheduler at tcp://127.0.0.1:{cluster.port}" in said
    assert "Traceback" not in said, said
    assert not (project.folder / "remote").exists()


def test_a_worker_with_other_versions_is_refused_before_anything_is_compiled(
    cluster: Cluster, project: Project
) -> None:
    other = project.folder / "other"
    (other / "nvidia_cutlass_dsl-9.9.9.dist-info").mkdir(parents=True)
    with workers(cluster, 1, PYTHONPATH=str(other)):
        code, said = project.build("remote", "--arch", "sm90", "--executor", cluster.url)
    assert code == 1
    assert re.search(
        r"the Dask worker tcp://\S+ would compile other code: nvidia-cutlass-dsl 9\.9\.9 there, 4\S+ here", said
    )
    assert "hint: install the same versions on both" in said
    assert project.begun() == {}


def test_a_worker_with_another_source_is_refused_and_what_differs_is_named(cluster: Cluster, project: Project) -> None:
    kernel = project.folder / "kernels" / "fill.py"
    kernel.write_text(kernel.read_text() + "\nos.environ.get('TUNING')\n")
    with workers(cluster, 1, TUNING="other"):
        code, said = project.build("remote", "--arch", "sm90", "--executor", cluster.url)
    assert code == 1
    assert "the environment variable TUNING is 'other' there, None here" in said
    assert "Traceback" not in said


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    (folder / "dask.toml").write_text('ca = "ca.pem"\ncert = "cert.pem"\nkey = "key.pem"\n')
    return folder


def test_a_cluster_with_tls_compiles_for_holders_of_its_certificates_alone(
    certificates: Path, project: Project, tmp_path: Path
) -> None:
    names = {"--tls-ca-file": "ca.pem", "--tls-cert": "cert.pem", "--tls-key": "key.pem"}
    options = [text for option, name in names.items() for text in (option, str(certificates / name))]
    own = ["--arch", "sm90", "--kernel", "fill", "--dask-security", str(certificates / "dask.toml"), "--executor"]
    cluster = Cluster(project.folder, *options)
    try:
        with workers(cluster, 1):
            code, said = project.build("remote", *own, cluster.url)
            assert code == 0, said
            assert len(re.findall(r"\[\d/3\] sm_90a", said)) == 3
            # Another authority's certificate, and no certificate at all.
            (tmp_path / "others").mkdir()
            make_certificates(tmp_path / "others")
            shutil.copy(certificates / "dask.toml", tmp_path / "others")
            other = [*own[:-2], str(tmp_path / "others" / "dask.toml"), "--executor"]
            plain = [*own[:4], "--executor", cluster.url.replace("tls", "dask")]
            # Both wait for an answer that does not come, at the same time.
            refused = {"refused_as_other": [*other, cluster.url], "refused_as_plain": plain}
            started = [project.start(out, *arguments) for out, arguments in refused.items()]
            for process in started:
                _, said = process.communicate(timeout=LONGEST)
                assert process.returncode == 2, said
                assert "error: no Dask scheduler answers at" in said
                assert "Traceback" not in said
    finally:
        cluster.close()
    assert not any((project.folder / out).exists() for out in refused)


def test_a_scheduler_that_is_not_there_is_named(project: Project) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        code, said = project.build(
            "remote", "--arch", "sm90", "--executor", f"dask://127.0.0.1:{free.getsockname()[1]}"
        )
    assert code == 2
    assert re.search(r"error: no Dask scheduler answers at tcp://127\.0\.0\.1:\d+", said)
    assert "hint: start one with `dask scheduler`" in said


def test_without_dask_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from aot.pipeline.executing.dask import DaskExecutor

    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError) as caught:
        DaskExecutor.connect(Address("127.0.0.1", 1))
    assert caught.value.hint == install_extras("dask")


def test_bytes_that_are_not_those_that_were_sent_are_not_used(tmp_path: Path) -> None:
    job = CompileJob(Arch.parse("sm_90a"), "k", "k", tmp_path / "k.ll", tmp_path / "k.log")
    assert receive(job, Artifact("0" * 64, b"other")) is None
    assert list(tmp_path.iterdir()) == []
