"""Worker processes from the parent's side: start, ask, watch the clock, survive their crashes."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from aot_runtime.arch import Arch

from .. import errors
from ..errors import Failure
from ..files import full_disk
from ..records import decode, encode
from .messages import Closure, Compiled, Declared, Options, VariantInfo, worker_variables

__all__ = ["Worker", "WorkerLost", "resident_bytes"]

LOG_TAIL_LINES = 20
CRASH_TAIL_LINES = 80  # a dump of Python's stack has the line that matters first
_RUNS_AUTHORS_CODE = ("open", "expand", "prepare", "compile")  # which may hang; ours does not
IMPORT_SECONDS = 120.0  # the least time that CuTe DSL itself is given to be imported


class WorkerLost(errors.BuildError):
    """A worker ended or was ended while it was asked something; ``log`` are its last words.

    ``reading`` is the author's file that it was executing, if it was.
    """

    def __init__(self, reason: str, log: str, reading: str | None = None) -> None:
        super().__init__(f"the worker process {reason}")
        self.reason = reason
        self.log = log
        self.reading = reading


class Worker:
    """A worker process, bound to an architecture and to the author's source.

    ``module`` runs in the process: what reads a source of that kind. ``timeout`` is for each of the author's files, and
    for each variant; ``skip`` are files that cannot be read.
    """

    def __init__(
        self,
        source: str,
        arch: Arch | None,
        options: Options,
        log: Path,
        *,
        module: str = "aot.compile.worker",
        timeout: float | None = None,
        skip: Sequence[str] = (),
    ) -> None:
        self.arch = arch
        self.log = log
        self.timeout = timeout
        self.spent = False  # it ran out of memory or file handles, and takes no more work
        self._reason: str | None = None  # why we ended it
        self._reading: str | None = None
        self._trace = ""  # where the worker raised last
        self._expanded: set[str] = set()
        self._process, self._requests, self._answers = _start(arch, module)
        self._buffer = b""
        try:
            opened = self.ask("open", source=source, arch=str(arch or ""), options=encode(options), skip=list(skip))
            self.declared = decode(Declared, opened)
        except BaseException:
            self.close()
            raise

    def expand(self, kernel: str) -> tuple[VariantInfo, ...]:
        """The variants of a kernel for this worker's architecture."""
        return self._expand(kernel, core=False)[0]

    def expand_core(self, kernel: str) -> tuple[tuple[VariantInfo, ...], tuple[str, ...]]:
        """The variants that a build has without ``--tilings all``, and the names of the others."""
        return self._expand(kernel, core=True)

    def _expand(self, kernel: str, *, core: bool) -> tuple[tuple[VariantInfo, ...], tuple[str, ...]]:
        answer = self.ask("expand", kernel=kernel, arch=str(self.arch), core=core)
        self._expanded.add(kernel)
        return tuple(decode(VariantInfo, item) for item in answer["variants"]), tuple(answer["left_out"])

    def compile(self, kernel: str, variant: str, launcher: Path, log: Path) -> Compiled | Failure:
        """Compile a variant into a file; whatever goes wrong is its failure."""
        try:
            if kernel not in self._expanded:
                self.ask("prepare", kernel=kernel, arch=str(self.arch))
                self._expanded.add(kernel)
            answer = self.ask("compile", log=log, variant=variant, launcher=str(launcher))
        except WorkerLost as error:
            _raise_if_full(launcher.parent)
            return Failure(variant, f"the compiler {error.reason}", error.log)
        except errors.AotError as error:
            _raise_if_full(launcher.parent)
            hint = f"\nhint: {error.hint}" if error.hint else ""
            return Failure(variant, error.message + hint, _tail(log, LOG_TAIL_LINES), trace=self._trace)
        return decode(Compiled, answer)

    def closure(self) -> Closure:
        """What the kernels' code came from."""
        return decode(Closure, self.ask("closure"))

    def backend(self) -> int:
        return int(self.ask("backend"))

    def ask(self, do: str, *, log: Path | None = None, **request: Any) -> Any:
        """Send a request and wait for its answer; errors of the worker are raised here as what they were."""
        log = log or self.log
        message = json.dumps({"do": do, "log": str(log), **request})
        try:
            self._requests.write(message.encode() + b"\n")
            self._requests.flush()
        except BrokenPipeError:
            raise self._lost("ended before it was asked", log) from None
        return self._unwrap(self._answer(do, log))

    def alive(self) -> bool:
        return self._process.poll() is None

    def end(self, reason: str) -> None:
        """End the process from another thread; what it was asked fails for that reason."""
        self._reason = reason
        self._process.kill()

    def resident_bytes(self) -> int:
        return resident_bytes(self._process.pid)

    def close(self) -> None:
        """End the process, whatever it is doing."""
        for pipe in (self._requests, self._answers):
            with suppress(OSError):  # a request that never arrived is flushed once more
                pipe.close()
        if self.alive():
            self._process.kill()
        self._process.wait()

    def _answer(self, do: str, log: Path) -> dict[str, Any]:
        """The next answer; before it the worker may say which file it is about to execute."""
        limit = self.timeout if do in _RUNS_AUTHORS_CODE else None
        if do == "open" and limit is not None:
            limit = max(limit, IMPORT_SECONDS)
        while True:
            answer: dict[str, Any] = json.loads(self._read_line(limit, log))
            self._reading = answer.get("reading")
            if self._reading is None:
                return answer
            limit = self.timeout

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
        code = self._process.wait()
        return WorkerLost(self._reason or reason or _ending(code), _tail(log, CRASH_TAIL_LINES), self._reading)

    def _unwrap(self, answer: dict[str, Any]) -> Any:
        self.spent = self.spent or bool(answer.get("spent"))
        if "answer" in answer:
            return answer["answer"]
        self._trace = str(answer["failure"]["trace"])
        kind = getattr(errors, answer["kind"], errors.BuildError)
        raise kind(errors.plain_text(answer["failure"]["message"]), hint=answer["hint"])


