"""Kernels over rows and elementwise kernels against torch.compile, over a list of matrices, in bf16.

Two lists in ``benchmarks/shapes`` were written down before anything was measured: the kernels are tuned on one of them, and
their speed is reported on the other. Each contender runs alone in a CUDA graph of many calls. The contenders take turns; a
figure is the median of five rounds. Each shape is compiled by itself (``dynamic=False``).

Processes compile side by side, because torch.compile takes a second or more for each shape. Then they measure, one problem
at a time, behind a lock, when nothing compiles any more.

    python -m aot build --arch sm90
    python benchmarks/rows.py dist/kernels --out benchmarks/results/h200-rows.json
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
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
MANY_COLUMNS, FEW, MORE = 512, 8, 50  # `top_k` takes FEW elements of rows of up to so many columns, MORE of longer ones
ROUNDS, SETS, MANY_CALLS, SMALL = 5, 64, 64, 1 << 23
BEHIND = 0.95


@dataclass(frozen=True)
class Problem:
    kernel: str
    rows: int
    columns: int

    @property
    def label(self) -> str:
        return f"{self.kernel} {self.rows} x {self.columns}"

    def arguments(self, make: Any) -> dict[str, Any]:
        rows, columns = self.rows, self.columns
        if self.kernel == "rope":
            angles = {name: make.tensor((rows, HEAD // 2), "f32") for name in ("cos", "sin")}
            return {"x": make.tensor((rows, max(1, columns // HEAD), HEAD), "bf16"), **angles}
        x = make.tensor((rows, columns // 2 * 2 if self.kernel == "silu_and_mul" else columns), "bf16")
        if self.kernel == "cross_entropy":
            return {"x": x, "target": make.torch.arange(rows, device=x.device) * 7919 % columns}
        if self.kernel == "top_k":
            return {"x": x, "k": FEW if columns <= MANY_COLUMNS else MORE}
        matrices = {"rmsnorm_residual": ("residual",), "add": ("y",)}.get(self.kernel, ())
        vectors = {"rmsnorm": ("weight",), "rmsnorm_residual": ("weight",), "layernorm": ("weight", "bias")}
        return {
            "x": x,
            **{name: make.tensor((rows, columns), "bf16") for name in matrices},
            **{name: make.tensor((columns,), "bf16") for name in vectors.get(self.kernel, ())},
        }


def read_shapes(name: str) -> list[tuple[int, int]]:
    data = json.loads((PROJECT / "benchmarks" / "shapes" / f"{name}.json").read_text())
    return [(rows, columns) for rows, columns in data["shapes"]]


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
            self.torch.cuda.synchronize()
            self.torch.cuda.empty_cache()

    def measure(self, problem: Problem) -> dict[str, float]:
        """Microseconds per call, by contender."""
        from aot.gpu.bench import cache_bytes, copies_beyond, graph_timer
        from aot.gpu.running import make_outputs

        choices = CHOICES.get(problem.kernel, {})
        moved = 2 * problem.rows * problem.columns * 2
        sets = [problem.arguments(self.make) for _ in range(min(SETS, copies_beyond(cache_bytes("cuda"), moved)))]
        calls = MANY_CALLS if moved < SMALL else len(sets)
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
    """When a process may measure: all have compiled, the GPU is free, and no other process measures."""

    compiled: Any
    free: Any
    lock: Any


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock that other programs, which time something on this GPU too, respect."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def work(given: argparse.Namespace, own: Sequence[Problem], until: float, turn: Turn, results: Any) -> None:
    """What one process does. A problem that fails is reported with its reason, and the others go on."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # there are other processes that compile
    ready = []
    try:
        measuring = Measuring(given.bundles, given.against)
    except Exception:
        for problem in own:
            results.put((problem, traceback.format_exc()))
        own = ()
    for problem in own:
        if time.time() > until:
            results.put((problem, "not reached"))
            continue
        try:
            measuring.compile(problem)
            ready.append(problem)
        except Exception:
            results.put((problem, traceback.format_exc()))
    turn.compiled.wait()
    turn.free.wait()
    for problem in ready:
        with turn.lock:
            try:
                results.put((problem, measuring.measure(problem)))
            except Exception:
                results.put((problem, traceback.format_exc()))
            measuring.torch.cuda.synchronize()
            measuring.torch.cuda.empty_cache()


