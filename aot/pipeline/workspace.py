"""What every stage of a build uses and none changes: the settings, a scratch folder, the cache, whom to report to."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from ..bundle.build_records import SourceRecord
from ..cache.entries import entry_limit
from ..cache.remote import Remote, SharedStore
from ..cache.store import Store
from ..errors import BuildError, UsageError
from ..files import full_disk, owned_directory, sweep
from .events import Progress
from .settings import Settings
from .sources import source_record
from .tuning import Tables, read_tables

__all__ = ["Workspace", "make_workspace", "open_workspace", "scratch_folder"]

SCRATCH = "aot-build-"  # what scratch folders' names begin with


@dataclass(frozen=True)
class Workspace:
    settings: Settings
    name: str  # of the bundle
    out: Path  # where the bundle goes
    progress: Progress
    scratch: Path  # removed when the build ends
    store: Store | None  # where compiled and linked code is kept; None: nowhere
    tables: Tables = field(default_factory=Tables)  # of tuning

    @cached_property
    def source(self) -> SourceRecord:
        """What the source is as the build begins: its files and its commit."""
        return source_record(self.settings.root)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for one build, and what killed builds have left there removed."""
    folder = Path(tempfile.gettempdir())
    sweep(folder, prefix=SCRATCH)
    check_room(folder)
    with owned_directory(folder, prefix=SCRATCH) as scratch:
        yield scratch


def check_room(folder: Path) -> None:
    """Raise if there is no room for temporary files: else each variant would fail for that reason."""
    hint = full_disk(folder)
    if hint is not None:
        raise BuildError(f"there is no room for temporary files in `{folder}`", hint=f"{hint}, or set TMPDIR")


def make_workspace(settings: Settings, progress: Progress, scratch: Path) -> Workspace:
    """A workspace with the cache of this machine alone."""
    artifacts = settings.artifacts or (scratch / "artifacts" if settings.remote else None)
    store = None
    if artifacts is not None:
        store = Store(artifacts, limit=entry_limit(settings.memory), warn=progress.warn)
    return Workspace(settings, settings.bundle_name, settings.destination, progress, scratch, store)


def open_workspace(settings: Settings, progress: Progress, scratch: Path) -> Workspace:
    """The same for a build: what it needs beside this machine's cache is looked at, whether or not it will compile.

    The shared cache stands behind the folder of this machine, if the settings name one.
    """
    wheelhouse = settings.wheelhouse
    if wheelhouse is not None and not wheelhouse.is_dir():
        raise UsageError(
            f"the wheelhouse `{wheelhouse}` is not a folder",
            hint="name the folder that holds NVIDIA's wheels for other hosts, or leave it out",
        )
    workspace = make_workspace(settings, progress, scratch)
    store = workspace.store
    if store is not None and settings.remote is not None:
        remote = Remote.open(settings.remote, read_only=settings.remote_read_only, warn=progress.warn)
        store = SharedStore(store, remote)
    return replace(workspace, store=store, tables=read_tables(settings))
