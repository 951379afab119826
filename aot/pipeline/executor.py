"""The interface of executors: jobs in, one outcome for each; and from the text of ``--executor`` to one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from aot_runtime.arch import Arch

from ..compile.messages import Compiled, Options
from ..errors import Failure, UsageError

__all__ = ["Address", "CompileJob", "Executor", "Report", "Session", "open_executor", "parse_address"]


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


@dataclass(frozen=True)
class Address:
    """Where a scheduler listens, and whether it is talked to through TLS."""

    host: str
    port: int
    encrypted: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.encrypted else 'tcp'}://{host}:{self.port}"


def open_executor(text: str | None, security: Path | None = None) -> Executor | None:
    """Connect to the cluster that is named; None if none is. ``security`` names certificates, and asks for TLS."""
    if text is None:
        if security is not None:
            raise UsageError("`--dask-security` needs a cluster", hint="pass `--executor tls://host:8786`")
        return None
    address = parse_address(text)
    from .dask import DaskExecutor

    return DaskExecutor.connect(replace(address, encrypted=address.encrypted or security is not None), security)


def parse_address(text: str) -> Address:
    """``dask://host:port`` or ``tcp://host:port``, and ``tls://host:port``."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or port is None or parts.scheme not in _SCHEMES or parts.path.strip("/") or parts.query:
        raise UsageError(f"not an executor: {text!r}", hint="write it like dask://host:8786 or tls://host:8786")
    return Address(host, port, parts.scheme == "tls")


_SCHEMES = ("dask", "tcp", "tls")
