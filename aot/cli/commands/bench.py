"""Measure a bundle's kernels on this machine's GPU."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from pathlib import Path

from ...errors import UsageError
from ...gpu.bench import AGAINST, Result, bench, results_data
from ...gpu.plot import plot
from ..options import add_run_arguments, open_to_run, write_json
from ..report import note, print_json, table
from ..schema import Key

__all__ = ["KEYS", "configure_parser", "execute"]

KEYS = (
    Key("benchmark", "string", "what was measured"),
    Key("machine", "object", "the GPU and what runs it"),
    Key("results", "list of object", "one for each kernel and input"),
)


def configure_parser(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser, "f16, bf16, f32 (default: bf16)", "results")
    add = parser.add_argument
    add(
        "--against",
        action="append",
        default=[],
        metavar="NAMES",
        help=f"also measure these, taking turns: a comma list of {', '.join(AGAINST)}; repeatable",
    )
    add("--plot", type=Path, metavar="FILE", help="draw the results here, as SVG")


def execute(arguments: argparse.Namespace) -> int:
    against = contenders(arguments.against)
    opened = open_to_run(arguments, "bench")
    if "torch.compile" in against and importlib.util.find_spec("triton") is None:
        raise UsageError("`torch.compile` needs triton, which is not installed", hint="`pip install triton`")
    results = []
    for result in bench(
        opened.bundle, opened.contracts, opened.kernels, opened.gpu, dtypes=arguments.dtype, against=against
    ):
        results.append(result)
        note(arguments, f"{result.label}: {result.arguments}: {result.microseconds['aot']:.1f} us")
    data = results_data(opened.gpu, results)
    write_json(arguments.out, data)
    if arguments.plot is not None:
        arguments.plot.write_text(plot(opened.gpu.name, results))
    if arguments.json:
        print_json(data)
    else:
        print(results_table(results, against))
    return 0


def contenders(texts: Sequence[str]) -> tuple[str, ...]:
    """``["torch,torch.compile"]`` -> each name once, in the order given."""
    names = dict.fromkeys(name.strip() for text in texts for name in text.split(","))
    unknown = [name for name in names if name not in AGAINST]
    if unknown:
        raise UsageError(f"cannot measure against {', '.join(map(repr, unknown))}", hint=f"known: {', '.join(AGAINST)}")
    return tuple(names)


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
