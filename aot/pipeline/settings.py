"""What a build is asked for, and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from aot_runtime.manifest import Manifest, is_name

from ..cache.places import own_folder
from ..compile.messages import Options
from ..errors import Failure, UsageError
from ..hosts import Host
from .local import LINK_BYTES, WORKER_BYTES, fitting
from .spellings import with_native

__all__ = ["BuildResult", "Settings"]


@dataclass(frozen=True)
class Settings:
    """What to build, from what, for what. The command line fills one in; so may a program."""

    kernels: str
    archs: tuple[str, ...]
    out: Path | None = None  # None: dist/<name>
    name: str | None = None  # None: the name of the kernels' folder or module
    select: tuple[str, ...] = ()  # globs of kernel names; empty: all kernels
    families: tuple[str, ...] = ()  # folders of kernels, or "all"; empty: those that ``select`` needs, or the core ones
    hosts: tuple[Host, ...] = field(default_factory=lambda: (Host.native(),))
    jobs: int = 1
    memory: int | None = None  # bytes that the build may take with all its processes; None: no limit but ``jobs``
    timeout: float | None = None  # seconds for one variant, and for importing one file of the kernels
    executor: str | None = (
        None  # the cluster that compiles, like dask://host:port or tls://host:port; None: this machine
    )
    dask_security: Path | None = None  # a file that names certificates for a connection through TLS
    options: Options = field(default_factory=Options)
    shared_cudart: bool = False
    replace: bool = False  # replace a bundle of the same name at the destination instead of adding to it
    allow_incomplete: bool = False  # an incomplete build may replace a complete bundle
    cache: Path = field(default_factory=own_folder)  # of the tools
    artifacts: Path | None = None  # where compiled and linked code is kept from build to build; None: nowhere
    remote: str | None = None  # the URL of a cache behind ``artifacts``
    remote_read_only: bool = False  # put nothing into the cache at that URL
    wheelhouse: Path | None = None
    archives: bool = True  # for static linking, beside the shared libraries
    tuning: tuple[Path, ...] = ()  # tables that `tune` wrote; empty: those in a folder `tuning` of the source
    wait: bool = True  # for another process that writes to the same directory; False: fail instead

    def __post_init__(self) -> None:
        object.__setattr__(self, "archs", with_native(self.archs))

    @property
    def bundle_name(self) -> str:
        name = self.name or _default_name(self.kernels)
        if not is_name(name):
            raise UsageError(f"{name!r} cannot name a bundle", hint="use letters, digits and underscores in `--name`")
        return name

    @property
    def destination(self) -> Path:
        return self.out or Path("dist") / self.bundle_name

    @property
    def worker_count(self) -> int:
        return fitting(self.jobs, self.memory, WORKER_BYTES)

    @property
    def link_count(self) -> int:
        return fitting(self.jobs, self.memory, LINK_BYTES)


@dataclass(frozen=True)
class BuildResult:
    path: Path
    manifest: Manifest
    failures: tuple[Failure, ...]


def _default_name(kernels: str) -> str:
    return Path(kernels).stem if "/" in kernels or Path(kernels).exists() else kernels.rsplit(".", 1)[-1]
