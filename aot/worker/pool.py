"""Worker processes from the parent's side: start, ask, watch the clock, survive their crashes."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aot_runtime.arch import Arch

from .. import errors
from ..records import decode, encode
from .messages import Closure, Compiled, Declared, Failure, Options, VariantInfo

__all__ = ["CompileJob", "Worker", "WorkerLost", "compile_all"]

LOG_TAIL_LINES = 20
CRASH_TAIL_LINES = 80  # a dump of Python's stack has the line that matters first


class WorkerLost(errors.BuildError):
    """A worker ended or was ended while it was asked something; ``log`` are its last words."""

    def __init__(self, reason: str, log: str) -> None:
        super().__init__(f"the worker process {reason}")
        self.reason = reason
        self.log = log


@dataclass(frozen=True)
class CompileJob:
    """One variant to compile for one architecture, and where its launcher goes."""

    arch: Arch
    kernel: str
    variant: str
    launcher: Path
    log: Path


class Worker:
    """A worker process, bound to an architecture and to the author's source."""

    def __init__(self, source: str, arch: Arch | None, options: Options, log: Path) -> None:
        self.arch = arch
        self.log = log
        self._expanded: set[str] = set()
        self._process, self._requests, self._answers = _start(arch)
        self._buffer = b""
        try:
            self.declared = decode(Declared, self.ask("open", timeout=None, source=source, options=encode(options)))
        except BaseException:
            self.close()
            raise

    def expand(self, kernel: str, timeout: float | None) -> tuple[VariantInfo, ...]:
        """The variants of a kernel for this worker's architecture."""
        answer = self.ask("expand", timeout=timeout, kernel=kernel, arch=str(self.arch))
        self._expanded.add(kernel)
        return tuple(decode(VariantInfo, item) for item in answer)

    def compile(self, job: CompileJob, timeout: float | None) -> Compiled:
        if job.kernel not in self._expanded:
            self.expand(job.kernel, timeout)
        answer = self.ask("compile", timeout=timeout, log=job.log, variant=job.variant, launcher=str(job.launcher))
        return decode(Compiled, answer)

    def closure(self) -> Closure:
        """What the kernels' code came from."""
        return decode(Closure, self.ask("closure", timeout=None))

    def backend(self) -> int:
        return int(self.ask("backend", timeout=None))

    def ask(self, do: str, *, timeout: float | None, log: Path | None = None, **request: Any) -> Any:
        """Send a request and wait for its answer; errors of the worker are raised here as what they were."""
        log = log or self.log
        message = json.dumps({"do": do, "log": str(log), **request})
        try:
            self._requests.write(message.encode() + b"\n")
            self._requests.flush()
        except BrokenPipeError:
            raise self._lost("ended before it was asked", log) from None
        return _unwrap(json.loads(self._read_line(timeout, log)))

    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """End the process, whatever it is doing."""
        for pipe in (self._requests, self._answers):
            with suppress(OSError):  # a request that never arrived is flushed once more
                pipe.close()
        if self.alive():
            self._process.kill()
        self._process.wait()

    def _read_line(self, timeout: float | None, log: Path) -> bytes:
        deadline = None if timeout is None else time.monotonic() + timeout
        while b"\n" not in self._buffer:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and (left <= 0 or not select.select([self._answers], [], [], left)[0]):
                self._process.kill()
                raise self._lost(f"did not finish within {timeout:g} s", log)
            block = os.read(self._answers.fileno(), 1 << 16)
            if not block:
                raise self._lost(None, log)
            self._buffer += block
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _lost(self, reason: str | None, log: Path) -> WorkerLost:
        return WorkerLost(reason or _ending(self._process.wait()), _tail(log, CRASH_TAIL_LINES))


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    names = {member.value: member.name for member in signal.Signals}
    return f"was ended by {names.get(-code, f'signal {-code}')}"


