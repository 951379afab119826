"""Measure a bundle's kernels on this machine's GPU."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from aot_runtime.manifest import Manifest

from ..bench import AGAINST, Result, bench, plot, results_data
from ..contracts import load_contracts
from ..running import find_gpu, print_json, select_kernels, table
from ._common import add_bundle_argument

__all__ = ["configure_parser", "execute"]


def configure_parser(parser: argparse.ArgumentParser) -> None:
    add_bundle_argument(parser)
    add = parser.add_argument
    add("--kernel", action="append", default=[], metavar="GLOB", help="only kernels whose name matches; repeatable")
    add("--dtype", action="append", default=[], metavar="DTYPE", help="f16, bf16, f32 (default: bf16); repeatable")
    add("--against", action="append", default=[], choices=AGAINST, help="measure this too; repeatable")
    add("--out", type=Path, metavar="FILE", help="write the results here, as JSON")
    add("--plot", type=Path, metavar="FILE", help="draw them here, as SVG")


def execute(arguments: argparse.Namespace) -> int:
    manifest = Manifest.read(arguments.bundle)
    kernels = select_kernels(manifest, arguments.kernel)
    gpu = find_gpu("bench")
    contracts = load_contracts(arguments.bundle, manifest, kernels)
    import aot_runtime

    bundle = aot_runtime.load(arguments.bundle)
    results = []
    for result in bench(bundle, contracts, kernels, gpu, dtypes=arguments.dtype, against=arguments.against):
        results.append(result)
        print(f"{result.label}: {result.arguments}: {result.microseconds['aot']:.1f} us", file=sys.stderr, flush=True)
    data = results_data(gpu, results)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(data, indent=1) + "\n")
    if arguments.plot is not None:
        arguments.plot.write_text(plot(gpu, results))
    if arguments.json:
        print_json(data)
    else:
        print(results_table(results, arguments.against))
    return 0


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
                round(result.bandwidth / 1e9),
                round(result.of_copy, 3),
                round(result.teraflops, 1),
                *("-" if ratio is None else f"{ratio:.2f}" for ratio in speedups),
                result.variant,
            )
        )
    return table(columns, rows)
