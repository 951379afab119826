"""Measure a bundle's kernels on this machine's GPU."""

from __future__ import annotations

import argparse
import importlib.util
import shlex
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import UsageError, counted
from ...files import read_given, write_whole
from ...gpu.bench import RatedResult, Result, bench, results_data
from ...gpu.contenders import AGAINST, problems_of
from ...gpu.ncu import Call, Profile, profile, read_profiles, run_ncu
from ...gpu.plot import plot
from ...gpu.running import GpuFacts
from ...records import encode
from ..options import (
    CommaLists,
    Opened,
    add_run_arguments,
    check_file,
    open_to_run,
    read_trusted,
    refuse_unused,
    words_of_keys,
    write_json,
)
from ..report import human_size, note, print_json, table
from ..schema import Key

__all__ = ["KEYS", "configure_parser", "execute"]

KEYS = (
    Key("benchmark", str, "what was measured: `kernels`, `ncu` or `profile`"),
    Key("machine", GpuFacts, "the GPU and what runs it", "without --ncu and --ncu-csv"),
    Key("results", tuple[RatedResult, ...], "one for each kernel and input", "without --ncu, --ncu-csv and --profile"),
    Key("profiles", tuple[Profile, ...], "one for each input and contender", "with --ncu or --ncu-csv"),
    Key("calls", tuple[Call, ...], "the calls that were made", "with --profile"),
)


def configure_parser(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser, "f16, bf16, f32 (default: the first of bf16, f16, f32 that the kernel takes)", "results")
    add = parser.add_argument
    add(
        "--against",
        action=CommaLists,
        default=[],
        metavar="NAMES",
        help=f"also measure these, taking turns: a comma list of {', '.join(AGAINST)} and directories of other bundles; "
        "repeatable",
    )
    add("--plot", type=Path, metavar="FILE", help="draw the results here, as SVG")
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument(
        "--ncu",
        action="store_true",
        help="profile one call of each kind with Nsight Compute: time, tensor cores, DRAM, occupancy, registers, shared "
        "memory, clocks",
    )
    modes.add_argument(
        "--ncu-csv", type=Path, metavar="FILE", help="show what ncu wrote to this file, possibly on another machine"
    )
    modes.add_argument(
        "--profile",
        action="store_true",
        help="make each call once, in an NVTX range and between cudaProfilerStart and cudaProfilerStop, for a profiler",
    )


def execute(arguments: argparse.Namespace) -> int:
    against = contenders(arguments.against)
    check_file(arguments.out, "--out")
    if arguments.ncu:
        refuse_unused(arguments, "--ncu", "--plot")
        return _show_profiles(arguments, against)
    if arguments.ncu_csv is not None:
        refuse_unused(arguments, "--ncu-csv", "--plot", "--kernel", "--dtype")
        return _show_profiles(arguments, against)
    if arguments.profile:
        refuse_unused(arguments, "--profile", "--plot", "--out")
    check_file(arguments.plot, "--plot")
    opened = open_to_run(arguments, "bench")
    others = _opened(against, arguments.key)
    if arguments.profile:
        return _make_calls(arguments, opened, others)
    results = []
    for result in bench(
        opened.bundle, opened.contracts, opened.kernels, opened.gpu, dtypes=arguments.dtype, against=others
    ):
        results.append(result)
        note(arguments, f"{result.label}: {result.arguments}: {result.microseconds['aot']:.1f} us")
    data = results_data(opened.gpu, results)
    write_json(arguments.out, data)
    if arguments.plot is not None:
        write_whole(arguments.plot, plot(opened.gpu.name, results))
    if arguments.json:
        print_json(data)
    else:
        print(results_table(results, against))
    return 0


def contenders(given: Sequence[str]) -> tuple[str, ...]:
    """Each name once, in the order given."""
    names = dict.fromkeys(given)
    unknown = [name for name in names if name not in AGAINST and not Path(name).is_dir()]
    if unknown:
        raise UsageError(
            f"cannot measure against {', '.join(map(repr, unknown))}",
            hint=f"known: {', '.join(AGAINST)}, and the directories of other bundles",
        )
    return tuple(names)


def _opened(against: Sequence[str], keys: Sequence[str]) -> dict[str, Any]:
    """The bundles among the contenders, which the same keys must have signed; None for torch."""
    if "torch.compile" in against and importlib.util.find_spec("triton") is None:
        raise UsageError("`torch.compile` needs triton, which is not installed", hint="`pip install triton`")
    import aot_runtime

    return {name: None if name in AGAINST else aot_runtime.load(Path(name), key=keys or None) for name in against}


