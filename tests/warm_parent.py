"""A process that has imported CuTe DSL and forks workers: see ``warm_workers``, which starts it as a script."""

from __future__ import annotations

import gc
import json
import os
import runpy
import select
import signal
import socket
import struct
import sys
from contextlib import nullcontext
from importlib import import_module
from typing import NoReturn

from aot.versions import without_torch

_STATUS = struct.Struct("id")  # the exit code, and the seconds of CPU time


def main(connection: socket.socket, module: str) -> None:
    # As `aot.compile.worker` imports it. Captured libraries may pass tensors of torch, declarations may not.
    with without_torch() if module == "aot.compile.worker" else nullcontext():
        import_module("aot.compile.cute_dsl")
    import_module(module)
    del sys.modules[module]  # each worker executes it, as `python -m` does
    gc.collect()
    gc.freeze()  # or the first collection in a worker would copy the pages of all objects
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    statuses: dict[int, int] = {}  # by process: where its exit code goes
    while True:
        ready, _, _ = select.select([connection, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _reap(statuses)
        if connection in ready:
            request, pipes, _, _ = socket.recv_fds(connection, 1 << 20, 3)
            if not request:
                return
            requests, answers, status = pipes
            pid = os.fork()
            if pid == 0:
                for pipe in (connection.detach(), woken, wakes, status, *statuses.values()):
                    os.close(pipe)
                _become(module, *json.loads(request), requests, answers)
            statuses[pid] = status
            os.close(requests)
            os.close(answers)
            connection.send(str(pid).encode())


def _reap(statuses: dict[int, int]) -> None:
    while statuses:
        pid, ended, used = os.wait4(-1, os.WNOHANG)
        if pid == 0:
            return
        pipe = statuses.pop(pid)
        os.write(pipe, _STATUS.pack(os.waitstatus_to_exitcode(ended), used.ru_utime + used.ru_stime))
        os.close(pipe)


def _become(module: str, environment: dict[str, str], folder: str, requests: int, answers: int) -> NoReturn:
    """What `python -m MODULE REQUESTS ANSWERS` does in that folder."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[0] = folder
    sys.argv[1:] = [str(requests), str(answers)]
    code = 1
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    finally:
        os._exit(code)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
