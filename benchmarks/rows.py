"""Kernels over rows and elementwise kernels against torch.compile, over a list of matrices or of problems.

Two lists of matrices in ``benchmarks/shapes`` were written down before anything was measured: the kernels are tuned on one
of them, and their speed is reported on the other, every kernel in bf16. ``rows_random`` and ``rows_random2`` list problems, a
kernel, a matrix and a dtype each, all drawn at random; tilings were chosen on the first.

Each contender runs alone in a CUDA graph of many calls. The contenders take turns; a figure is the median of five rounds.
All problems are measured in two runs, one after the other, and a problem counts as behind if it is in both. Each shape is
compiled by itself (``dynamic=False``).

Processes compile side by side, because torch.compile takes a second or more for each shape. Each takes the next problem
when it is done with one. Then they measure what they compiled, one problem at a time, behind a lock, when nothing
compiles any more. torch keeps what it compiled and the configurations that it chose in ``TORCHINDUCTOR_CACHE_DIR``: a
second measurement with the same folder starts sooner.

    python -m aot build --arch sm90
    python benchmarks/rows.py dist/kernels --out benchmarks/results/h200-rows.json
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import gc
import json
import math
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _common import PROJECT, parser, print_rows, report
from gemm_shapes import read_clocks

KERNELS = (
    "rmsnorm", "rmsnorm_residual", "layernorm", "softmax", "reduce", "cross_entropy", "argmax", "top_k", "quantize_fp8",
    "silu_and_mul", "activation", "rope", "add",
)  # fmt: skip
CHOICES = {"reduce": {"op": "sum"}, "activation": {"op": "gelu"}}
HEAD = 128  # elements of a head of `rope`; a row of a matrix has as many heads as fit
MANY_COLUMNS, FEW, MORE = 512, 8, 50  # `top_k` takes FEW elements of rows of up to MANY_COLUMNS, MORE of longer ones
ROUNDS, SETS, MANY_CALLS, SMALL = 5, 64, 64, 1 << 23
KEPT = 256 << 20  # bytes of the GPU that a process may keep while another one measures
BEHIND = 0.95


@dataclass(frozen=True)
class Problem:
    kernel: str
    rows: int
    columns: int
    dtype: str = "bf16"

    @property
    def label(self) -> str:
        dtype = "" if self.dtype == "bf16" else f" {self.dtype}"
        return f"{self.kernel} {self.rows} x {self.columns}{dtype}"

    @property
    def bytes(self) -> int:
        """About what a call reads and writes."""
        return 2 * self.rows * self.columns * (4 if self.dtype == "f32" else 2)

    def arguments(self, make: Any) -> dict[str, Any]:
        rows, columns = self.rows, self.columns
        if self.kernel == "rope":
            angles = {name: make.tensor((rows, HEAD // 2), "f32") for name in ("cos", "sin")}
            return {"x": make.tensor((rows, max(1, columns // HEAD), HEAD), self.dtype), **angles}
        x = make.tensor((rows, columns // 2 * 2 if self.kernel == "silu_and_mul" else columns), self.dtype)
        if self.kernel == "cross_entropy":
            return {"x": x, "target": make.torch.arange(rows, device=x.device) * 7919 % columns}
        if self.kernel == "top_k":
            return {"x": x, "k": FEW if columns <= MANY_COLUMNS else MORE}
        matrices = {"rmsnorm_residual": ("residual",), "add": ("y",)}.get(self.kernel, ())
        vectors = {"rmsnorm": ("weight",), "rmsnorm_residual": ("weight",), "layernorm": ("weight", "bias")}
        return {
            "x": x,
            **{name: make.tensor((rows, columns), self.dtype) for name in matrices},
            **{name: make.tensor((columns,), self.dtype) for name in vectors.get(self.kernel, ())},
        }


def read_problems(text: str, kernels: Sequence[str]) -> list[Problem]:
    """The problems of a file of benchmarks/shapes, or of a list of matrices such as 1x64,7x100."""
    if text[0].isdigit():
        data = {"shapes": [map(int, pair.split("x")) for pair in text.split(",")]}
    else:
        data = json.loads((PROJECT / "benchmarks" / "shapes" / f"{text}.json").read_text())
    if "problems" in data:
        return [problem for entry in data["problems"] if (problem := Problem(*entry)).kernel in kernels]
    return [Problem(kernel, *shape) for shape in data["shapes"] for kernel in kernels]


class Measuring:
    """One process: compiles its problems, then measures them."""

    def __init__(self, bundles: Mapping[str, Path], against: Sequence[str]) -> None:
        import aot_runtime
        import torch

        from aot.bundle.contracts import load_contracts
        from aot.gpu.inputs import InputMaker

        torch._dynamo.config.recompile_limit = 1 << 20  # every shape is compiled, not only the first eight
        torch._dynamo.config.accumulated_recompile_limit = 1 << 20
        self.torch, self.against, self.make = torch, against, InputMaker()
        self.bundles = {name: aot_runtime.load(path) for name, path in bundles.items()}
        self.first = next(iter(self.bundles.values()))
        self.contracts = load_contracts(self.first.path, self.first.manifest, list(self.first.manifest.kernels))
        self.compiled: dict[Problem, Callable[..., Any]] = {}

    def compile(self, problem: Problem) -> None:
        if "torch.compile" in self.against:
            equivalent = self.contracts[problem.kernel].torch_equivalent
            self.compiled[problem] = self.torch.compile(equivalent, dynamic=False)
            with nothing_launched():
                self.compiled[problem](**problem.arguments(self.make), **CHOICES.get(problem.kernel, {}))
            self.free()

    def free(self) -> None:
        """Give memory back to the other processes. What cycles of Python objects hold needs a collection, which takes long."""
        cuda = self.torch.cuda
        cuda.synchronize()
        cuda.empty_cache()
        if cuda.memory_reserved() > KEPT:
            gc.collect()
            cuda.empty_cache()

    def measure(self, problem: Problem) -> dict[str, float]:
        """Microseconds per call, by contender."""
        from aot.gpu.bench import cache_bytes, copies_beyond, graph_timer
        from aot.gpu.running import make_outputs

        choices = CHOICES.get(problem.kernel, {})
        sets = [
            problem.arguments(self.make) for _ in range(min(SETS, copies_beyond(cache_bytes("cuda"), problem.bytes)))
        ]
        calls = MANY_CALLS if problem.bytes < SMALL else len(sets)
        runs: dict[str, Callable[[int], Any]] = {}
        capability = self.torch.cuda.get_device_capability()
        for name, bundle in self.bundles.items():
            outputs = [make_outputs(self.first.manifest.kernels[problem.kernel], own, "cuda") for own in sets]
            taken = problem.kernel in bundle.kernels
            if not taken or not bundle.explain(problem.kernel, capability, **sets[0], **outputs[0], **choices).chosen:
                continue  # another build may lack a kernel, or a variant of it
            kernel = bundle[problem.kernel]
            runs[name] = lambda i, kernel=kernel, outputs=outputs: kernel(**sets[i], **outputs[i], **choices)
        others = {"torch": self.contracts[problem.kernel].torch_equivalent, "torch.compile": self.compiled.get(problem)}
        for name in self.against:
            runs[name] = lambda i, function=others[name]: function(**sets[i], **choices)
        timers = {name: graph_timer(run, len(sets), calls) for name, run in runs.items()}
        samples = [{name: timer() for name, timer in timers.items()} for _ in range(ROUNDS)]
        return {name: statistics.median(sample[name] for sample in samples) for name in timers}


@contextlib.contextmanager
def nothing_launched() -> Iterator[None]:
    """Compile the kernels of torch.compile, but do not launch them.

    At its first launch a kernel is timed in several configurations, and the fastest stays. So that happens when this process
    has the GPU to itself.
    """
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    launch = CachingAutotuner.run
    CachingAutotuner.run = lambda self, *arguments, **options: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        CachingAutotuner.run = launch  # type: ignore[method-assign]


@dataclass(frozen=True)
class Turn:
    """When a process may measure: all have compiled, the GPU is free, all have ended the last run, and no other measures."""

    problems: Any  # queues, which None ends
    results: Any
    compiled: Any
    free: Any
    ended: Any
    lock: Any


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock that other programs, which time something on this GPU too, respect."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def work(given: argparse.Namespace, until: float, turn: Turn) -> None:
    """What one process does. A problem that fails is reported with its reason, and the others go on."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # there are other processes that compile
    try:
        measuring = Measuring(given.bundles, given.against)
    except BaseException:
        turn.compiled.abort()  # all the others stop, too
        raise
    ready = []
    for problem in iter(turn.problems.get, None):
        if time.time() > until:
            turn.results.put((problem, "not reached"))
            continue
        try:
            measuring.compile(problem)
            ready.append(problem)
        except Exception:
            turn.results.put((problem, traceback.format_exc()))
    turn.compiled.wait()
    turn.free.wait()
    for _ in range(given.runs):
        for problem in ready:
            with turn.lock:
                try:
                    turn.results.put((problem, measuring.measure(problem)))
                except Exception:
                    turn.results.put((problem, traceback.format_exc()))
                measuring.free()
        turn.ended.wait()
    turn.results.put(None)


