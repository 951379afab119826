"""Measure which spec of a kernel is the fastest on this machine's GPU, for `build --tuning`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...bundle.tuning import TunedDevice, TunedKernel, tuning_text
from ...errors import UsageError
from ...files import write_whole
from ...gpu.tune import Measured, TuneReport, tune
from ...records import encode
from ..options import add_run_arguments, open_to_run, print_warning
from ..report import note, print_json, table
from ..schema import Key

__all__ = ["KEYS", "configure_parser", "execute"]


@dataclass(frozen=True, kw_only=True)
class MeasuredCall(Measured):
    """One call that was timed, and what a table chooses for it."""

    chosen: str  # the fastest variant; the usual one unless another is faster by 2%


KEYS = (
    Key("device", TunedDevice, "the GPU"),
    Key("kernels", tuple[TunedKernel, ...], "tables by kernel and architecture, as in the file"),
    Key("measured", tuple[MeasuredCall, ...], "how long every variant took, for each call"),
    Key("untuned", tuple[str, ...], "kernels that declare nothing to tune"),
)


def configure_parser(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser, "only this dtype: f16, bf16, ...", "tables")


def execute(arguments: argparse.Namespace) -> int:
    if arguments.out is None:
        raise UsageError("`tune` needs a file for its tables", hint="pass `--out h200.json`")
    opened = open_to_run(arguments, "tune")
    report = tune(
        opened.bundle,
        opened.contracts,
        opened.kernels,
        opened.gpu,
        dtypes=arguments.dtype,
        say=lambda measured: note(arguments, _line(measured)),
    )
    write_whole(arguments.out, tuning_text(report.tuning))
    for kernel in report.tuning.kernels:
        for left in kernel.left_out:
            print_warning(f"{left.variant} for {kernel.arch} is left out: {left.reason}")
    if arguments.json:
        print_json(_data(report))
    else:
        print(table(("kernel", "arch", "calls", "changed", "gain"), _rows(report.measured)))
        note(arguments, f"{report.tuning.device}: `build --tuning {arguments.out}` compiles the tables in")
    return 0


def _line(measured: Measured) -> str:
    what = " ".join((measured.kernel, *measured.point.values(), "x".join(map(str, measured.extents))))
    return f"{what}: {measured.chosen}, {_gain(measured):.2f} times as fast as without a table"


def _gain(measured: Measured) -> float:
    times = measured.microseconds
    usual = times.get(measured.usual, times[measured.chosen])
    return usual / times[measured.chosen] if times[measured.chosen] > 0 else 1.0


def _rows(measured: Sequence[Measured]) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for kernel, arch in dict.fromkeys((one.kernel, one.arch) for one in measured):
        own = [one for one in measured if (one.kernel, one.arch) == (kernel, arch)]
        changed = sum(one.chosen != one.usual for one in own)
        best = max(_gain(one) for one in own)
        rows.append((kernel, arch, len(own), changed, f"up to {best:.2f}"))
    return rows


def _data(report: TuneReport) -> dict[str, Any]:
    tuning = encode(report.tuning)
    return {
        "device": tuning["device"],
        "kernels": tuning["kernels"],
        "measured": [{**encode(one), "chosen": one.chosen} for one in report.measured],
        "untuned": list(report.untuned),
    }
