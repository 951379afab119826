"""Compile kernels and pack them into a bundle."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ...errors import Failure, counted
from ...pipeline.build import build
from ...pipeline.events import Clock
from ...pipeline.outlook import KernelOutlook, Outlook, foresee
from ...pipeline.settings import BuildResult, Changes
from ...records import encode
from ..options import add_cache_argument, add_family_argument, add_kernels_argument, add_wait_argument
from ..planned import estimate_text, plan_data, print_plan
from ..progress import make_progress
from ..report import human_size, human_time, note, print_failures, print_json
from ..schema import Key
from ..settings import DEFAULT_TIMEOUT, KEEPABLE, build_settings

__all__ = [
    "KEYS",
    "PLAN_KEYS",
    "add_content_arguments",
    "add_existing_arguments",
    "add_resource_arguments",
    "add_target_arguments",
    "configure_parser",
    "execute",
    "result_data",
    "summary",
]

PLAN_KEYS = (
    Key("plan", tuple[KernelOutlook, ...], "what would be compiled, by kernel and architecture"),
    Key("estimate", float | None, "seconds to compile what is not in the cache; null: not known"),
)
KEYS = (
    Key("path", str, "directory of the bundle"),
    Key("complete", bool, "whether the bundle has everything that was ever asked of it", "without --dry-run"),
    Key("kernels", Mapping[str, int], "number of variants by name of the kernel", "without --dry-run"),
    Key("hosts", tuple[str, ...], "CPUs and C libraries that it runs on", "without --dry-run"),
    Key("failures", tuple[Failure, ...], "what failed"),
    Key("changes", Changes, "what was compiled, taken over and dropped", "without --dry-run"),
    Key("seconds", Mapping[str, float], "how long each phase took, by its name, and `total`", "without --dry-run"),
    *(replace(key, only="with --dry-run") for key in PLAN_KEYS),
)


def configure_parser(parser: argparse.ArgumentParser) -> None:
    add_kernels_argument(parser)
    parser.add_argument(
        "--kernel", action="append", default=[], metavar="GLOB", help="only kernels whose name matches; repeatable"
    )
    add_family_argument(parser)
    add_target_arguments(parser)
    parser.add_argument("--dry-run", action="store_true", help="plan, and show what would be compiled; build nothing")
    add_resource_arguments(parser)
    _add_cluster(parser)
    add_content_arguments(parser)
    _add_changes(parser)


def add_target_arguments(parser: argparse.ArgumentParser) -> None:
    """What the bundle is for, and where it goes."""
    add = parser.add_argument
    add(
        "--arch",
        action="append",
        default=[],
        metavar="ARCH",
        help="sm80, sm90, sm100, ..., exact names (sm_90a), GPUs (H100, RTX4090), compute capabilities (9.0), native, comma lists, "
        "or all; repeatable (default in a kernel project: those of its pyproject.toml)",
    )
    add("--name", help="name of the bundle (default: the name of the source's folder, file or module)")
    add("--out", type=Path, metavar="DIR", help="where the bundle goes (default: dist/<name>)")
    add(
        "--host",
        action="append",
        default=[],
        metavar="CPU",
        help="x86_64, aarch64 or all (default: this machine's); repeatable",
    )
    add("--glibc", metavar="VERSION", help="lowest glibc to run on (default: 2.28)")
    add(
        "--cudart",
        choices=("static", "shared"),
        help="link the CUDA runtime into the bundle, or use the one of the process (default: static)",
    )
    add(
        "--cuda",
        type=int,
        choices=(12, 13),
        help="CUDA major version of CuTe DSL's backend (default: the installed one)",
    )


def add_resource_arguments(parser: argparse.ArgumentParser) -> None:
    """What the build may use."""
    add = parser.add_argument
    add("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="compile workers (default: one per core)")
    add(
        "--memory",
        metavar="SIZE",
        help="limit the memory of the build with all its processes, such as 4G (default: no limit)",
    )
    add(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help=f"time limit for one variant, and for importing one file of the kernels (default: {DEFAULT_TIMEOUT})",
    )


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--executor",
        metavar="URL",
        help="compile on a cluster: dask://host:port, or tls://host:port through TLS (default: on this machine)",
    )
    add(
        "--dask-security",
        type=Path,
        metavar="FILE",
        help="certificates for tls:// as TOML, JSON or YAML: ca, cert and key (default: Dask's configuration)",
    )


def add_content_arguments(parser: argparse.ArgumentParser) -> None:
    """What the bundle holds, and what becomes of the one that is there."""
    add = parser.add_argument
    add(
        "--keep",
        default="",
        metavar="KINDS",
        help=f"keep intermediate files in the bundle: a comma list of {', '.join(KEEPABLE)}",
    )
    add_cache_argument(parser)
    add(
        "--tuning",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="compile these measured choices into the bundle: a file that `tune` wrote; repeatable "
        "(default: the files in a folder `tuning` of the kernels' folder)",
    )
    add("--line-info", action="store_true", help="let profilers show source lines; this puts paths into the code")
    add("--no-archives", action="store_true", help="leave out the archives for static linking")
    add_wait_argument(parser)
    add("--allow-incomplete", action="store_true", help="let an incomplete build replace a complete bundle")
    add(
        "--wheelhouse",
        type=Path,
        metavar="DIR",
        help="folder with NVIDIA's wheels for other hosts, for machines without a network",
    )


def _add_changes(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--cache-read-only", action="store_true", help="do not write to the shared cache")
    add_existing_arguments(parser, "--add")


def add_existing_arguments(parser: argparse.ArgumentParser, add: str) -> None:
    """What becomes of a bundle that is there and holds more than the build makes; ``add`` names the option to keep it."""
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument(
        add,
        dest="add",
        action="store_true",
        help="keep what else the bundle at `--out` holds; fails if that is out of date (default: stop if it holds more "
        "than this build makes)",
    )
    ways.add_argument(
        "--replace", action="store_true", help="make exactly this bundle, whatever bundle is at `--out` now"
    )


def execute(arguments: argparse.Namespace) -> int:
    settings = build_settings(arguments)
    progress = make_progress(arguments)
    if arguments.dry_run:
        with progress:
            outlook = foresee(settings, progress, as_build=True)
        return _show(arguments, outlook, settings.worker_count)
    with progress:
        result = build(settings, progress)
    progress.clock.enter("")
    print_failures(arguments, result.failures)
    if arguments.json:
        print_json(result_data(result, progress.clock))
    else:
        note(arguments, summary(result, progress.clock))
        print(result.path)
    return 1 if result.failures else 0


def _show(arguments: argparse.Namespace, outlook: Outlook, workers: int) -> int:
    """Print what a build would do."""
    print_failures(arguments, outlook.failures)
    if arguments.json:
        print_json({"path": str(outlook.path), **plan_data(outlook)})
        return 1 if outlook.failures else 0
    print_plan(outlook)
    missing = f"{counted(outlook.variants - outlook.cached, 'variant')} of {outlook.variants} to compile"
    note(arguments, f"{missing} for `{outlook.path}`; time: {estimate_text(outlook, workers)}")
    return 1 if outlook.failures else 0


def summary(result: BuildResult, clock: Clock) -> str:
    manifest = result.manifest
    variants = sum(kernel.variants for kernel in manifest.kernels.values())
    size = sum(record.size for record in manifest.files.values())
    state = "verified" if manifest.complete else f"INCOMPLETE: {_missing(result)}"
    phases = ", ".join(f"{phase} {human_time(took)}" for phase, took in clock.took.items() if took >= 0.05)
    return (
        f"bundle {manifest.name}: {counted(len(manifest.kernels), 'kernel')} ({', '.join(manifest.kernels)}), "
        f"{counted(variants, 'variant')}, {', '.join(map(str, manifest.archs))}, "
        f"{'host' if len(manifest.hosts) == 1 else 'hosts'} {', '.join(manifest.hosts)}, {human_size(size)}, {state}, "
        f"in {human_time(clock.elapsed)}{f' ({phases})' if phases else ''}\n{_changes(result.changes)}"
    )


def _changes(changes: Changes) -> str:
    """What was compiled, taken over and dropped, in one line."""
    made = {"compiled": changes.compiled, "from the cache": changes.cached, "kept from the bundle": changes.kept}
    variants = [f"{count} {how}" for how, count in made.items() if count] or ["none"]
    return f"variants: {', '.join(variants)}; dropped: {', '.join(changes.dropped) or 'nothing'}"


def _missing(result: BuildResult) -> str:
    """How much is missing from the bundle, and how much of it since an earlier build that this one did not repeat."""
    earlier = len(result.manifest.failures) - len(result.failures)
    parts = [f"{len(result.failures)} failed"] if result.failures else []
    return ", ".join([*parts, f"{earlier} failed in earlier builds"] if earlier > 0 else parts)


def result_data(result: BuildResult, clock: Clock) -> dict[str, object]:
    return {
        "path": str(result.path),
        "complete": result.manifest.complete,
        "kernels": {name: kernel.variants for name, kernel in result.manifest.kernels.items()},
        "hosts": list(result.manifest.hosts),
        "failures": encode(result.failures),
        "changes": encode(result.changes),
        "seconds": {**{phase: round(took, 3) for phase, took in clock.took.items()}, "total": round(clock.elapsed, 3)},
    }
