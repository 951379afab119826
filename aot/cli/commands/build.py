"""Compile kernels and pack them into a bundle."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace

from ...errors import Failure, counted
from ...pipeline.build import build
from ...pipeline.events import Clock
from ...pipeline.outlook import KernelOutlook, Outlook, foresee
from ...pipeline.settings import BuildResult, Changes
from ...records import encode
from ..build_options import OPTIONS, add_build_options
from ..planned import estimate_text, plan_data, print_plan
from ..progress import make_progress
from ..report import human_size, human_time, note, print_failures, print_json
from ..schema import Key
from ..settings import build_settings

__all__ = [
    "KEYS",
    "PLAN_KEYS",
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
    add_build_options(parser, *OPTIONS, keep_rest="--add")
    parser.add_argument("--dry-run", action="store_true", help="plan, and show what would be compiled; build nothing")


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
    size = sum(record.size for record in manifest.files.values())
    state = "verified" if manifest.complete else f"INCOMPLETE: {_missing(result)}"
    phases = ", ".join(f"{phase} {human_time(took)}" for phase, took in clock.took.items() if took >= 0.05)
    return (
        f"bundle {manifest.name}: {counted(len(manifest.kernels), 'kernel')} ({', '.join(manifest.kernels)}), "
        f"{counted(manifest.variant_count, 'variant')}, {', '.join(map(str, manifest.archs))}, "
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
