"""The interface of executors: jobs in, one outcome for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from aot_runtime.arch import Arch

from ...compile.messages import DECLARATIONS, EXERCISE, Compiled, Options
from ...errors import Failure
from .forecast import Code

__all__ = ["WORKERS", "CompileJob", "Executor", "Report", "Session"]

# The modules that run in worker processes, by what the source is.
WORKERS = {DECLARATIONS: "aot.compile.worker", EXERCISE: "aot.capture.worker"}


@dataclass(frozen=True)
class Session:
    """What all jobs of a build share."""

    source: str
    options: Options
    timeout: float | None = None  # seconds for one variant, and for one file of the source
    skip: tuple[str, ...] = ()  # files of the source that cannot be read
    kernels: Mapping[Arch, tuple[str, ...]] = field(default_factory=dict)  # all that the build looked at
    first: Arch | None = None  # the worker for it reads the declarations; None: one for no architecture


@dataclass(frozen=True)
class CompileJob:
    """One variant to compile for one architecture, and where its launcher goes."""

    arch: Arch
    kernel: str
    variant: str
    launcher: Path
    log: Path
    key: str = ""  # the digest of all that shapes it
    group: str = ""  # jobs of one group may share code: a worker that had one should get the others

    @property
    def code(self) -> Code:
        return self.arch, self.kernel, self.group or self.variant

    @property
    def label(self) -> str:
        """What durations are kept by."""
        return f"{self.arch} {self.variant}"


Report = Callable[[CompileJob, "Compiled | Failure"], None]


class Executor(Protocol):
    """Compiles variants. What a job asks for lies where it says when ``report`` hears that it is compiled."""

    def compile(self, session: Session, jobs: Sequence[CompileJob], report: Report) -> None:
        """Compile every job; ``report`` hears once of each, perhaps from several threads."""

    def close(self) -> None:
        """Let go of processes and connections."""
