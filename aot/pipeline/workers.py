"""Worker processes that have read the author's source, and what could not be read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from aot_runtime.arch import Arch

from ..compile.process import Worker, WorkerLost
from ..errors import BuildError, Failure
from .executor import Session

__all__ = ["Workers", "open_source"]


def open_source(session: Session, arch: Arch | None, log: Path) -> tuple[Worker, dict[str, Failure]]:
    """A worker that has read the author's files, and the files that crashed its process or did not finish."""
    failures: dict[str, Failure] = {}
    while True:
        skip = [*session.skip, *failures]
        try:
            return Worker(session.source, arch, session.options, log, timeout=session.timeout, skip=skip), failures
        except WorkerLost as error:
            path = error.reading or session.source
            failure = Failure("", f"reading `{path}`: the process {error.reason}", error.log)
            if path in skip or Path(path).parent != Path(session.source) or Path(path).name == "__init__.py":
                failure = replace(failure, arch=str(arch or ""))
                raise BuildError("no kernel could be read", failures=[failure]) from None
            failures[path] = failure


class Workers:
    """The workers of one build. Those that planned an architecture are kept to compile it.

    ``limit`` is how many may be kept at once; None: one per architecture.
    """

    def __init__(self, session: Session, logs: Path, *, limit: int | None = None) -> None:
        self.session = session  # its ``skip`` grows with every file that could not be read
        self._failures: list[Failure] = []
        self._logs, self._limit = logs, limit
        self._by_arch: dict[Arch, Worker] = {}

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self.release().values():
            worker.close()

    def of(self, arch: Arch) -> Worker:
        """The worker of an architecture, started if there is none."""
        if arch not in self._by_arch:
            while self._limit is not None and len(self._by_arch) >= self._limit:
                self._by_arch.pop(next(iter(self._by_arch))).close()
            self._by_arch[arch] = self.start(arch)
        return self._by_arch[arch]

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

    def start(self, arch: Arch | None) -> Worker:
        """A new worker, for the caller to close."""
        worker, failures = open_source(self.session, arch, self._logs / f"worker-{arch}.log")
        self._failures.extend(failures.values())
        self.session = replace(self.session, skip=(*self.session.skip, *failures))
        return worker
