"""``bench`` under NVIDIA's Nsight Compute: what the hardware counted while each contender made one call.

Two processes: the one that is asked starts ``ncu`` over a second one, ``bench --profile``, which makes each call once in
an NVTX range. The name of the range says what the call was, so the CSV that ``ncu`` prints is all that a table needs.
"""

from __future__ import annotations

import csv
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from ..errors import UsageError
from .contenders import Problem, runs_of
from .machine import read_driver
from .running import Gpu, make_outputs

__all__ = ["Call", "Profile", "ncu_command", "profile", "read_profiles", "run_ncu"]

_PROGRAM = "ncu"
_RANGE = "aot#"  # what the names of our ranges begin with
_RANGES = "Push/Pop_Range"  # part of the title of the column that has them
_WARM_UP = 2  # calls before the one that is profiled: code is loaded, and torch.compile compiles

# Of a launch of several kernels, durations add up, and shares are weighted by duration.
_DURATION = "gpu__time_duration.sum"
_DRAM = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
_TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
# Compute capability 10.x has a second pipe for the tensor cores' newest instructions; other chips lack this counter.
_TENSOR_10 = "sm__pipe_tc_cycles_active.avg.pct_of_peak_sustained_elapsed"
_OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
_SM_CLOCK = "sm__cycles_elapsed.avg.per_second"
_DRAM_CLOCK = "dram__cycles_elapsed.avg.per_second"
_REGISTERS = "launch__registers_per_thread"
_SHARED = ("launch__shared_mem_per_block_static", "launch__shared_mem_per_block_dynamic")
METRICS = (_DURATION, _TENSOR, _DRAM, _OCCUPANCY, _REGISTERS, *_SHARED, _SM_CLOCK, _DRAM_CLOCK)

# Units of `--print-units base`, in the unit that is wanted, and those that older releases print.
_MICROSECONDS = {
    "ns": 1e-3,
    "nsecond": 1e-3,
    "us": 1.0,
    "usecond": 1.0,
    "ms": 1e3,
    "msecond": 1e3,
    "s": 1e6,
    "second": 1e6,
}
_MEGAHERTZ = {
    "hz": 1e-6, "khz": 1e-3, "mhz": 1.0, "ghz": 1e3, "cycle/s": 1e-6, "cycle/second": 1e-6, "cycle/us": 1.0,
    "cycle/usecond": 1.0, "cycle/ns": 1e3, "cycle/nsecond": 1e3,
}  # fmt: skip
_BYTES = {"byte": 1.0, "kbyte": 1e3, "mbyte": 1e6}


@dataclass(frozen=True)
class Call:
    """What was profiled: a problem, and who solved it."""

    index: int  # of the problem; contenders of one problem share it
    contender: str  # `aot`, `torch`, `torch.compile`, or the directory of another bundle
    label: str  # kernel, choices and dtype
    arguments: str  # the call
    variant: str  # what ran of the bundle; empty: not a kernel of the bundle

    def range_name(self) -> str:
        """As an NVTX range; ``str`` and ``parse`` agree, whatever the texts contain."""
        fields = (str(self.index), self.contender, self.label, self.arguments, self.variant)
        return _RANGE + "#".join(quote(field, safe=" ,()") for field in fields)

    @classmethod
    def parse(cls, text: str) -> Call:
        index, *fields = text.removeprefix(_RANGE).split("#")
        contender, label, arguments, variant = map(unquote, fields)
        return cls(int(index), contender, label, arguments, variant)


@dataclass(frozen=True)
class Profile:
    """What was counted during one call. Percentages are of the peak while the kernels ran."""

    call: Call  # what was profiled
    kernels: int  # how many it launched
    microseconds: float  # of all its kernels
    tensor: float | None  # percent of the cycles that tensor cores were busy; None, here and below: it is not counted
    dram: float | None  # percent of the bandwidth of DRAM
    occupancy: float | None  # percent of the warps that fit
    registers: int  # of the kernel that uses most
    shared: int  # bytes of a block, of the kernel that uses most
    sm_megahertz: float | None  # clock of the multiprocessors
    dram_megahertz: float | None  # clock of DRAM


# The process that is profiled.


def profile(problems: Iterator[Problem], bundle: Any, gpu: Gpu, against: Mapping[str, Any]) -> Iterator[Call]:
    """Make each call once, in an NVTX range, with the profiler started around it."""
    import torch

    for index, problem in enumerate(problems):
        record = bundle.manifest.kernels[problem.kernel]
        outputs = make_outputs(record, problem.arguments, gpu.device, picked=problem.dtype)
        variant = problem.variant(bundle, gpu, outputs)
        for name, run in runs_of(problem, bundle, gpu, against, [problem.arguments], [outputs]).items():
            for _ in range(_WARM_UP):
                run(0)
            torch.cuda.synchronize()
            call = Call(index, name, problem.label, problem.text, variant if name == "aot" else "")
            torch.cuda.profiler.start()
            torch.cuda.nvtx.range_push(call.range_name())
            run(0)
            torch.cuda.synchronize()
            torch.cuda.nvtx.range_pop()
            torch.cuda.profiler.stop()
            yield call


# The process that starts it.


