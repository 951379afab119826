"""Workers of the tests' builds begin warm: they are forks of a process that has imported CuTe DSL.

The import takes more than a second of CPU time, several times what a kernel of the tests takes to compile, and a run of
the tests starts hundreds of workers. There is one such process for each architecture, since CuTe DSL reads it when it is imported.
A worker gets the environment, the folder and the pipes that it would have got as a process of its own.

Workers that bind a backend, which must happen before the import, and workers whose environment differs in more than a few
variables start as they do for users. So do all workers of commands that run in a process of their own, and those of tests
that use ``cold_workers``.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import cpu_times
import pytest
from places import TESTS

from aot.compile import process
from aot.compile.messages import Options, worker_variables

# Nothing that is imported reads these; all else must be as it was when CuTe DSL was imported.
_MAY_DIFFER = {"PYTEST_CURRENT_TEST", "AOT_CACHE", "HOME", "TMPDIR", "XDG_CACHE_HOME"}
_STATUS = struct.Struct("id")  # see warm_parent


class Forked:
    """As much of a ``subprocess.Popen`` as a worker's parent uses, of a process that another one forked."""

    def __init__(self, parent: Parent, pid: int, status: int) -> None:
        self._parent = parent
        self.pid = pid
        self._status = status
        self._lock = threading.Lock()
        self.returncode: int | None = None

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None and select.select([self._status], [], [], 0)[0]:
                self._read()
        return self.returncode

    def wait(self) -> int:
        with self._lock:
            if self.returncode is None:
                self._read()
            assert self.returncode is not None
            return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _read(self) -> None:
        self.returncode, seconds = _STATUS.unpack(os.read(self._status, _STATUS.size))
        os.close(self._status)
        self._parent.spent += seconds
        cpu_times.count(seconds)


class Parent:
    """The process that has imported CuTe DSL, from the tests' side."""

    def __init__(self, environment: dict[str, str], module: str) -> None:
        self.environment = environment
        self.spent = 0.0  # seconds of CPU time of the workers that have ended
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(TESTS / "warm_parent.py"), str(theirs.fileno()), module],
                pass_fds=[theirs.fileno()], env=environment,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip

    def serves(self, environment: dict[str, str]) -> bool:
        return {name for name, _ in self.environment.items() ^ environment.items()} <= _MAY_DIFFER

    def fork(self, environment: dict[str, str], requests: int, answers: int) -> Forked:
        status, theirs = os.pipe()
        request = json.dumps([environment, os.getcwd()]).encode()
        try:
            with self._lock:
                socket.send_fds(self._socket, [request], [requests, answers, theirs])
                pid = int(self._socket.recv(32))
        finally:
            os.close(theirs)
        return Forked(self, pid, status)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()  # so that its CPU time counts as ours, with that of its workers
        cpu_times.count(-self.spent)


class WarmWorkers:
    """Starts workers in place of :func:`aot.compile.process._start`, which is not told what they are asked to do."""

    def __init__(self) -> None:
        self._parents: dict[tuple[object, str], Parent] = {}
        self._lock = threading.Lock()
        self._cold = process._start
        self._environment = dict(os.environ)
        self._asked = threading.local()  # by the thread that starts a worker
        self.are_wanted = True

    def told(self, make: Callable[..., None]) -> Callable[..., None]:
        """The constructor of workers, which says first whether this one binds a backend."""

        def made(worker: Any, source: str, arch: Any, options: Options, *rest: Any, **others: Any) -> None:
            self._asked.binds = options.cuda is not None
            make(worker, source, arch, options, *rest, **others)

        return made

    def start(self, arch: Any, module: str) -> Any:
        environment = {**os.environ, **worker_variables(arch)}
        if not self.are_wanted or self._asked.binds:
            return self._cold(arch, module)
        with self._lock:
            if (arch, module) not in self._parents:
                self._parents[arch, module] = Parent({**self._environment, **worker_variables(arch)}, module)
        parent = self._parents[arch, module]
        if not parent.serves(environment):
            return self._cold(arch, module)
        request_read, request_write = os.pipe()
        answer_read, answer_write = os.pipe()
        try:
            forked = parent.fork(environment, request_read, answer_write)
        finally:
            os.close(request_read)
            os.close(answer_write)
        return forked, os.fdopen(request_write, "wb"), os.fdopen(answer_read, "rb", buffering=0)

    def close(self) -> None:
        for parent in self._parents.values():
            parent.close()


@pytest.fixture(scope="session", autouse=True)
def _warm_workers() -> Iterator[WarmWorkers]:
    warm = WarmWorkers()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "_start", warm.start)
        patch.setattr(process.Worker, "__init__", warm.told(process.Worker.__init__))
        yield warm
    warm.close()


@pytest.fixture
def cold_workers(_warm_workers: WarmWorkers) -> Iterator[None]:
    """Workers start as they do for users."""
    _warm_workers.are_wanted = False
    yield
    _warm_workers.are_wanted = True