def measure_all(given: argparse.Namespace, wanted: Sequence[Problem]) -> dict[Problem, list[dict[str, float]]]:
    """The times of each problem in each run, of those that were measured in all of them."""
    context = multiprocessing.get_context("spawn")
    jobs = min(given.jobs, len(wanted))
    together = context.Barrier(jobs + 1), context.Event(), context.Barrier(jobs)
    turn = Turn(context.SimpleQueue(), context.Queue(), *together, context.Lock())
    until = time.time() + given.seconds
    processes = [context.Process(target=work, args=(given, until, turn)) for _ in range(jobs)]
    for process in processes:
        process.start()
    for problem in (*wanted, *[None] * jobs):
        turn.problems.put(problem)
    turn.compiled.wait()
    measured: dict[Problem, list[dict[str, float]]] = {}
    with locked(given.lock):
        turn.free.set()
        for _ in range(jobs):
            for problem, result in iter(turn.results.get, None):
                if not reported(problem, result):
                    measured.setdefault(problem, []).append(result)
    for process in processes:
        process.join()
    return {problem: measured[problem] for problem in wanted if len(measured.get(problem, ())) == given.runs}


def reported(problem: Problem, result: dict[str, float] | str) -> bool:
    """Print what a process has put into the queue. Whether that is a reason for having no times."""
    if isinstance(result, str):
        print(f"{problem.label} failed: {result}", file=sys.stderr, flush=True)
        return True
    ratios = "  ".join(f"{name} {result[name] / result['ours']:.2f}" for name in result if name != "ours")
    print(f"{problem.label}: {result['ours']:.1f} us;  {ratios}", file=sys.stderr, flush=True)
    return False


