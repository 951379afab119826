"""Making a bundle out of bundles: joining several, or taking kernels out of one. Nothing is compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from aot_runtime.arch import Arch

from ..bundle.lock import locked
from ..bundle.manifest import Manifest
from ..bundle.publish import check_destination, staging
from ..bundle.verifying.verify import refuse_unsound
from ..cache.store import Store
from ..hosts import available_cores
from .assembling.assemble import assemble
from .assembling.contributions import Contribution, bundle_contribution, not_settled
from .assembling.finish import verify_and_publish
from .assembling.linking import linkers
from .planning.changes import check_joined
from .workspace import scratch_folder

__all__ = ["Tools", "combine", "merge", "prune"]

Warn = Callable[[str], None]


@dataclass(frozen=True)
class Tools:
    """What combining needs beside bundles."""

    cache: Path  # of the tools
    artifacts: Path | None = None  # where linked code is kept from build to build; None: nowhere
    wait: bool = True  # for another process that writes to the same directory; False: fail instead


def merge(bundles: Sequence[Path], out: Path, tools: Tools, warn: Warn) -> Manifest:
    """Join bundles of one name; what several of them hold must be the same."""
    with locked(out, warn, wait=tools.wait):
        destination = check_destination(out)
        for bundle in bundles:
            refuse_unsound(bundle, "nothing was merged")
        given = [bundle_contribution(bundle) for bundle in bundles]
        pairs, hosts = {pair for one in given for pair in one.kernels}, {host for one in given for host in one.hosts}
        check_joined(destination, given[0].name, pairs, hosts)
        return combine(not_settled(given), out, tools, warn)


def prune(bundle: Path, keeps: Callable[[str, Arch], bool], tools: Tools, warn: Warn) -> Manifest:
    """Leave those kernels in a bundle that are kept for an architecture."""
    with locked(bundle, warn, wait=tools.wait, changes=True):
        refuse_unsound(bundle, "nothing was removed")
        return combine([bundle_contribution(bundle, keeps)], bundle, tools, warn)


def combine(contributions: Sequence[Contribution], out: Path, tools: Tools, warn: Warn) -> Manifest:
    """Make a bundle of what is contributed. Its directory is locked already."""
    store = Store(tools.artifacts, warn=warn) if tools.artifacts is not None else None
    with (
        scratch_folder() as scratch,
        linkers(tools.cache, scratch, available_cores(), store) as linker_for,
        staging(out.absolute()) as staged,
    ):
        manifest = assemble(contributions, staged, linker_for)
        verify_and_publish(staged, out, store, warn)
    return manifest
