"""Compiling in processes of this machine, as many as asked for and as fit into the memory allowed."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from aot_runtime.arch import Arch

from ...compile.process import Worker, resident_bytes
from ...errors import BuildError, Failure, system_hint
from ..settings import WORKER_BYTES, fitting
from ..workspace import Workspace
from .executor import CompileJob, Executor, Report, Session
from .forecast import Code
from .workers import Workers

__all__ = ["LocalExecutor", "choose_executor"]

_SAMPLE_SECONDS = 0.1


def choose_executor(cluster: Executor | None, workers: Workers, workspace: Workspace) -> Executor:
    """The cluster if there is one; else processes of this machine, of which those that planned go on."""
    warm, settings = workers.release(), workspace.settings
    if cluster is None:
        return LocalExecutor(
            workers.another, jobs=settings.jobs, memory=settings.memory, warm=warm, begins=workspace.progress.begins
        )
    for worker in warm.values():
        worker.close()
    return cluster


class LocalExecutor:
    """Worker processes, started as they are needed; ``warm`` are some that already run.

    With a limit of ``memory`` every worker has its share. One that takes more is ended, and its job is tried again
    at the end, alone, with all of the memory. ``begins`` hears of each job when a worker takes it.
    """

    def __init__(
        self,
        start: Callable[[Arch], Worker],
        *,
        jobs: int,
        memory: int | None = None,
        warm: Mapping[Arch, Worker] | None = None,
        begins: Callable[[CompileJob], None] = lambda job: None,
    ) -> None:
        self.start, self.memory, self.warm, self.begins = start, memory, dict(warm or {}), begins
        self.workers = fitting(jobs, memory, WORKER_BYTES)

    def compile(self, session: Session, jobs: Sequence[CompileJob], report: Report) -> None:
        large = self._compile(jobs, report, self.workers, last=self.workers == 1)
        if large:
            self._compile(large, report, 1, last=True)

    def close(self) -> None:
        for worker in self.warm.values():
            worker.close()
        self.warm = {}

    def _compile(self, jobs: Sequence[CompileJob], report: Report, workers: int, *, last: bool) -> list[CompileJob]:
        """Compile with that many workers; returns the jobs that took more memory than their share."""
        pool = _Pool(_Queue.of(jobs), self.start, self.warm, report, retry=not last)
        pool.begins = self.begins
        pool.limit = workers if self.memory is not None else None
        self.warm = {}
        threads = [threading.Thread(target=pool.work, daemon=True) for _ in range(min(workers, len(jobs)))]
        watch = _Watch(pool, self.memory, workers) if self.memory is not None else None
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except BaseException:
            pool.stop()
            raise
        finally:
            pool.close()
            if watch is not None:
                watch.close()
        pool.raise_if_broken()
        return pool.large


@dataclass
class _Queue:
    """Jobs by group. A worker goes on with its own group, then with its own architecture, as long as there are any."""

    groups: dict[Code, deque[CompileJob]] = field(default_factory=dict)  # none is empty
    fresh: dict[Arch, deque[Code]] = field(default_factory=dict)  # those that no worker has begun
    lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, jobs: Sequence[CompileJob]) -> _Queue:
        queue = cls()
        for job in jobs:
            if job.code not in queue.groups:
                queue.fresh.setdefault(job.arch, deque()).append(job.code)
            queue.groups.setdefault(job.code, deque()).append(job)
        return queue

    def take(self, arch: Arch | None, last: CompileJob | None = None) -> CompileJob | None:
        """The next job for a worker of ``arch``; ``last`` is the job that it has just done."""
        with self.lock:
            group = self._next(arch, last.code if last is not None else None)
            if group is None:
                return None
            job = self.groups[group].popleft()
            if not self.groups[group]:
                del self.groups[group]
            return job

    def _next(self, arch: Arch | None, own: Code | None) -> Code | None:
        if own in self.groups:
            return own
        waiting = self.fresh.get(arch) if arch is not None else None
        waiting = waiting or max(self.fresh.values(), key=len, default=None)
        if waiting:
            return waiting.popleft()
        # What is left belongs to groups of other workers. Two compile faster than one, even if both compile the same.
        mine = [group for group in self.groups if group[0] == arch]
        return max(mine or self.groups, key=lambda group: len(self.groups[group]), default=None)

    def put_back(self, job: CompileJob) -> None:
        with self.lock:
            self.groups.setdefault(job.code, deque()).appendleft(job)

    def clear(self) -> None:
        with self.lock:
            self.groups.clear()
            self.fresh.clear()

    def __len__(self) -> int:
        with self.lock:
            return sum(map(len, self.groups.values()))


class _Pool:
    def __init__(
        self, queue: _Queue, start: Callable[[Arch], Worker], warm: dict[Arch, Worker], report: Report, *, retry: bool
    ) -> None:
        self.queue, self.start, self.warm, self.report, self.retry = queue, start, warm, report, retry
        self.lock = threading.Lock()
        self.running: set[Worker] = set(warm.values())
        self.broken: list[BaseException] = []
        self.refused: list[OSError] = []  # where the system would not start a worker
        self.too_large: set[Worker] = set()
        self.large: list[CompileJob] = []
        self.limit: int | None = None  # how many workers may live, idle ones too
        self.begins: Callable[[CompileJob], None] = lambda job: None
        self.stopped = False

    def work(self) -> None:
        """Compile jobs with one worker after another, until none are left."""
        worker: Worker | None = None
        job: CompileJob | None = None
        try:
            while (job := self.queue.take(worker.arch if worker else None, job)) is not None:
                if worker is None or worker.arch != job.arch:
                    self._end(worker)
                    worker = None
                    worker = self._worker(job)
                    if worker is None:
                        return
                self.begins(job)
                outcome = worker.compile(job.kernel, job.variant, job.launcher, job.log)
                if self.stopped:
                    return
                again = self.retry and worker in self.too_large
                if worker.spent or (isinstance(outcome, Failure) and not worker.alive()):
                    self._end(worker)
                    worker = None
                if again:
                    self.large.append(job)
                else:
                    self.report(job, outcome)
        except BaseException as error:  # what went wrong in this thread is raised in the one that waits
            self.broken.append(error)
        finally:
            self._end(worker)

    def stop(self) -> None:
        self.queue.clear()
        self.stopped = True

    def close(self) -> None:
        for worker in list(self.running):
            self._end(worker)

    def raise_if_broken(self) -> None:
        if self.broken:
            raise self.broken[0]
        if self.refused and len(self.queue):  # no thread was left to go on
            error = self.refused[0]
            raise BuildError(f"cannot start a worker: {error.strerror}", hint=system_hint(error))

    def _worker(self, job: CompileJob) -> Worker | None:
        """A worker for a job. If the system cannot start another process, the job goes back into the queue: None."""
        with self.lock:
            worker = self.warm.pop(job.arch, None)
        if worker is None:
            self._make_room()
        try:
            worker = worker or self.start(job.arch)
        except OSError as error:
            self.refused.append(error)
            self.queue.put_back(job)
            return None
        with self.lock:
            self.running.add(worker)
        return worker

    def _make_room(self) -> None:
        """End idle workers until another one keeps within the limit."""
        while self.limit is not None and self.warm and len(self.running) >= self.limit:
            with self.lock:
                _, idle = self.warm.popitem()
            self._end(idle)

    def _end(self, worker: Worker | None) -> None:
        if worker is not None:
            worker.close()
            with self.lock:
                self.running.discard(worker)


class _Watch:
    """Ends workers that take more than their share of the memory, in a thread of its own."""

    def __init__(self, pool: _Pool, memory: int, workers: int) -> None:
        self.pool, self.memory, self.workers = pool, memory, workers
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.done.set()
        self.thread.join()

    def _run(self) -> None:
        while not self.done.wait(_SAMPLE_SECONDS):
            with self.pool.lock:
                running = list(self.pool.running)
            sizes = {worker: worker.resident_bytes() for worker in running}
            share = max(self.memory - resident_bytes(os.getpid(), alone=True), 0) // self.workers
            for worker, size in sizes.items():
                if size > share and worker not in self.pool.too_large:
                    self.pool.too_large.add(worker)
                    worker.end(f"took {size >> 20} MB, its share of `--memory` is {share >> 20} MB")
