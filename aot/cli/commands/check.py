"""Run a bundle's kernels on this machine's GPU and compare them with their references."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from ...bundle.lock import locked
from ...errors import counted
from ...gpu.check import Outcome, Report, VerifiedVariant, check, read_report, record, report_data
from ...gpu.exercise import check_exercise
from ...gpu.running import GpuFacts
from ...gpu.sanitizer import TOOLS, sanitize
from ..options import (
    Opened,
    add_old_spelling,
    add_run_arguments,
    open_to_run,
    print_warning,
    read_trusted,
    refuse_unused,
    words_of_keys,
    write_json,
)
from ..report import note, print_json, print_message, table
from ..schema import Key

__all__ = ["KEYS", "configure_parser", "execute"]

KEYS = (
    Key("bundle", str, "name of the bundle; with --mark-verified and --sanitize, its directory"),
    Key("machine", GpuFacts, "the GPU and what runs it", "without --mark-verified and --sanitize"),
    Key(
        "passed",
        bool,
        "whether every call agreed with its reference, and with --sanitize nothing was found",
        "without --mark-verified",
    ),
    Key("verified", tuple[VerifiedVariant, ...], "variants that agreed", "without --mark-verified and --sanitize"),
    Key("verified", int, "how many variants are recorded", "with --mark-verified"),
    Key(
        "unreached",
        tuple[tuple[str, str], ...],
        "variants that no input reaches: architecture and name",
        "without --mark-verified and --sanitize",
    ),
    Key(
        "unchecked",
        tuple[str, ...],
        "kernels without a contract; with --exercise, those that it does not use",
        "without --mark-verified and --sanitize",
    ),
    Key(
        "calls",
        tuple[Outcome, ...],
        "every call, with its distance from the reference",
        "without --mark-verified and --sanitize",
    ),
    Key("command", tuple[str, ...], "what was run", "with --sanitize"),
    Key("output", str, "what it printed", "with --sanitize"),
)


_SHOWN = 12  # variants that no input reaches; the rest are counted


def configure_parser(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser, "only these dtypes: f16, bf16, ...", "report")
    parser.add_argument(
        "--every",
        action="store_true",
        help="also run the variants that take a call and that selection does not choose: other tilings, for example",
    )
    parser.add_argument(
        "--mark-verified",
        type=Path,
        metavar="REPORT",
        help="run nothing; write into the bundle which variants this report verified (`verified_on`)",
    )
    add_old_spelling(parser, "--record", "mark_verified", Path)
    parser.add_argument(
        "--exercise",
        type=Path,
        metavar="FILE",
        help="check a captured bundle with the file that it was captured from: its `kernel_fn` against its `reference_fn`, "
        "with what its `get_inputs` gives; needs CuTe DSL, which compiles nothing",
    )
    parser.add_argument(
        "--sanitize",
        choices=TOOLS,
        help="run the checks under compute-sanitizer of the CUDA toolkit, with this tool of it",
    )


def execute(arguments: argparse.Namespace) -> int:
    if arguments.mark_verified is not None:
        others = ("--sanitize", "--exercise", "--every", "--kernel", "--dtype", "--out", "--key")
        refuse_unused(arguments, "--mark-verified", *others)
        return _record(arguments)
    if arguments.sanitize is not None:
        refuse_unused(arguments, "--sanitize", "--exercise", "--out")
        return _sanitize(arguments)
    if arguments.exercise is not None:
        refuse_unused(arguments, "--exercise", "--every", "--dtype")
    opened = open_to_run(arguments, "check")
    report = _report(arguments, opened)
    data = report_data(arguments.bundle, opened.bundle.manifest, report)
    write_json(arguments.out, data)
    if arguments.json:
        print_json(data)
    else:
        _print(arguments, report)
    return 0 if report.passed else 1


def _report(arguments: argparse.Namespace, opened: Opened) -> Report:
    if arguments.exercise is None:
        return check(
            opened.bundle, opened.contracts, opened.kernels, opened.gpu, arguments.dtype, every=arguments.every
        )
    import aot_runtime

    serve = partial(aot_runtime.serve, key=arguments.key or None)
    return check_exercise(arguments.exercise, arguments.bundle, opened.kernels, opened.gpu, serve)


def _sanitize(arguments: argparse.Namespace) -> int:
    read_trusted(arguments)  # what is not a bundle is said by us, not by a process of another tool
    words = [sys.executable, "-m", "aot", "check", str(arguments.bundle), *words_of_keys(arguments)]
    words += [word for glob in arguments.kernel for word in ("--kernel", glob)]
    words += [word for dtype in arguments.dtype for word in ("--dtype", dtype)]
    words += ["--every"] if arguments.every else []
    done = sanitize(arguments.sanitize, words)
    passed = done.exit_code == 0
    if arguments.json:
        data = {"bundle": str(arguments.bundle), "passed": passed}
        print_json({**data, "command": list(done.command), "output": done.output})
    else:
        print(done.output, end="")
        note(arguments, f"{arguments.bundle}: {arguments.sanitize}: {done.verdict}")
    return 0 if passed else 1


def _record(arguments: argparse.Namespace) -> int:
    report = read_report(arguments.mark_verified)
    with locked(arguments.bundle, print_warning, changes=True):
        count = record(arguments.bundle, report, print_warning)
    if arguments.json:
        print_json({"bundle": str(arguments.bundle), "verified": count})
    note(arguments, f"{arguments.bundle}: {counted(count, 'variant')} recorded as verified")
    return 0


def _largest(errors: Iterable[float | None]) -> float:
    return max(math.inf if error is None else error for error in errors)


def _print(arguments: argparse.Namespace, report: Report) -> None:
    by_variant: dict[tuple[str, str], list[Any]] = {}
    for outcome in report.outcomes:
        by_variant.setdefault((outcome.arch or "-", outcome.variant or outcome.kernel), []).append(outcome)
    rows: list[tuple[object, ...]] = []
    for (arch, variant), calls in by_variant.items():
        failed = sum(bool(call.problem) for call in calls)
        norm, worst = _largest(call.norm for call in calls), _largest(call.worst for call in calls)
        ulps = max((call.ulps for call in calls if call.ulps is not None), default=None)
        verdict = f"{failed} FAILED" if failed else "good"
        far = "" if ulps is None else f"{ulps:.2f}"
        rows.append((arch, variant, len(calls), f"{norm:.2f}", f"{worst:.2f}", far, verdict))
    print(table(("arch", "variant", "calls", "norm/tolerance", "worst/tolerance", "ulps", "verdict"), rows))
    shown = report.unreached if arguments.verbose else report.unreached[:_SHOWN]
    for arch, variant in shown:
        print(f"not reached by any input: {arch} {variant}")
    if len(shown) < len(report.unreached):
        print(f"and {counted(len(report.unreached) - len(shown), 'variant')} more, which `-v` lists")
    for kernel in report.unchecked:
        why = "it has no contract" if arguments.exercise is None else "the file does not use it"
        print(f"not checked, because {why}: {kernel}")
    for outcome in report.outcomes:
        if outcome.problem:
            what = " ".join((outcome.kernel, outcome.dtype, *outcome.choices.values()))
            print_message(f"failed: {what}: {outcome.arguments}: {outcome.problem}")
    failed = sum(bool(outcome.problem) for outcome in report.outcomes)
    note(arguments, f"{report.gpu.name}: {counted(len(report.outcomes), 'call')}, {failed} failed")
