"""Worker processes that have read the author's source, and what could not be read."""

from __future__ import annotations

import threading
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from aot_runtime.arch import Arch

from ...compile.messages import Declared
from ...compile.process import Worker, WorkerLost
from ...errors import AotError, BuildError, Failure
from ..settings import Settings
from .executor import WORKERS, Session

__all__ = ["Workers", "open_source"]


def open_source(session: Session, arch: Arch | None, log: Path) -> tuple[Worker, dict[str, Failure]]:
    """A worker that has read the author's files, and the files that crashed its process or did not finish."""
    failures: dict[str, Failure] = {}
    while True:
        skip = [*session.skip, *failures]
        try:
            module, options = WORKERS[session.options.source], session.options
            worker = Worker(session.source, arch, options, log, module=module, timeout=session.timeout, skip=skip)
            return worker, failures
        except WorkerLost as error:
            path = error.reading or session.source
            failure = Failure("", f"reading `{path}`: the process {error.reason}", error.log)
            if path in skip or Path(path).parent != Path(session.source) or Path(path).name == "__init__.py":
                failure = replace(failure, arch=str(arch or ""))
                raise BuildError("no kernel could be read", failures=[failure]) from None
            failures[path] = failure


class _Ahead:
    """A worker that a thread starts ahead of time. If the start fails, a second worker is started and its error reported."""

    def __init__(self, session: Session, arch: Arch, log: Path) -> None:
        self.arch = arch
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        self._is_unwanted = False
        self._thread = threading.Thread(target=self._open, args=(session, log), daemon=True)
        self._thread.start()

    def take(self) -> Worker | None:
        """The worker, for the caller to close. Only the first caller gets it."""
        self._thread.join()
        with self._lock:
            worker, self._worker = self._worker, None
        return worker

    def close(self) -> None:
        """Close the worker that nobody took, now or when it has started."""
        with self._lock:
            self._is_unwanted = True
            if self._worker is not None:
                self._worker.close()

    def _open(self, session: Session, log: Path) -> None:
        with suppress(AotError, OSError):
            worker, failures = open_source(session, self.arch, log)
            with self._lock:
                if failures or self._is_unwanted:
                    worker.close()
                else:
                    self._worker = worker


class Workers:
    """The workers of one build. Those that planned an architecture are kept to compile it.

    ``ahead``: a second one will compile, and may start while the first one plans.
    """

    def __init__(self, settings: Settings, logs: Path, *, ahead: bool = False) -> None:
        # Its ``skip`` grows with every file that could not be read.
        self.session = Session(settings.kernels, settings.options, settings.timeout, first=settings.first_arch)
        self._failures: list[Failure] = []
        self._logs = logs
        self._starts_ahead = ahead and settings.jobs > 1 and settings.memory is None
        # How many may be kept at once; None: one per architecture.
        self._limit = settings.worker_count if settings.memory is not None else None
        self._by_arch: dict[Arch, Worker] = {}
        self._ahead: _Ahead | None = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self.release().values():
            worker.close()
        if self._ahead is not None:
            self._ahead.close()

    def of(self, arch: Arch) -> Worker:
        """The worker of an architecture, started if there is none."""
        if arch not in self._by_arch:
            while self._limit is not None and len(self._by_arch) >= self._limit:
                self._by_arch.pop(next(iter(self._by_arch))).close()
            self._by_arch[arch] = self.start(arch)
        return self._by_arch[arch]

    def declared(self) -> Declared:
        """What the source declares. The worker that was asked is kept if it can compile."""
        if self.session.first is not None:
            if self._starts_ahead:
                self._start_ahead(self.session.first)
            return self.of(self.session.first).declared
        with closing(self.start(None)) as worker:
            return worker.declared

    def drop(self, arch: Arch) -> None:
        """Forget the worker of an architecture, which is lost."""
        self._by_arch.pop(arch).close()

    def release(self) -> dict[Arch, Worker]:
        """All workers, for the caller to close."""
        released, self._by_arch = self._by_arch, {}
        return released

    def take_failures(self) -> tuple[Failure, ...]:
        """The files that could not be read since this was last asked."""
        failures, self._failures = tuple(self._failures), []
        return failures

    def _start_ahead(self, arch: Arch) -> None:
        """Start a worker that is to compile while another one plans: it reads the source meanwhile."""
        self._ahead = _Ahead(self.session, arch, self._logs / f"worker-{arch}-ahead.log")

    def another(self, arch: Arch) -> Worker:
        """A worker to compile with, for the caller to close: the one that was started ahead, or a new one."""
        ahead = self._ahead.take() if self._ahead is not None and self._ahead.arch == arch else None
        return ahead or self.start(arch)

    def start(self, arch: Arch | None) -> Worker:
        """A new worker, for the caller to close."""
        worker, failures = open_source(self.session, arch, self._logs / f"worker-{arch}.log")
        self._failures.extend(failures.values())
        self.session = replace(self.session, skip=(*self.session.skip, *failures))
        return worker
