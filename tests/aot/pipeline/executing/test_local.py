"""Compiling in processes of this machine: what becomes of the jobs where there is no room for all workers."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from aot_runtime.arch import Arch

from aot.compile.messages import Compiled, Options
from aot.compile.process import resident_bytes
from aot.errors import BuildError, Failure
from aot.pipeline.executing.executor import CompileJob, Session
from aot.pipeline.executing.local import LocalExecutor, _Queue

ARCH = Arch.parse("sm_90a")
SESSION = Session("kernels", Options())
GIGABYTE = 1 << 30


class FakeWorker:
    """Stands for a process: takes the memory that a variant's name says, until it is ended.

    It goes on when its memory is asked for the second time: then nobody has ended it for what it took the first time.
    """

    def __init__(self, arch: Arch) -> None:
        self.arch, self.spent, self.size, self.looks, self.reason = arch, False, 0, 0, ""
        self.changed = threading.Condition()

    def compile(self, kernel: str, variant: str, launcher: Path, log: Path) -> Compiled | Failure:
        with self.changed:
            self.size, self.looks = int(variant) * GIGABYTE, 0
            while self.size and not self.reason and self.looks < 2:
                self.changed.wait()
        return Failure(variant, self.reason) if self.reason else Compiled(variant, (), (), 0, 0.0)

    def resident_bytes(self) -> int:
        with self.changed:
            self.looks += 1
            self.changed.notify_all()
            return self.size

    def end(self, reason: str) -> None:
        with self.changed:
            self.reason = reason
            self.changed.notify_all()

    def alive(self) -> bool:
        return not self.reason

    def close(self) -> None: ...


def run(executor: LocalExecutor, *variants: str) -> dict[str, Compiled | Failure]:
    outcomes: dict[str, Compiled | Failure] = {}
    jobs = [CompileJob(ARCH, "k", variant, Path("k.ll"), Path("k.log")) for variant in variants]
    executor.compile(SESSION, jobs, lambda job, outcome: outcomes.__setitem__(job.variant, outcome))
    return outcomes


def job(variant: str, group: str = "", arch: Arch = ARCH) -> CompileJob:
    return CompileJob(arch, "k", variant, Path("k.ll"), Path("k.log"), group=group)


def test_a_worker_goes_on_with_jobs_that_may_share_code() -> None:
    queue = _Queue.of([job("a0", "a"), job("b0", "b"), job("a1", "a"), job("b1", "b"), job("c")])
    first = queue.take(None)
    second = queue.take(ARCH)
    assert first is not None and second is not None
    assert (first.variant, second.variant, len(queue)) == ("a0", "b0", 3)
    more = [queue.take(ARCH, first), queue.take(ARCH, second), queue.take(ARCH, first), queue.take(ARCH, second)]
    assert [item.variant if item else None for item in more] == ["a1", "b1", "c", None]


def test_a_worker_without_jobs_helps_with_those_of_another_and_keeps_to_its_architecture() -> None:
    other = Arch.parse("sm_80")
    queue = _Queue.of([job("a0", "a"), job("a1", "a"), job("a2", "a"), job("b0", "b", other), job("b1", "b", other)])
    first = queue.take(None)
    assert first is not None and first.variant == "a0"
    helped = queue.take(None)
    assert helped is not None and helped.variant == "b0"
    taken = [queue.take(ARCH), queue.take(ARCH, first), queue.take(ARCH)]
    assert [item.variant if item else None for item in taken] == ["a1", "a2", "b1"]
    queue.put_back(first)
    assert queue.take(ARCH) == first
    assert queue.take(ARCH) is None


def no_handles() -> OSError:
    return OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_a_build_goes_on_with_the_workers_that_the_system_lets_it_start() -> None:
    started = []

    def start(arch: Arch) -> FakeWorker:
        started.append(arch)
        if len(started) > 1:
            raise no_handles()
        return FakeWorker(arch)

    outcomes = run(LocalExecutor(start, jobs=4), *["0", "00", "000", "0000"])  # type: ignore[arg-type]
    assert all(isinstance(outcome, Compiled) for outcome in outcomes.values())
    assert len(outcomes) == 4


def test_where_no_worker_can_be_started_the_reason_is_named() -> None:
    def start(arch: Arch) -> FakeWorker:
        raise no_handles()

    with pytest.raises(BuildError, match="cannot start a worker: Too many open files") as caught:
        run(LocalExecutor(start, jobs=2), "0")  # type: ignore[arg-type]
    assert caught.value.hint is not None
    assert "ulimit -n" in caught.value.hint


@pytest.fixture
def own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process itself takes nothing, and its workers what they say."""
    monkeypatch.setattr("aot.pipeline.executing.local.resident_bytes", lambda process, alone: 0)


@pytest.mark.usefixtures("own_memory")
def test_a_job_beyond_its_share_is_tried_again_alone_with_all_of_the_memory() -> None:
    executor = LocalExecutor(FakeWorker, jobs=4, memory=8 * GIGABYTE)  # type: ignore[arg-type]
    assert executor.workers == 4
    outcomes = run(executor, "1", "5", "9", "01")  # gigabytes; a share is 2, all are 8
    assert {variant for variant, outcome in outcomes.items() if isinstance(outcome, Compiled)} == {"1", "01", "5"}
    failure = outcomes["9"]
    assert isinstance(failure, Failure)
    assert failure.message == "took 9216 MB, its share of `--memory` is 8192 MB"


def memory_of_children() -> int:
    """Without that of this process itself, which shrinks if garbage is collected."""
    return resident_bytes(os.getpid()) - resident_bytes(os.getpid(), alone=True)


def test_memory_is_counted_of_processes_that_any_thread_has_started() -> None:
    children: list[subprocess.Popen[bytes]] = []
    command = [sys.executable, "-c", "held = b'1' * (64 << 20); print(1, flush=True); input()"]

    def start() -> None:
        children.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        ready.wait()

    ready = threading.Event()  # a process belongs to the thread that started it as long as that lives
    threads = [threading.Thread(target=start) for _ in range(2)]
    before = memory_of_children()
    try:
        for thread in threads:
            thread.start()
        while len(children) < 2:
            time.sleep(0.01)
        for child in children:
            assert child.stdout is not None and child.stdout.readline() == b"1\n"
        assert memory_of_children() - before > 2 * (64 << 20)
    finally:  # threads that still wait would keep this process from ending
        ready.set()
        for child in children:
            child.communicate()
    assert resident_bytes(children[0].pid) == 0