def summary(ratios: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """How many times faster ours is in each run, over all problems; those behind in all runs by name, the worst first."""
    runs = list(zip(*ratios.values(), strict=True))
    worst_first = sorted(ratios.items(), key=lambda item: max(item[1]))
    return {
        "problems": len(ratios),
        "geometric mean": list(map(statistics.geometric_mean, runs)),
        "median": [statistics.median(run) for run in runs],
        "worst": [min(run) for run in runs],
        "below": [sum(ratio < BEHIND for ratio in run) for run in runs],
        "behind": {label: own for label, own in worst_first if max(own) < BEHIND},
    }


def print_totals(totals: Mapping[str, Mapping[str, Any]]) -> None:
    for rival, total in totals.items():
        print_rows((f"behind {rival}", "ratios"), [(label, _text(own)) for label, own in total["behind"].items()])
    rows = [
        (rival, total["problems"], *(_text(total[name]) for name in ("geometric mean", "worst", "median")), len(total["behind"]))
        for rival, total in totals.items()
    ]  # fmt: skip
    print_rows(("against", "problems", "mean", "worst", "median", "behind"), rows)


def _text(ratios: Sequence[float]) -> str:
    return " ".join(f"{ratio:.2f}" for ratio in ratios)


def main() -> None:
    given = read_arguments()
    wanted = read_problems(given.shapes, given.kernel or KERNELS)
    clocks = [read_clocks()]
    measured = measure_all(given, wanted)
    clocks.append(read_clocks())
    if not measured:
        sys.exit("nothing was measured")
    times = {p.label: {name: [run[name] for run in runs] for name in runs[0]} for p, runs in measured.items()}
    totals = {
        rival: summary(ratios_to(rival, times))
        for rival in sorted({n for own in times.values() for n in own} - {"ours"})
    }
    print_totals(totals)
    missing = [problem.label for problem in wanted if problem not in measured]
    report("rows", {"summary": totals, "not measured": missing, "clocks": clocks, "times": times}, given.out)


def ratios_to(rival: str, times: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, list[float]]:
    """By label, how many times faster ours is than a rival in each run."""
    return {
        label: [theirs / ours for theirs, ours in zip(own[rival], own["ours"], strict=True)]
        for label, own in times.items()
        if rival in own
    }


def read_arguments() -> argparse.Namespace:
    arguments = parser(__doc__)
    arguments.add_argument("bundle", type=Path, help="the shipped kernels")
    arguments.add_argument("--other", action="append", default=[], metavar="NAME=BUNDLE", help="another build of them")
    arguments.add_argument("--kernel", action="append", help="only this kernel; repeatable")
    arguments.add_argument(
        "--shapes",
        default="rows_report",
        help="a file of benchmarks/shapes, or a list such as 1x64,7x100",
    )
    arguments.add_argument("--against", type=lambda text: text.split(","), default=["torch.compile"])
    arguments.add_argument("--runs", type=int, default=2)
    arguments.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    arguments.add_argument(
        "--seconds", type=float, default=math.inf, help="compile no longer; the rest is not measured"
    )
    arguments.add_argument(
        "--lock",
        type=Path,
        default=Path(tempfile.gettempdir(), "aot-rows.lock"),
        help="a file that is locked meanwhile",
    )
    given = arguments.parse_args()
    given.bundles = {"ours": given.bundle, **{n: Path(p) for n, p in (text.split("=") for text in given.other)}}
    return given


if __name__ == "__main__":
    main()
