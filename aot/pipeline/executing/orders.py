"""Compiling on another machine, whatever engine carries the order there and the artifact back.

The other machine has cute-aot, CuTe DSL and the author's source installed or mounted, the source at the same
path. It works out the key of what it is asked to compile, and refuses if that is not the key that was
asked for: nothing is ever compiled from another source, or with other tools, than the builder's own.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aot_runtime.arch import Arch

from ...cache import keys
from ...cache.entries import EntryError
from ...cache.variants import pack_variant, unpack_variant
from ...compile.messages import Closure, Compiled, Options
from ...compile.origins.closure import variables
from ...compile.process import Worker, WorkerLost
from ...errors import AotError, Failure
from ...files import owned_directory, sha256_of, sweep
from ...records import decode
from ...versions import installed_version
from .executor import WORKERS, CompileJob, Session

__all__ = ["Artifact", "Order", "Refusal", "carry_out", "differences", "identity", "order_for", "receive"]

IDLE_SECONDS = 30.0  # idle workers exit after this time


@dataclass(frozen=True)
class Order:
    """One variant to compile, with all that another machine must know."""

    build: str  # tells builds apart: between two of them the source may change
    source: str
    options: Options
    arch: Arch
    kernels: tuple[str, ...]  # all that the builder looked at for this architecture: they shape the key
    kernel: str
    variant: str
    key: str
    timeout: float | None
    skip: tuple[str, ...]


@dataclass(frozen=True)
class Artifact:
    """What came out, as one piece with its digest."""

    sha256: str
    content: bytes


@dataclass(frozen=True)
class Refusal:
    """The other machine would compile something else, or nothing: what it has, for the builder to compare."""

    message: str
    closure: Closure | None = None


def order_for(session: Session, job: CompileJob, build: str) -> Order:
    path = Path(session.source)
    source = str(path.resolve()) if path.exists() else session.source
    return Order(
        build=build,
        source=source,
        options=session.options,
        arch=job.arch,
        kernels=session.kernels[job.arch],
        kernel=job.kernel,
        variant=job.variant,
        key=job.key,
        timeout=session.timeout,
        skip=tuple(str(Path(item).resolve()) for item in session.skip),
    )


def receive(job: CompileJob, artifact: Artifact) -> Compiled | None:
    """Put an artifact where the job wants it; None if its bytes are not those that were sent, or do not decode."""
    if hashlib.sha256(artifact.content).hexdigest() != artifact.sha256:
        return None
    try:
        return unpack_variant(artifact.content).write(job.launcher)
    except EntryError:
        return None


def identity() -> dict[str, str]:
    """What must be the same on both machines."""
    return {
        "Python": keys.python_version(),
        "cute-aot": importlib.metadata.version("cute-aot"),
        **{name.replace("_", "-"): version for name, version in keys.cutlass_distributions().items()},
        "cute-aot's code": keys.generation()[:12],
    }


def differences(there: Refusal) -> Iterator[str]:
    """In what another machine's source differs from the one here."""
    if there.closure is None:
        return
    for path, digest in there.closure.files.items():
        if not Path(path).is_file():
            yield f"`{path}` is there, and not here"
        elif sha256_of(Path(path)) != digest:
            yield f"`{path}` has other bytes there"
    here = variables(there.closure.environment, os.environ)
    for name, value in there.closure.environment.items():
        if name.endswith("*") and here[name] != value:
            yield f"environment variables `{name}` have other values there"
        elif here[name] != value:
            yield f"the environment variable {name} is {value!r} there, {here[name]!r} here"
    for name, version in there.closure.distributions.items():
        if installed_version(name) != version:
            yield f"{name} is {version} there, {installed_version(name)} here"


# On the other machine.


def carry_out(data: Mapping[str, Any]) -> Artifact | Failure | Refusal:
    """Compile what an encoded order asks for. Runs on the cluster, in any thread."""
    order = decode(Order, data)
    try:
        opened = _IDLE.take(order) or _Opened(order)
    except WorkerLost as error:
        return Failure(order.variant, f"the compiler {error.reason}", error.log)
    except AotError as error:
        return Refusal(error.message)
    try:
        return opened.carry_out(order)
    except Exception as error:  # an exception that cannot be sent would never arrive
        return Failure(order.variant, f"on the cluster: {type(error).__name__}: {error}")
    finally:
        _IDLE.put_back(opened)


class _Opened:
    """A worker that has read a source, with the keys of all that it can compile."""

    def __init__(self, order: Order) -> None:
        self.build = (order.build, order.arch)
        self.used = time.monotonic()
        with ExitStack() as stack:
            scratch = Path(tempfile.gettempdir())
            sweep(scratch, prefix=_SCRATCH)  # what a lost machine of the cluster left behind
            self.folder = stack.enter_context(owned_directory(scratch, prefix=_SCRATCH))
            self.worker = Worker(
                order.source,
                order.arch,
                order.options,
                self.folder / "worker.log",
                module=WORKERS[order.options.source],
                timeout=order.timeout,
                skip=order.skip,
            )
            stack.callback(self.worker.close)
            self.closure, self.keys = _look(self.worker, order)
            self._stack = stack.pop_all()

    def carry_out(self, order: Order) -> Artifact | Failure | Refusal:
        if self.keys.get(order.variant) != order.key:
            return Refusal(f"{order.variant} is not the same there", self.closure)
        launcher = self.folder / f"{order.variant}.ll"
        outcome = self.worker.compile(order.kernel, order.variant, launcher, launcher.with_suffix(".log"))
        try:
            return outcome if isinstance(outcome, Failure) else make_artifact(launcher, outcome, order.options)
        finally:
            for path in self.folder.glob(f"{order.variant}.*"):
                path.unlink()

    def is_usable(self) -> bool:
        return not self.worker.spent and self.worker.alive()

    def close(self) -> None:
        self._stack.close()


_SCRATCH = "aot-order-"


def _look(worker: Worker, order: Order) -> tuple[Closure, dict[str, str]]:
    """What a source is made of there, and the keys of its variants; asks for the same things as the builder did."""
    known = {kernel.name: kernel for kernel in worker.declared.kernels}
    cuda = worker.backend()
    variants = {name: worker.expand(name) for name in order.kernels if name in known}
    closure = worker.closure()
    found: dict[str, str] = {}
    for name, own in variants.items():
        kernel = closure.kernels[name]
        found |= keys.variant_keys(known[name], own, order.arch, kernel, options=order.options, cuda=cuda)
    return closure, found


def make_artifact(launcher: Path, compiled: Compiled, options: Options) -> Artifact:
    content = pack_variant(launcher, compiled, options.keep)
    return Artifact(hashlib.sha256(content).hexdigest(), content)


class _Idle:
    """Workers between two orders of a build, so that CuTe DSL is not imported for each."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.waiting: list[_Opened] = []

    def take(self, order: Order) -> _Opened | None:
        with self.lock:
            for opened in self.waiting:
                if opened.build == (order.build, order.arch):
                    self.waiting.remove(opened)
                    return opened
        return None

    def put_back(self, opened: _Opened) -> None:
        if not opened.is_usable():
            opened.close()
            return
        opened.used = time.monotonic()
        with self.lock:
            self.waiting.append(opened)
        timer = threading.Timer(IDLE_SECONDS, self._end_if_idle, (opened, opened.used))
        timer.daemon = True
        timer.start()

    def _end_if_idle(self, opened: _Opened, since: float) -> None:
        with self.lock:
            if opened not in self.waiting or opened.used != since:
                return
            self.waiting.remove(opened)
        opened.close()


_IDLE = _Idle()
