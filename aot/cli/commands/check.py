"""Run a bundle's kernels on this machine's GPU and compare them with their references."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ...bundle.lock import locked
from ...gpu.check import Report, check, read_report, record, report_data
from ..options import add_run_arguments, open_to_run, print_warning, write_json
from ..report import print_json, table

__all__ = ["configure_parser", "execute"]


def configure_parser(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser, "only this dtype: f16, bf16, ...", "report")
    parser.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help="run nothing; write into the bundle which variants this report verified (`verified_on`)",
    )


def execute(arguments: argparse.Namespace) -> int:
    if arguments.record is not None:
        return _record(arguments)
    opened = open_to_run(arguments, "check")
    report = check(opened.bundle, opened.contracts, opened.kernels, opened.gpu, arguments.dtype)
    data = report_data(arguments.bundle, opened.bundle.manifest, report)
    write_json(arguments.out, data)
    if arguments.json:
        print_json(data)
    else:
        _print(report)
    return 0 if report.passed else 1


def _record(arguments: argparse.Namespace) -> int:
    report = read_report(arguments.record)
    with locked(arguments.bundle, print_warning):
        count = record(arguments.bundle, report, print_warning)
    if arguments.json:
        print_json({"bundle": str(arguments.bundle), "verified": count})
    print(f"{arguments.bundle}: {count} variants are recorded as verified", file=sys.stderr)
    return 0


def _print(report: Report) -> None:
    by_variant: dict[tuple[str, str], list[Any]] = {}
    for outcome in report.outcomes:
        by_variant.setdefault((outcome.arch or "-", outcome.variant or outcome.kernel), []).append(outcome)
    rows: list[tuple[object, ...]] = []
    for (arch, variant), calls in by_variant.items():
        failed = sum(bool(call.problem) for call in calls)
        norm, worst = max(call.norm for call in calls), max(call.worst for call in calls)
        rows.append(
            (arch, variant, len(calls), f"{norm:.2f}", f"{worst:.2f}", f"{failed} FAILED" if failed else "good")
        )
    print(table(("arch", "variant", "calls", "norm/tolerance", "worst/tolerance", "verdict"), rows))
    for arch, variant in report.unreached:
        print(f"not reached by any input: {arch} {variant}")
    for kernel in report.unchecked:
        print(f"not checked, because it has no contract: {kernel}")
    for outcome in report.outcomes:
        if outcome.problem:
            what = " ".join((outcome.kernel, outcome.dtype, *outcome.choices.values()))
            print(f"failed: {what}: {outcome.arguments}: {outcome.problem}", file=sys.stderr)
    failed = sum(bool(outcome.problem) for outcome in report.outcomes)
    print(f"{report.gpu.name}: {len(report.outcomes)} calls, {failed} failed", file=sys.stderr)
