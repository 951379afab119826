"""The interface of executors: jobs in, one outcome for each; and from the text of ``--executor`` to one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from aot_runtime.arch import Arch

from ..compile.messages import Compiled, Failure, Options
from ..errors import UsageError

__all__ = ["CompileJob", "Executor", "Report", "Session", "open_executor", "parse_address"]


@dataclass(frozen=True)
class Session:
    """What all jobs of a build share."""

    source: str
    options: Options
    timeout: float | None = None  # seconds for one variant, and for one file of the source
    skip: tuple[str, ...] = ()  # files of the source that cannot be read
    kernels: Mapping[Arch, tuple[str, ...]] = field(default_factory=dict)  # all that the build looked at


@dataclass(frozen=True)
class CompileJob:
    """One variant to compile for one architecture, and where its launcher goes."""

    arch: Arch
    kernel: str
    variant: str
    launcher: Path
    log: Path
    key: str = ""  # the digest of all that shapes it


Report = Callable[[CompileJob, "Compiled | Failure"], None]


class Executor(Protocol):
    """Compiles variants. What a job asks for lies where it says when ``report`` hears that it is compiled."""

    is_remote: bool  # whether jobs need their keys, to tell that another machine has the same source and tools

    def compile(self, session: Session, jobs: Sequence[CompileJob], report: Report) -> None:
        """Compile every job; ``report`` hears once of each, perhaps from several threads."""

    def close(self) -> None:
        """Let go of processes and connections."""


def open_executor(text: str | None) -> Executor | None:
    """Connect to the cluster that is named; None where none is."""
    if text is None:
        return None
    host, port = parse_address(text)
    from .dask import DaskExecutor

    return DaskExecutor.connect(host, port)


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of ``dask://host:port``."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or port is None or parts.scheme != "dask" or parts.path.strip("/") or parts.query:
        raise UsageError(f"not an executor: {text!r}", hint="write it like dask://host:8786")
    return host, port