def ncu_command(profiled: Sequence[str], major: int = 0) -> list[str]:
    """The command that profiles another one on a GPU of that major version, and prints CSV."""
    metrics = (*METRICS, _TENSOR_10) if major == 10 else METRICS
    options = ["--csv", "--page", "raw", "--print-units", "base", "--nvtx", "--profile-from-start", "off"]
    return [_PROGRAM, *options, "--metrics", ",".join(metrics), *profiled]


def run_ncu(profiled: Sequence[str], read_with: str) -> str:
    """What ``ncu`` prints of a command that calls :func:`profile`. ``read_with`` is the command that shows such a text if it comes from another machine."""
    devices = read_driver().devices
    command = ncu_command(profiled, devices[0].capability[0] if devices else 0)
    if shutil.which(_PROGRAM) is None:
        raise UsageError(
            f"{_PROGRAM} is not installed",
            hint=f"it comes with the CUDA toolkit; with it, run `{shlex.join(command)} > profile.csv`, "
            f"then `{read_with}`",
        )
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "profile.csv"
        command[1:1] = ["--log-file", str(log)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        text = log.read_text(errors="replace") if log.exists() else ""
    if done.returncode != 0 or "==ERROR==" in text:
        raise UsageError(f"{_PROGRAM} failed with exit code {done.returncode}", hint=_remedy(text, done.stdout))
    return text


def _remedy(log: str, output: str) -> str:
    if "ERR_NVGPUCTRPERM" in log + output:
        return (
            "the driver lets only administrators read performance counters: run this as root, or load the driver's "
            "module with NVreg_RestrictProfilingToAdminUsers=0"
        )
    errors = [line for line in log.splitlines() if line.startswith("==ERROR==")]
    last = [line for line in output.splitlines() if line.strip()][-1:]
    return f"it said: {' '.join([*errors, *last]) or 'nothing'}"


def read_profiles(text: str) -> list[Profile]:
    """The calls in what ``ncu --csv --page raw --nvtx`` printed, in order."""
    lines = text.splitlines()
    start = next((at for at, line in enumerate(lines) if line.startswith('"ID",')), None)
    if start is None:
        raise UsageError(
            "there is no table in what ncu printed", hint="no kernel was profiled, or `--csv --page raw` was not passed"
        )
    titles, units, *rows = csv.reader(lines[start:])
    missing = [name for name in METRICS if name not in titles]
    if missing or not any(_RANGES in title for title in titles):
        raise UsageError(f"ncu did not count {', '.join(missing) or 'with NVTX ranges'}", hint="pass `--ncu` alone")
    unit_of = dict(zip(titles, units, strict=True))
    by_call: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        named = dict(zip(titles, row, strict=False))
        name = next((found for title in titles if _RANGES in title and (found := _our_range(named[title]))), None)
        if name is not None:
            by_call.setdefault(name, []).append(named)
    return [_profile(Call.parse(name), own, unit_of) for name, own in by_call.items()]


def _our_range(cell: str) -> str | None:
    """``1  "<default domain>:aot#0#...:none:none"``: the name of the range among what is said of it."""
    return next((part for part in cell.split(":") if part.startswith(_RANGE)), None)


def _profile(call: Call, rows: Sequence[Mapping[str, str]], units: Mapping[str, str]) -> Profile:
    times = [(_number(row, _DURATION) or 0.0) * _scale(units, _DURATION, _MICROSECONDS) for row in rows]
    shared = [sum((_number(row, name) or 0.0) * _scale(units, name, _BYTES) for name in _SHARED) for row in rows]
    return Profile(
        call,
        kernels=len(rows),
        microseconds=sum(times),
        tensor=_largest(_weighted(rows, times, _TENSOR), _weighted(rows, times, _TENSOR_10)),
        dram=_weighted(rows, times, _DRAM),
        occupancy=_weighted(rows, times, _OCCUPANCY),
        registers=int(max(_number(row, _REGISTERS) or 0.0 for row in rows)),
        shared=int(max(shared)),
        sm_megahertz=_weighted(rows, times, _SM_CLOCK, _scale(units, _SM_CLOCK, _MEGAHERTZ)),
        dram_megahertz=_weighted(rows, times, _DRAM_CLOCK, _scale(units, _DRAM_CLOCK, _MEGAHERTZ)),
    )


def _weighted(
    rows: Sequence[Mapping[str, str]], times: Sequence[float], metric: str, scale: float = 1.0
) -> float | None:
    """The mean over kernels, by how long each ran; None if one of them lacks it."""
    values = [_number(row, metric) for row in rows]
    present = [value for value in values if value is not None]
    if len(present) < len(values) or not sum(times):
        return None
    return scale * sum(value * time for value, time in zip(present, times, strict=True)) / sum(times)


def _largest(*shares: float | None) -> float | None:
    return max((share for share in shares if share is not None), default=None)


def _number(row: Mapping[str, str], metric: str) -> float | None:
    text = row.get(metric, "").replace(",", "")  # thousands are grouped in some locales
    return float(text) if re.fullmatch(r"[0-9.eE+-]+", text) else None  # "n/a" is printed for what is not counted


def _scale(units: Mapping[str, str], metric: str, known: Mapping[str, float]) -> float:
    unit = units[metric].lower().removesuffix("/block")
    if unit not in known:
        raise UsageError(
            f"ncu counts {metric} in {units[metric]!r}, which is not known", hint=f"known: {', '.join(known)}"
        )
    return known[unit]
