"""What a build may do to the bundle that lies at its destination.

A build makes a bundle of what its sources and settings say now. What the sources no longer declare goes. A build that
was asked for less than the bundle holds stops before it compiles: nothing is lost that was not named.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from aot_runtime.arch import Arch

from ...bundle.comparing.staleness import stale_kernels, unrecorded
from ...bundle.details import read_details
from ...bundle.layout import details_name
from ...bundle.manifest import Manifest
from ...bundle.publish import Destination
from ...bundle.signature import is_signed
from ...bundle.tables.tuning import TUNING
from ...compile.messages import EXERCISE
from ...errors import BuildError, Failure, UsageError, counted
from ...files import sha256_of
from ...hosts import Host
from ...targets import builds_for
from ..plan import Plan
from ..settings import Changes, Settings
from ..sources import changed_tools

__all__ = ["Pair", "check_joined", "check_replaceable", "hosts_with_kept", "kept_pairs", "made_changes"]

Pair = tuple[str, Arch]
_LISTED = 12  # lines of an error
_ELSEWHERE = "pass another `--out`, or `--replace` to replace that bundle"


def check_replaceable(destination: Destination, settings: Settings) -> None:
    """Raise if the bundle there is not one that a build of this name goes on with."""
    existing, out, name = destination.manifest, destination.path, settings.bundle_name
    if settings.add and destination.is_damaged:
        raise UsageError(
            f"`{out}` is damaged, and nothing of it can be kept",
            hint=f"`python -m aot verify {out}` says what is wrong; pass `--replace` to replace it",
        )
    if existing is None or settings.replace:
        return
    hint = _ELSEWHERE
    if existing.name != name:
        raise UsageError(f"`{out}` holds the bundle {existing.name}, and this build makes {name}", hint=hint)
    if is_signed(out) and not settings.add:
        raise UsageError(
            f"`{out}` is signed, and this build may change it",
            hint=f"{hint}, and sign the new one: `python -m aot sign {out} --key KEY`",
        )


def check_joined(destination: Destination, name: str, pairs: Collection[Pair], hosts: Collection[str]) -> None:
    """Raise if a bundle that is joined from others would replace one of another name, or one that holds more."""
    existing, out = destination.manifest, destination.path
    if existing is None:
        return
    if existing.name != name:
        raise UsageError(
            f"`{out}` holds the bundle {existing.name}, and this makes {name}", hint="pass another `--out`"
        )
    lost = _named(_pairs(existing) - {*pairs}, existing)
    lost += [f"host {host}" for host in existing.hosts if host not in hosts]
    if lost:
        raise UsageError(
            f"`{out}` holds more than the bundles that are joined; it would drop\n{_listed(lost)}",
            hint=f"name `{out}` among the bundles to keep that, pass another `--out`, or remove it first",
        )


def kept_pairs(
    destination: Destination, plan: Plan, failures: Collection[Failure], settings: Settings
) -> frozenset[Pair]:
    """What is taken over from the bundle there, by kernel and architecture; raises if the build would lose something."""
    existing, out = destination.manifest, destination.path
    if existing is None or settings.replace:
        return frozenset()
    _check_kind(existing, out, plan, settings)
    if any(not failure.kernel for failure in failures):
        _check_readable(existing, out, plan, failures, settings)
    else:
        _check_source(existing, out, plan, settings)
    _check_not_shallower(existing, out, plan)
    rest = _rest(existing, plan, failures, settings)
    gone = frozenset(pair for pair in rest if _is_gone(pair, plan, settings))
    if settings.add:
        _check_kept(existing, out, rest, gone, plan, settings)
        return rest
    _check_not_narrower(existing, out, rest - gone, settings)
    return frozenset()


def hosts_with_kept(destination: Destination, settings: Settings) -> tuple[Host, ...]:
    """With ``--add``, every host of the bundle there gets what is added, with the glibc that the bundle was built for."""
    hosts = {host.name: host for host in settings.hosts}
    existing = destination.manifest
    for name, record in existing.hosts.items() if existing is not None and settings.add else ():
        hosts.setdefault(name, Host.of_record(name, record))
    return tuple(hosts.values())


def made_changes(before: Manifest | None, after: Manifest, *, compiled: int = 0, cached: int = 0) -> Changes:
    """What a build changed: it compiled ``compiled`` variants and found ``cached`` others in the cache."""
    lost = _dropped(before, after) if before is not None else ()
    return Changes(compiled=compiled, cached=cached, kept=after.variant_count - compiled - cached, dropped=lost)


def _dropped(before: Manifest, after: Manifest) -> tuple[str, ...]:
    """What a bundle had that the one in its place has not, for people."""
    pairs = _pairs(before) - _pairs(after)
    hosts = [f"host {host}" for host in before.hosts if host not in after.hosts]
    tables = sorted(_tables(before) - _tables(after))
    return (*_named(pairs, before), *hosts, *tables)


def _tables(manifest: Manifest) -> set[str]:
    return {path for path in manifest.files if PurePosixPath(path).parent == PurePosixPath(TUNING)}


def _pairs(manifest: Manifest) -> set[Pair]:
    return {(kernel.name, arch) for kernel in manifest.kernels.values() for arch in kernel.archs}


def _rest(existing: Manifest, plan: Plan, failures: Collection[Failure], settings: Settings) -> frozenset[Pair]:
    """What the bundle holds and the build was not asked for."""
    pairs = _pairs(existing)
    if settings.options.source == EXERCISE:  # it says what it compiles for the architectures that it is run for
        return frozenset(pair for pair in pairs if pair[1] not in settings.archs)
    asked = {(kernel.info.name, str(kernel.arch)) for kernel in plan.kernels}
    asked |= {(failure.kernel, failure.arch) for failure in failures}
    return frozenset((name, arch) for name, arch in pairs if (name, str(arch)) not in asked)


def _is_gone(pair: Pair, plan: Plan, settings: Settings) -> bool:
    """Whether the source does not give a kernel for an architecture any more."""
    name, arch = pair
    if settings.options.source == EXERCISE:
        return False
    return name not in plan.declared or not builds_for(plan.declared[name], arch)


def _check_kind(existing: Manifest, out: Path, plan: Plan, settings: Settings) -> None:
    """Captured and declared kernels are not mixed up because somebody mistook a directory."""
    there = {kernel.captured is not None for kernel in existing.kernels.values()}
    here = {one.info.captured is not None for one in plan.kernels}
    if settings.options.source == EXERCISE:
        here = {True}
    if here and there - here:
        raise UsageError(
            f"`{out}` is a bundle of {_kinds(there)} kernels, and this build makes one of {_kinds(here)} kernels",
            hint=_ELSEWHERE,
        )


def _kinds(are_captured: Collection[bool]) -> str:
    return " and ".join("captured" if one else "declared" for one in sorted(are_captured))


def _check_source(existing: Manifest, out: Path, plan: Plan, settings: Settings) -> None:
    """What another source put into a bundle, alone or joined with kernels of this one, does not go unnamed."""
    theirs = {
        kernel
        for record in existing.provenance
        for kernel in record.get("built", {})
        if kernel not in plan.declared and _is_foreign(record, plan, settings)
    }
    if theirs:
        raise UsageError(
            f"`{out}` has kernels of another source than `{settings.kernels}`: {', '.join(sorted(theirs))}",
            hint=_ELSEWHERE,
        )


def _is_foreign(record: Mapping[str, Any], plan: Plan, settings: Settings) -> bool:
    """Whether an earlier build had another source: this one has neither a kernel nor a file in common with it."""
    built, root = record.get("built", {}), settings.root
    if settings.options.source == EXERCISE:
        return root is not None and record["source"].get("name", root.name) != root.name
    folder = (root if root.is_dir() else root.parent) if root is not None else Path()

    def has(file: str, digest: str | None = None) -> bool:
        if file.endswith("__init__.py") or not (folder / file).is_file():  # every folder may have the first
            return False
        return digest is None or sha256_of(folder / file) == digest

    own = {file for one in built.values() for file in one["files"]}
    return (
        bool(plan.declared)
        and built.keys().isdisjoint(plan.declared)
        and not any(map(has, own))
        and not any(has(file, digest) for file, digest in record["source"].get("files", {}).items())
    )


def _check_readable(
    existing: Manifest, out: Path, plan: Plan, failures: Collection[Failure], settings: Settings
) -> None:
    """A kernel is not gone because its file cannot be read. A complete bundle is left as it is for any failure."""
    lost = {pair for pair in _pairs(existing) if pair[0] not in plan.declared}
    if lost and not existing.complete and not settings.allow_incomplete:
        raise BuildError(
            f"`{out}` holds {', '.join(_named(lost, existing))}, which this build cannot read: the bundle was left as it is",
            hint="fix the failures, or pass `--allow-incomplete`",
            failures=tuple(failures),
        )


def _check_not_narrower(existing: Manifest, out: Path, left_out: Collection[Pair], settings: Settings) -> None:
    hosts = [f"host {name}" for name in existing.hosts if name not in {host.name for host in settings.hosts}]
    if left_out or hosts:
        add = "--update" if settings.options.source == EXERCISE else "--add"
        raise UsageError(
            f"`{out}` holds more than this build makes; it would drop\n{_listed([*_named(left_out, existing), *hosts])}",
            hint=f"pass `{add}` to keep the rest, or `--replace` to drop it",
        )


def _check_not_shallower(existing: Manifest, out: Path, plan: Plan) -> None:
    """``--add`` keeps kernels whole: it cannot keep those of their variants that this build leaves out."""
    lost = {}
    for kernel in plan.kernels:
        if kernel.left_out and (kernel.info.name, kernel.arch) in _pairs(existing):
            there = read_details(out / details_name(kernel.arch), kernel.info.name)
            lost[f"{kernel.info.name} for {kernel.arch}"] = len({one.name for one in there} & {*kernel.left_out})
    lines = [f"{counted(count, 'variant')} of {name}" for name, count in lost.items() if count]
    if lines:
        raise UsageError(
            f"`{out}` was built with `--tilings all`, and this build has the core tilings; it would drop\n{_listed(lines)}",
            hint="pass `--tilings all` to keep them, or `--replace` to drop them",
        )


def _check_kept(
    existing: Manifest, out: Path, kept: Collection[Pair], gone: Collection[Pair], plan: Plan, settings: Settings
) -> None:
    """Raise if something that would be kept is not what the sources say, was made by other tools, or lacks a host."""
    reasons = _reasons(existing, kept, gone, settings, changed_tools(existing.toolchain, plan.cuda))
    if reasons:
        add = "--update" if settings.options.source == EXERCISE else "--add"
        lines = [f"{', '.join(_named(pairs, existing))}: {reason}" for reason, pairs in reasons.items()]
        raise UsageError(
            f"`{add}` cannot keep parts of `{out}` that are out of date\n{_listed(lines)}",
            hint=f"bring the bundle up to date: `{_whole_command(existing, out, plan, settings)}`",
        )


def _reasons(
    existing: Manifest, kept: Collection[Pair], gone: Collection[Pair], settings: Settings, tools: str
) -> Mapping[str, set[Pair]]:
    """The parts of a bundle that cannot be kept, by the reason; ``tools`` says which tools changed since."""
    stale_here = stale_kernels(existing, settings.root) if settings.root is not None else ()
    stale = {(one.kernel, arch): one.reason for one in stale_here for arch in one.archs}
    unknown = unrecorded(existing)
    lacking = ", ".join(host.name for host in settings.hosts if host.name not in existing.hosts)

    def reason(pair: Pair) -> str:
        name, arch = pair[0], str(pair[1])
        if pair in gone:
            return stale.get((name, arch), "it is no longer declared")
        if (name, arch) in unknown:
            return "what it was built from is not recorded"
        return stale.get((name, arch)) or tools or (f"it has no code for {lacking}" if lacking else "")

    found: dict[str, set[Pair]] = {}
    for pair in kept:
        if why := reason(pair):
            found.setdefault(why, set()).add(pair)
    return dict(sorted(found.items()))


def _whole_command(existing: Manifest, out: Path, plan: Plan, settings: Settings) -> str:
    """The command that builds all that the bundle and this build hold, so far as it is still declared."""
    planned = {kernel.info.name for kernel in plan.kernels}
    archs = sorted({*existing.archs, *(kernel.arch for kernel in plan.kernels)})
    cpus = sorted({host.partition("-")[0] for host in (*existing.hosts, *(host.name for host in settings.hosts))})
    capture = settings.options.source == EXERCISE
    words = ["capture", settings.kernels] if capture else ["build", "--source", settings.kernels]
    words += ["--name", existing.name, "--arch", ",".join(map(str, archs))]
    wanted = {*planned, *(name for name in existing.kernels if name in plan.declared)}
    if not capture and not (wanted == planned and not settings.select and not settings.families):
        words += ["--family", "all"] if wanted == set(plan.declared) else _repeated("--kernel", sorted(wanted))
    words += ["--tilings", settings.tilings] if settings.tilings != "core" else []
    words += ["--host", ",".join(cpus)] if cpus != [Host.native().cpu] else []
    words += ["--cudart", "shared"] if settings.shared_cudart else []
    words += [] if settings.archives else ["--no-archives"]
    return f"python -m aot {shlex.join([*words, '--out', str(out)])}"


def _repeated(option: str, values: Iterable[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


def _named(pairs: Collection[Pair], manifest: Manifest) -> list[str]:
    """Parts of a bundle, for people: kernels that share their architectures are named together."""
    archs: dict[str, tuple[Arch, ...]] = {}
    for name, arch in sorted(pairs):
        archs[name] = (*archs.get(name, ()), arch)
    together: dict[tuple[Arch, ...], list[str]] = {}
    for name, own in archs.items():
        together.setdefault(own, []).append(name)
    return [f"{_kernels(names, own, manifest)} for {', '.join(map(str, own))}" for own, names in together.items()]


def _kernels(names: Collection[str], archs: Collection[Arch], manifest: Manifest) -> str:
    holding = {kernel.name for kernel in manifest.kernels.values() if set(archs) & set(kernel.archs)}
    return "every kernel" if holding == set(names) and len(holding) > 1 else ", ".join(names)


def _listed(lines: list[str]) -> str:
    more = [f"  and {len(lines) - _LISTED} more"] if len(lines) > _LISTED else []
    return "\n".join([*(f"  {line}" for line in lines[:_LISTED]), *more])
