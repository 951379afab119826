"""What a build is asked for, and what comes out of it."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Literal

from aot_runtime.arch import Arch
from aot_runtime.description.records import is_name

from ..bundle.manifest import Manifest
from ..cache.places import own_folder
from ..cache.remote import without_secrets
from ..compile.messages import Options
from ..errors import Failure, UsageError
from ..hosts import Host
from .address import Address
from .spellings import Wanted, exact_archs, parse_wanted

__all__ = ["WORKER_BYTES", "BuildResult", "Changes", "Settings", "Shape", "Tilings", "fitting"]

Tilings = Literal["core", "all"]

WORKER_BYTES = 800 << 20  # seen: 0.4 to 0.7 GB
LINK_BYTES = 400 << 20  # a compiler and a linker at once; seen: 60 to 150 MB each
LOWEST_MEMORY = 300 << 20  # seen: workers take 0.4 GB and more
_LONGEST_NAME = 100  # of a bundle, so that names of files made of it, an architecture and a purpose stay below 255


@dataclass(frozen=True)
class Settings:
    """What to build, from what, for what. The command line fills one in; so may a program.

    Architectures may be given as texts, in every spelling; they are values from here on.
    """

    kernels: str
    archs: tuple[Wanted, ...]
    out: Path | None = None  # None: dist/<name>
    name: str | None = None  # None: the name of the kernels' folder or module
    select: tuple[str, ...] = ()  # globs of kernel names; empty: all kernels
    families: tuple[str, ...] = ()  # folders of kernels, or "all"; empty: those that ``select`` needs, or the core ones
    tilings: Tilings = "core"  # whether variants are built that only make some calls faster
    hosts: tuple[Host, ...] = field(default_factory=lambda: (Host.native(),))
    jobs: int = 1
    memory: int | None = None  # bytes that the build may take with all its processes; None: no limit but ``jobs``
    timeout: float | None = None  # seconds for one variant, and for importing one file of the kernels
    executor: Address | None = None  # the cluster that compiles; None: this machine
    options: Options = field(default_factory=Options)
    shared_cudart: bool = False
    add: bool = False  # keep what the bundle at the destination holds beside what this build makes
    replace: bool = False  # replace whatever bundle is at the destination
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
        object.__setattr__(self, "archs", parse_wanted(self.archs))
        _check_memory(self.memory)

    @property
    def bundle_name(self) -> str:
        name = self.name or _default_name(self.kernels)
        if not is_name(name):
            raise UsageError(f"{name!r} cannot name a bundle", hint="use letters, digits and underscores in `--name`")
        if len(name) > _LONGEST_NAME:
            raise UsageError(
                f"the name of a bundle has {len(name)} letters; the names of its files begin with it",
                hint=f"pass a `--name` of at most {_LONGEST_NAME} letters",
            )
        return name

    @property
    def destination(self) -> Path:
        return self.out or Path("dist") / self.bundle_name

    @cached_property
    def root(self) -> Path | None:
        """The file or folder that the source lies in; None if it cannot be found."""
        path = Path(self.kernels)
        if path.exists():
            return path.resolve()
        package = self.kernels.partition(".")[0]
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
        if spec is None or spec.origin is None:
            return None
        origin = Path(spec.origin)
        found = origin.parent if origin.name == "__init__.py" else origin
        return found.resolve() if found.exists() else None

    @cached_property
    def first_arch(self) -> Arch | None:
        """The first architecture that is known before the kernels are. A worker for it reads the declarations."""
        return next(iter(exact_archs(self.archs)), None)

    @property
    def kept_in(self) -> str | None:
        """Where compiled code is kept, for people; None: nowhere."""
        if self.artifacts is not None:
            return str(self.artifacts)
        return without_secrets(self.remote) if self.remote else None

    @property
    def shape(self) -> Shape:
        given = {item.name: getattr(self, item.name) for item in fields(Shape)}
        wheelhouse = str(self.wheelhouse.resolve()) if self.wheelhouse is not None else None
        return Shape(**{**given, "name": self.bundle_name, "wheelhouse": wheelhouse})

    @property
    def worker_count(self) -> int:
        return fitting(self.jobs, self.memory, WORKER_BYTES)

    @property
    def link_count(self) -> int:
        return fitting(self.jobs, self.memory, LINK_BYTES)


@dataclass(frozen=True)
class Shape:
    """The settings that shape a bundle: all of them are hashed into the key of the finished build.

    The kernels and the tables of ``tuning`` count by their content, and are not here. Neither is what a bundle does not
    depend on: where things lie, and how much of the machine the build takes.
    """

    name: str
    archs: tuple[Wanted, ...]
    select: tuple[str, ...]
    families: tuple[str, ...]
    tilings: Tilings
    hosts: tuple[Host, ...]
    options: Options
    shared_cudart: bool
    archives: bool
    add: bool
    replace: bool
    wheelhouse: str | None  # where it lies


@dataclass(frozen=True)
class Changes:
    """What a build did to get from the bundle that was there to the one that is there now."""

    compiled: int = 0  # variants that were compiled
    cached: int = 0  # variants that came from the cache
    kept: int = 0  # variants that were taken over from the bundle that was there
    dropped: tuple[str, ...] = ()  # what that bundle had, and the new one has not


@dataclass(frozen=True)
class BuildResult:
    path: Path
    manifest: Manifest
    failures: tuple[Failure, ...]
    changes: Changes = field(default_factory=Changes)


def fitting(count: int, memory: int | None, each: int) -> int:
    """How many of ``count`` processes of that size fit into the memory allowed; at least one."""
    return count if memory is None else max(1, min(count, memory // each))


def _check_memory(memory: int | None) -> None:
    """Raise if not even one worker fits: each variant would fail for it, one after the other."""
    if memory is not None and memory < LOWEST_MEMORY:
        raise UsageError(
            f"`--memory` is {memory >> 20} MB, and a worker alone takes more than {LOWEST_MEMORY >> 20} MB",
            hint="pass `--memory 2G`, or leave it out",
        )


def _default_name(kernels: str) -> str:
    return Path(kernels).stem if "/" in kernels or Path(kernels).exists() else kernels.rsplit(".", 1)[-1]