def measure_all(given: argparse.Namespace, wanted: Sequence[Problem]) -> dict[Problem, dict[str, float]]:
    context = multiprocessing.get_context("spawn")
    jobs = min(given.jobs, len(wanted))
    turn = Turn(context.Barrier(jobs + 1), context.Event(), context.Lock())
    until, results = time.time() + given.seconds, context.Queue()
    processes = [context.Process(target=work, args=(given, wanted[i::jobs], until, turn, results)) for i in range(jobs)]
    for process in processes:
        process.start()
    turn.compiled.wait()
    with locked(given.lock):
        turn.free.set()
        measured = dict(filter(None, (reported(*results.get()) for _ in wanted)))
    for process in processes:
        process.join()
    return {problem: measured[problem] for problem in wanted if problem in measured}


def reported(problem: Problem, result: dict[str, float] | str) -> tuple[Problem, dict[str, float]] | None:
    """Print what a process has put into the queue; None if that is a reason for having no times."""
    if isinstance(result, str):
        print(f"{problem.label} failed: {result}", file=sys.stderr, flush=True)
        return None
    ratios = "  ".join(f"{name} {result[name] / result['ours']:.2f}" for name in result if name != "ours")
    print(f"{problem.label}: {result['ours']:.1f} us;  {ratios}", file=sys.stderr, flush=True)
    return problem, result


def summary(ratios: Mapping[str, float]) -> dict[str, Any]:
    """How many times faster ours is, over all problems; those that are behind by name, the worst first."""
    values = sorted(ratios.values())
    quantiles = {f"{percent}%": values[round(percent / 100 * (len(values) - 1))] for percent in (0, 5, 25, 50, 75, 100)}
    behind = {label: ratio for label, ratio in sorted(ratios.items(), key=lambda item: item[1]) if ratio < BEHIND}
    mean = math.exp(statistics.fmean(map(math.log, values)))
    return {"problems": len(values), "geometric mean": mean, "quantiles": quantiles, "behind": behind}


def print_totals(totals: Mapping[str, Mapping[str, Any]]) -> None:
    for rival, total in totals.items():
        print_rows((f"behind {rival}", "ratio"), [(label, f"{ratio:.2f}") for label, ratio in total["behind"].items()])
    rows = []
    for rival, total in totals.items():
        ratios = (total["geometric mean"], *(total["quantiles"][q] for q in ("0%", "5%", "50%")))
        rows.append((rival, total["problems"], *(f"{ratio:.2f}" for ratio in ratios), len(total["behind"])))
    print_rows(("against", "problems", "mean", "worst", "5%", "median", "behind"), rows)


def main() -> None:
    given = read_arguments()
    wanted = [Problem(kernel, *shape) for shape in given.shapes for kernel in given.kernel or KERNELS]
    clocks = [read_clocks()]
    measured = measure_all(given, wanted)
    clocks.append(read_clocks())
    if not measured:
        sys.exit("nothing was measured")
    rivals = {name for times in measured.values() for name in times} - {"ours"}
    totals = {
        rival: summary({p.label: times[rival] / times["ours"] for p, times in measured.items() if rival in times})
        for rival in sorted(rivals)
    }
    print_totals(totals)
    missing = [problem.label for problem in wanted if problem not in measured]
    times = {problem.label: times for problem, times in measured.items()}
    report("rows", {"summary": totals, "not measured": missing, "clocks": clocks, "times": times}, given.out)


def read_arguments() -> argparse.Namespace:
    arguments = parser(__doc__)
    arguments.add_argument("bundle", type=Path, help="the shipped kernels")
    arguments.add_argument("--other", action="append", default=[], metavar="NAME=BUNDLE", help="another build of them")
    arguments.add_argument("--kernel", action="append", help="only this kernel; repeatable")
    arguments.add_argument(
        "--shapes",
        type=_shapes,
        default="rows_report",
        help="a file of benchmarks/shapes, or a list such as 1x64,7x100",
    )
    arguments.add_argument("--against", type=lambda text: text.split(","), default=["torch.compile"])
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


def _shapes(text: str) -> list[tuple[int, int]]:
    if not text[0].isdigit():
        return read_shapes(text)
    pairs = [tuple(map(int, pair.split("x"))) for pair in text.split(",")]
    return [(rows, columns) for rows, columns in pairs]


if __name__ == "__main__":
    main()