def _make_calls(arguments: argparse.Namespace, opened: Opened, others: dict[str, Any]) -> int:
    """What a profiler looks at."""
    problems = problems_of(opened.bundle, opened.contracts, opened.kernels, opened.gpu, arguments.dtype)
    calls = list(profile(problems, opened.bundle, opened.gpu, others))
    if arguments.json:
        print_json({"benchmark": "profile", "machine": opened.gpu.facts(), "calls": encode(calls)})
    note(arguments, f"{counted(len(calls), 'call')} made")
    return 0


def _show_profiles(arguments: argparse.Namespace, against: Sequence[str]) -> int:
    read_trusted(arguments)  # what is not a bundle is reported here, not by a process of another tool
    if arguments.ncu:
        words = [sys.executable, "-m", "aot", "bench", str(arguments.bundle), *words_of_keys(arguments)]
        words += [word for glob in arguments.kernel for word in ("--kernel", glob)]
        words += [word for dtype in arguments.dtype for word in ("--dtype", dtype)]
        words += [word for name in against for word in ("--against", name)]
        words += ["--profile", "--quiet"]
        shown = ["python", "-m", "aot", "bench", str(arguments.bundle), "--ncu-csv", "profile.csv"]
        text = run_ncu(words, shlex.join(shown))
    else:
        text = _read_text(arguments.ncu_csv)
    profiles = read_profiles(text)
    data = {"benchmark": "ncu", "profiles": encode(profiles)}
    write_json(arguments.out, data)
    if arguments.json:
        print_json(data)
    else:
        print(profiles_table(profiles))
    return 0


def _read_text(path: Path) -> str:
    try:
        return read_given(path)
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"cannot read `{path}`: {said}", hint="pass the file that ncu wrote") from None


def profiles_table(profiles: Sequence[Profile]) -> str:
    """For each problem a line that names it, and a line per contender."""
    problems: dict[int, list[Profile]] = {}
    for one in profiles:
        problems.setdefault(one.call.index, []).append(one)
    blocks = []
    for own in problems.values():
        call = own[0].call
        title = f"{call.label}: {call.arguments}"
        variants = [f"  {one.call.variant}" for one in own if one.call.variant]
        rows = [(one.call.contender, *_counts(one)) for one in own]
        blocks.append("\n".join([title, *variants, textwrap.indent(table(_COUNTED, rows), "  ")]))
    return "\n\n".join([*blocks, f"DRAM clock: {_range([one.dram_megahertz for one in profiles])} MHz"])


_COUNTED = ("by", "us", "tensor", "DRAM", "occupancy", "regs", "shared", "kernels", "SM MHz")


def _counts(one: Profile) -> tuple[object, ...]:
    shares = (f"{share:.0f}%" if share is not None else "-" for share in (one.tensor, one.dram, one.occupancy))
    time = f"{one.microseconds:.1f}"
    return (time, *shares, one.registers, human_size(one.shared), one.kernels, _whole(one.sm_megahertz))


def _range(numbers: Sequence[float | None]) -> str:
    known = [number for number in numbers if number is not None]
    ends = dict.fromkeys(_whole(number) for number in (min(known), max(known))) if known else {"-": None}
    return " to ".join(ends)


def _whole(number: float | None) -> str:
    return "-" if number is None else f"{number:.0f}"


def results_table(results: Sequence[Result], against: Sequence[str]) -> str:
    columns = ("kernel", "arguments", "us", "GB/s", "of copy", "TFLOP/s", *(f"x {name}" for name in against), "variant")
    rows = []
    for result in results:
        speedups = [result.speedup(name) for name in against]
        rows.append(
            (
                result.label,
                result.arguments,
                round(result.microseconds["aot"], 1),
                *_speed(result),
                *("-" if ratio is None else f"{ratio:.2f}" for ratio in speedups),
                result.variant,
            )
        )
    return table(columns, rows)


def _speed(result: Result) -> tuple[object, object, object]:
    """Bandwidth for kernels that are measured by bytes, else TFLOP/s."""
    if result.counts_operations:
        return "-", "-", f"{result.teraflops:.1f}"
    return f"{result.bandwidth / 1e9:.0f}", f"{result.of_copy:.3f}", "-"