def _raise_if_full(folder: Path) -> None:
    """On a full disk a worker can write neither code nor its log, and every other variant would fail too."""
    hint = full_disk(folder)
    if hint is not None:
        raise errors.BuildError("compiling ended: there is no room for temporary files", hint=f"{hint}, or set TMPDIR")


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    if -code == signal.SIGKILL:  # if we ended it ourselves, a reason is set
        return "was ended by SIGKILL, as the system does if memory runs out\nhint: pass `--memory` or fewer `--jobs`"
    names = {member.value: member.name for member in signal.Signals}
    return f"was ended by {names.get(-code, f'signal {-code}')}"


def _start(arch: Arch | None, module: str) -> tuple[subprocess.Popen[bytes], Any, Any]:
    request_read, request_write = os.pipe()
    answer_read, answer_write = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(request_read), str(answer_write)],
            pass_fds=(request_read, answer_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **worker_variables(arch)},
        )
    finally:
        os.close(request_read)
        os.close(answer_write)
    return process, os.fdopen(request_write, "wb"), os.fdopen(answer_read, "rb", buffering=0)


def resident_bytes(process: int, *, alone: bool = False) -> int:
    """The memory that a process takes, with those that its threads started or alone; 0 once it is gone."""
    try:
        with open(f"/proc/{process}/statm") as file:
            size = int(file.read().split()[1]) * _PAGE
        threads = [] if alone else os.listdir(f"/proc/{process}/task")
    except OSError:
        return 0
    return size + sum(resident_bytes(child) for thread in threads for child in _children(process, thread))


def _children(process: int, thread: str) -> list[int]:
    try:
        with open(f"/proc/{process}/task/{thread}/children") as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return []


_PAGE = os.sysconf("SC_PAGE_SIZE")


def _tail(log: Path, count: int) -> str:
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-count:])
