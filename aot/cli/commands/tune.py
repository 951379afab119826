"""Measure which spec of a kernel is the fastest on this machine's GPU, or model it for others, for `build --tuning`."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aot_runtime.arch import Arch

from ...bundle.details import VariantDetails
from ...bundle.tables.models import Models, models_text
from ...bundle.tables.tuning import TunedDevice, TunedKernel, tuning_text
from ...errors import UsageError
from ...files import write_whole
from ...gpu.modelling import Times, check_measured_on, models_of_times, read_models, read_times
from ...gpu.running import Gpu, variants_of
from ...gpu.tune import Measured, TuneReport, tune, tuned_device
from ...model.parts import named_parts
from ...records import encode
from ..options import add_run_arguments, check_file, open_to_run, print_warning, read_trusted, refuse_unused
from ..report import note, print_json, table
from ..schema import Key

__all__ = ["KEYS", "configure_parser", "execute"]


@dataclass(frozen=True, kw_only=True)
class MeasuredCall(Measured):
    """One call that was timed, and what a table chooses for it."""

    chosen: str  # the fastest variant; the usual one unless another is faster by 2%


KEYS = (
    Key("device", TunedDevice, "the GPU"),
    Key("clock", int, "of its multiprocessors, in MHz"),
    Key("kernels", tuple[TunedKernel, ...], "measured tables by kernel and architecture"),
    Key("measured", tuple[MeasuredCall, ...], "how long every variant took, for each call"),
    Key("untuned", tuple[str, ...], "kernels that declare nothing to tune"),
)


def configure_parser(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser, "only these dtypes: f16, bf16, ...", "tables or models")
    add = parser.add_argument
    add(
        "--times",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="fit models to times that `tune --json` printed, and measure nothing; repeatable",
    )
    add(
        "--refine",
        type=Path,
        metavar="MODELS",
        help="begin with the models of this file: what was not measured again stays as it is there",
    )
    add(
        "--device",
        action="append",
        default=[],
        metavar="NAME",
        help="a GPU that builds make tables for, if models are fitted: `NVIDIA H100 PCIe`; repeatable "
        "(default: every known one of the compute capability that was measured)",
    )


def execute(arguments: argparse.Namespace) -> int:
    if arguments.out is None:
        raise UsageError("`tune` needs a file for its tables", hint="pass `--out h200.json`")
    known = read_models(arguments.refine) if arguments.refine is not None else None
    if arguments.times:
        refuse_unused(arguments, "--times", "--kernel", "--dtype")
        return _fit(arguments, known)
    opened = open_to_run(arguments, "tune")
    variants = variants_of(arguments.bundle, opened.bundle.manifest)
    _check_before(arguments, opened.kernels, opened.gpu, variants)
    if known is not None:
        check_measured_on(known, tuned_device(opened.gpu))
    report = tune(
        opened.bundle,
        opened.contracts,
        opened.kernels,
        opened.gpu,
        dtypes=arguments.dtype,
        say=lambda measured: note(arguments, _line(measured)),
    )
    models = _models(arguments, Times(report.tuning.device, report.clock, report.measured), variants, known)
    write_whole(arguments.out, models_text(models) if models.models else tuning_text(report.tuning))
    for kernel in report.tuning.kernels:
        for left in kernel.left_out:
            print_warning(f"{left.variant} for {kernel.arch} is left out: {left.reason}")
    if arguments.json:
        print_json(_data(report))
    else:
        print(table(("kernel", "arch", "calls", "changed", "gain"), _rows(report.measured)))
        note(arguments, f"{report.tuning.device}: `build --tuning {arguments.out}` compiles the tables in")
    return 0


def _check_before(
    arguments: argparse.Namespace,
    kernels: Sequence[str],
    gpu: Gpu,
    variants: Mapping[Arch, Sequence[VariantDetails]],
) -> None:
    """Raise for what would be refused after everything was measured."""
    named_parts(arguments.device, "{}.{}".format(*gpu.capability))
    own = [one for arch in variants if arch.runs_on(gpu.capability) for one in variants[arch] if one.kernel in kernels]
    modelled = {one.kernel for one in own if one.work is not None}
    _refuse_mixture({one.kernel for one in own if one.tuned_by} - modelled, sorted(modelled))


def _refuse_mixture(plain: Collection[str], modelled: Sequence[str]) -> None:
    """Models and measured tables do not go into one file."""
    if plain and modelled:
        raise UsageError(
            f"{', '.join(sorted(plain))} is measured, and {modelled[0]} modelled by its `work`",
            hint="tune them apart, with `--kernel`",
        )


def _fit(arguments: argparse.Namespace, known: Models | None) -> int:
    """Without a GPU: models of the times of earlier runs."""
    check_file(arguments.out, "--out")
    variants = variants_of(arguments.bundle, read_trusted(arguments))
    models = _models(arguments, read_times(arguments.times), variants, known)
    if not models.models:
        raise UsageError("no spec of this bundle that was measured has `work`", hint="pass `work=` to aot.Spec")
    write_whole(arguments.out, models_text(models))
    for kernel in models.models:
        for one in kernel.sets:
            print(" ".join((kernel.kernel, str(kernel.arch), *one.point.values(), f"{len(one.numbers)} specs")))
    return 0


def _models(
    arguments: argparse.Namespace,
    times: Times,
    variants: Mapping[Arch, Sequence[VariantDetails]],
    known: Models | None,
) -> Models:
    """Models of the kernels that have them."""
    models = models_of_times(times, variants, arguments.device, known)
    plain = {one.kernel for one in times.measured} - {kernel for kernel, _ in models.pairs}
    _refuse_mixture(plain, [model.kernel for model in models.models])
    return models


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
        "clock": report.clock,
        "kernels": tuning["kernels"],
        "measured": [{**encode(one), "chosen": one.chosen} for one in report.measured],
        "untuned": list(report.untuned),
    }