def _start(arch: Arch | None) -> tuple[subprocess.Popen[bytes], Any, Any]:
    request_read, request_write = os.pipe()
    answer_read, answer_write = os.pipe()
    environment = {
        **os.environ,
        "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1",
    }  # its torch bridge is slow to import and not needed
    if arch is not None:
        environment["CUTE_DSL_ARCH"] = str(arch)  # some kernels ask for it; it is read once
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "aot.worker", str(request_read), str(answer_write)],
            pass_fds=(request_read, answer_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
    finally:
        os.close(request_read)
        os.close(answer_write)
    return process, os.fdopen(request_write, "wb"), os.fdopen(answer_read, "rb", buffering=0)


def _unwrap(answer: dict[str, Any]) -> Any:
    if "answer" in answer:
        return answer["answer"]
    kind = getattr(errors, answer["kind"], errors.BuildError)
    raise kind(answer["failure"]["message"], hint=answer["hint"])


@dataclass
class _Queue:
    """Jobs by architecture; a worker goes on with its own architecture as long as there are any."""

    jobs: dict[Arch, deque[CompileJob]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, arch: Arch | None) -> CompileJob | None:
        with self.lock:
            waiting = self.jobs.get(arch) if arch is not None else None
            waiting = waiting or max(self.jobs.values(), key=len, default=None)
            return waiting.popleft() if waiting else None

    def clear(self) -> None:
        with self.lock:
            self.jobs.clear()


def compile_all(
    jobs: Sequence[CompileJob],
    start: Callable[[Arch], Worker],
    *,
    workers: int,
    timeout: float | None,
    warm: Mapping[Arch, Worker],
    report: Callable[[CompileJob, Compiled | Failure], None],
) -> None:
    """Compile every job with that many workers; ``report`` hears of each, from several threads.

    ``warm`` are workers that already run; all of them, and those started here, are ended at the end.
    """
    queue = _Queue()
    for job in jobs:
        queue.jobs.setdefault(job.arch, deque()).append(job)
    pool = _Pool(queue, start, timeout, dict(warm), report)
    threads = [threading.Thread(target=pool.work, daemon=True) for _ in range(min(workers, len(jobs)))]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:
        queue.clear()
        pool.stopped = True
        raise
    finally:
        pool.close()
    if pool.broken:
        raise pool.broken[0]


class _Pool:
    def __init__(
        self,
        queue: _Queue,
        start: Callable[[Arch], Worker],
        timeout: float | None,
        warm: dict[Arch, Worker],
        report: Callable[[CompileJob, Compiled | Failure], None],
    ) -> None:
        self.queue, self.start, self.timeout, self.warm, self.report = queue, start, timeout, warm, report
        self.lock = threading.Lock()
        self.running: set[Worker] = set(warm.values())
        self.broken: list[BaseException] = []
        self.stopped = False

    def work(self) -> None:
        worker: Worker | None = None
        try:
            while (job := self.queue.take(worker.arch if worker else None)) is not None:
                if worker is None or worker.arch != job.arch:
                    self._end(worker)
                    worker = self._worker(job.arch)
                outcome = self._compile(worker, job)
                if self.stopped:
                    return
                if isinstance(outcome, Failure) and not worker.alive():
                    self._end(worker)
                    worker = None
                self.report(job, outcome)
        except BaseException as error:  # what went wrong in this thread is raised in the one that waits
            self.broken.append(error)
        finally:
            self._end(worker)

    def close(self) -> None:
        for worker in list(self.running):
            self._end(worker)

    def _worker(self, arch: Arch) -> Worker:
        with self.lock:
            worker = self.warm.pop(arch, None)
        worker = worker or self.start(arch)
        with self.lock:
            self.running.add(worker)
        return worker

    def _end(self, worker: Worker | None) -> None:
        if worker is not None:
            worker.close()
            with self.lock:
                self.running.discard(worker)

    def _compile(self, worker: Worker, job: CompileJob) -> Compiled | Failure:
        try:
            return worker.compile(job, self.timeout)
        except WorkerLost as error:
            return Failure(job.variant, f"the compiler {error.reason}", error.log)
        except errors.AotError as error:
            hint = f"\nhint: {error.hint}" if error.hint else ""
            return Failure(job.variant, error.message + hint, _tail(job.log, LOG_TAIL_LINES))


def _tail(log: Path, count: int) -> str:
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-count:])
