"""Compiling on a Dask cluster: ``--executor dask://host:port``, or ``tls://host:port``.

Dask carries orders to its workers and artifacts back, and gives the orders of a worker that is lost to another.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ...errors import BuildError, Failure, ToolchainError, UsageError
from ...records import encode
from ...versions import install_extras
from ..address import Address
from .executor import CompileJob, Report, Session
from .orders import Artifact, Refusal, carry_out, differences, identity, order_for, receive
from .security import read_security

__all__ = ["DaskExecutor"]

CONNECT_SECONDS = 5.0
NO_WORKER_SECONDS = 60.0  # how long a cluster may be without any worker
ATTEMPTS = 3  # of an artifact that arrives damaged
_ON_WORKERS = "install cute-aot there with the extras `build` and `dask`"
# By whether TLS was asked for.
_CONNECT_HINTS = {
    True: "see that the scheduler runs with TLS, and that its certificate and yours are of the same authority",
    False: "start one with `dask scheduler`, and give the address that it prints; tls://... if it runs with TLS",
}


class DaskExecutor:
    """Jobs as tasks of a Dask client."""

    def __init__(self, client: Any, address: str) -> None:
        self.client, self.address = client, address

    @classmethod
    def connect(cls, address: Address) -> DaskExecutor:
        """Connect to a scheduler and see that its workers can compile for us."""
        distributed = _import_distributed()
        options = {"security": read_security(address.security)} if address.encrypted else {}
        try:
            client = distributed.Client(str(address), timeout=CONNECT_SECONDS, set_as_default=False, **options)
        except (OSError, asyncio.TimeoutError, ValueError) as error:  # ValueError: bytes that are no answer of Dask's
            raise UsageError(
                f"no Dask scheduler answers at {address}: {error}", hint=_CONNECT_HINTS[address.encrypted]
            ) from None
        executor = cls(client, str(address))
        try:
            executor._check_workers()
        except BaseException:
            executor.close()
            raise
        return executor

    def compile(self, session: Session, jobs: Sequence[CompileJob], report: Report) -> None:
        run = _Run(self.client, self.address, session, report)
        try:
            for number, job in enumerate(jobs):
                run.submit(job, priority=-number)
            while run.pending:
                self._wait(run)
        finally:
            if self.client.status == "running":
                self.client.cancel([future for future, _, _ in run.pending.values()])

    def close(self) -> None:
        with suppress(Exception):  # nobody may be there any more to say goodbye to
            self.client.close(timeout=CONNECT_SECONDS if self.client.status == "running" else 1)

    def _wait(self, run: _Run) -> None:
        try:
            run.finish(run.done.get(timeout=NO_WORKER_SECONDS))
        except queue.Empty:
            if not self._workers():
                raise BuildError(
                    f"the Dask cluster at {self.address} has had no worker for {NO_WORKER_SECONDS:g} s",
                    hint="start workers with `dask worker`, and build again: what is compiled is in the cache",
                ) from None

    def _workers(self) -> list[str]:
        try:
            return list(self.client.nthreads())
        except Exception as error:  # of Dask's many ways to say that nobody is there
            raise _lost(self.address, error) from None

    def _check_workers(self) -> None:
        try:
            self.client.wait_for_workers(1, timeout=CONNECT_SECONDS)
        except (TimeoutError, asyncio.TimeoutError):  # two until Python 3.11
            raise UsageError(
                f"the Dask cluster at {self.address} has no workers",
                hint=f"start some with `dask worker {self.address} --nthreads 1`",
            ) from None
        here = identity()
        for worker, there in self.client.run(identity, on_error="return").items():
            _check_worker(worker, here, there)


def _import_distributed() -> Any:
    try:
        import distributed
    except ModuleNotFoundError:
        raise UsageError("`--executor dask://...` needs Dask", hint=install_extras("dask")) from None
    for name in ("distributed", "distributed.client", "tornado", "asyncio"):  # what matters of theirs we say ourselves
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return distributed


def _check_worker(worker: str, here: dict[str, str], there: dict[str, str] | Exception) -> None:
    if isinstance(there, ModuleNotFoundError):
        raise ToolchainError(f"the Dask worker {worker} lacks `{there.name}`", hint=_ON_WORKERS)
    if isinstance(there, Exception):
        raise ToolchainError(f"the Dask worker {worker} cannot compile: {there!r}")
    names = sorted({*here, *there})
    differing = [
        f"{name} {there.get(name, 'missing')} there, {here.get(name, 'missing')} here"
        for name in names
        if here.get(name) != there.get(name)
    ]
    if differing:
        raise ToolchainError(
            f"the Dask worker {worker} would compile other code: {'; '.join(differing)}",
            hint="install the same versions on both",
        )


def _lost(address: str, error: BaseException) -> BuildError:
    said = str(error).strip() or type(error).__name__  # some of Dask's hold whole tracebacks
    return BuildError(
        f"lost the Dask scheduler at {address}: {said.splitlines()[0]}",
        hint="start it again, and build again: what is compiled is in the cache",
    )


class _Run:
    """The tasks of one build that are under way."""

    def __init__(self, client: Any, address: str, session: Session, report: Report) -> None:
        self.client, self.address, self.session, self.report = client, address, session, report
        self.build = uuid.uuid4().hex
        self.done: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.pending: dict[str, tuple[Any, CompileJob, int]] = {}

    def submit(self, job: CompileJob, *, priority: int, attempt: int = 1) -> None:
        key = f"aot-{self.build}-{job.arch}-{job.variant}-{attempt}"
        order = encode(order_for(self.session, job, self.build))
        future = self.client.submit(carry_out, order, key=key, pure=False, priority=priority)
        self.pending[key] = (future, job, attempt)
        future.add_done_callback(lambda future: self.done.put(future.key))

    def finish(self, key: str) -> None:
        """Hear what came of a task, and let Dask forget it."""
        future, job, attempt = self.pending.pop(key)
        outcome = self._outcome(future, job)
        if isinstance(outcome, Refusal):
            raise _refused(outcome, self.session.source)
        if isinstance(outcome, Failure):
            self.report(job, outcome)
            return
        compiled = receive(job, outcome)
        if compiled is not None:
            self.report(job, compiled)
        elif attempt < ATTEMPTS:
            self.submit(job, priority=0, attempt=attempt + 1)
        else:
            self.report(job, Failure(job.variant, f"arrived damaged {ATTEMPTS} times from the cluster"))

    def _outcome(self, future: Any, job: CompileJob) -> Artifact | Failure | Refusal:
        from distributed import KilledWorker

        try:
            outcome: Artifact | Failure | Refusal = future.result()
        except KilledWorker as error:
            return Failure(
                job.variant, f"ended the Dask workers that compiled it, the last at {error.last_worker.address}"
            )
        except ModuleNotFoundError as error:
            raise ToolchainError(f"a Dask worker lacks `{error.name}`", hint=_ON_WORKERS) from None
        except (Exception, asyncio.CancelledError) as error:  # of Dask's many ways to say that nobody is there
            raise _lost(self.address, error) from None
        return outcome


def _refused(refusal: Refusal, source: str) -> BuildError:
    found = list(differences(refusal))
    message = f"a Dask worker has another source: {refusal.message}" + "".join(f"\n  {item}" for item in found)
    return BuildError(message, hint=f"workers must find `{source}` at the same path, with the same contents")
