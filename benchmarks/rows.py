"""Kernels over rows against torch and torch.compile, over a list of widths and numbers of rows, in bf16.

The list was written down before anything was measured: widths of public models beside odd ones, from 64 to 262,144, by 1
to 65,536 rows, as long as a matrix has at most 2^29 elements. Each contender runs alone in a CUDA graph of many calls.
The contenders take turns; a figure is the median of five rounds. Each shape is compiled by itself (``dynamic=False``).

Processes compile side by side, because torch.compile takes a second or more for each shape. Then they measure one at a
time, behind a lock, when nothing compiles any more.

    python -m aot build --arch sm90
    python benchmarks/rows.py dist/kernels --out benchmarks/results/h200-rows.json
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import statistics
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _common import parser, print_rows, report

WIDTHS = (64, 100, 128, 333, 512, 768, 1000, 1536, 2048, 3001, 4096, 5120, 7168, 8192, 11_008, 13_001, 16_384, 18_432,
          28_672, 32_000, 50_257, 65_536, 99_999, 128_256, 151_936, 200_003, 262_144)  # fmt: skip
ROWS = (1, 7, 33, 64, 132, 333, 1024, 3001, 4096, 16_384, 30_011, 65_536)
LARGEST = 1 << 29  # elements
KERNELS = ("rmsnorm", "rmsnorm_residual", "layernorm", "softmax", "reduce", "quantize_fp8", "argmax", "cross_entropy")
TOP_K = ((64, 8), (100, 8), (128, 8), (333, 8), (512, 32), (32_000, 50), (50_257, 8), (128_256, 50))  # width, k
CHOICES = {"reduce": {"op": "sum"}}
ROUNDS, SETS, MANY_CALLS, SMALL = 5, 64, 64, 1 << 23
BEHIND = 0.95


@dataclass(frozen=True)
class Problem:
    kernel: str
    rows: int
    columns: int
    k: int | None = None

    @property
    def label(self) -> str:
        return f"{self.kernel} {self.rows} x {self.columns}" + (f", k = {self.k}" if self.k is not None else "")

    def arguments(self, make: Any) -> dict[str, Any]:
        x = make.tensor((self.rows, self.columns), "bf16")
        if self.kernel == "cross_entropy":
            return {"x": x, "target": make.torch.arange(self.rows, device=x.device) * 7919 % self.columns}
        if self.kernel == "rmsnorm_residual":
            return {"x": x, "residual": x.clone(), "weight": make.tensor((self.columns,), "bf16")}
        names = {"rmsnorm": ("weight",), "layernorm": ("weight", "bias")}.get(self.kernel, ())
        k = {} if self.k is None else {"k": self.k}
        return {"x": x, **{name: make.tensor((self.columns,), "bf16") for name in names}, **k}


def problems(kernels: Sequence[str], widths: Sequence[int], rows: Sequence[int]) -> list[Problem]:
    plain = [
        Problem(kernel, m, n)
        for kernel in kernels
        if kernel != "top_k"
        for n in widths
        for m in rows
        if m * n <= LARGEST
    ]
    taken = [Problem("top_k", m, n, k) for n, k in TOP_K if n in widths for m in rows if m * n <= LARGEST]
    return plain + (taken if "top_k" in kernels else [])


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


def work(given: argparse.Namespace, own: Sequence[Problem], lock: Any, compiled: Any, results: Any) -> None:
    """What one process does. A problem that fails is reported with its reason, and the others go on."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # there is a process per core already
    measuring, ready = Measuring(given.bundles, given.against), []
    for problem in own:
        try:
            measuring.compile(problem)
            ready.append(problem)
        except Exception:
            results.put((problem, traceback.format_exc()))
    compiled.wait()
    for problem in ready:
        with lock:
            try:
                results.put((problem, measuring.measure(problem)))
            except Exception:
                results.put((problem, traceback.format_exc()))
            measuring.torch.cuda.synchronize()
            measuring.torch.cuda.empty_cache()


def measure_all(given: argparse.Namespace, wanted: Sequence[Problem]) -> dict[Problem, dict[str, float]]:
    context = multiprocessing.get_context("spawn")
    jobs = min(given.jobs, len(wanted))
    lock, compiled, results = context.Lock(), context.Barrier(jobs), context.Queue()
    processes = [
        context.Process(target=work, args=(given, wanted[i::jobs], lock, compiled, results)) for i in range(jobs)
    ]
    for process in processes:
        process.start()
    measured = {}
    for _ in wanted:
        problem, result = results.get()
        if isinstance(result, str):
            print(f"{problem.label} failed:\n{result}", file=sys.stderr)
        else:
            measured[problem] = result
            ratios = "  ".join(f"{name} {result[name] / result['ours']:.2f}" for name in result if name != "ours")
            print(f"{problem.label}: {result['ours']:.1f} us;  {ratios}", file=sys.stderr, flush=True)
    for process in processes:
        process.join()
    return {problem: measured[problem] for problem in wanted if problem in measured}


def summary(ratios: Mapping[str, float]) -> dict[str, Any]:
    """How many times faster ours is, over all problems; those that are behind by name, the worst first."""
    values = sorted(ratios.values())
    quantiles = {f"{percent}%": values[round(percent / 100 * (len(values) - 1))] for percent in (0, 5, 25, 50, 75, 100)}
    behind = {label: ratio for label, ratio in sorted(ratios.items(), key=lambda item: item[1]) if ratio < BEHIND}
    mean = math.exp(statistics.fmean(map(math.log, values)))
    return {"problems": len(values), "geometric mean": mean, "quantiles": quantiles, "behind": behind}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("bundle", type=Path, help="the shipped kernels")
    arguments.add_argument("--other", action="append", default=[], metavar="NAME=BUNDLE", help="another build of them")
    arguments.add_argument("--kernel", action="append", help="only this kernel; repeatable")
    arguments.add_argument("--widths", type=_numbers, default=WIDTHS)
    arguments.add_argument("--rows", type=_numbers, default=ROWS)
    arguments.add_argument(
        "--part", type=_fraction, default=(1, 1), metavar="I/N", help="only the I-th of N parts of the list"
    )
    arguments.add_argument("--against", type=lambda text: text.split(","), default=["torch", "torch.compile"])
    arguments.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    given = arguments.parse_args()
    given.bundles = {"ours": given.bundle, **{n: Path(p) for n, p in (text.split("=") for text in given.other)}}
    part, parts = given.part
    wanted = problems(given.kernel or (*KERNELS, "top_k"), given.widths, given.rows)[part - 1 :: parts]
    measured = measure_all(given, wanted)
    if not measured:
        sys.exit("nothing was measured")
    rivals = [name for name in next(iter(measured.values())) if name != "ours"]
    totals = {
        rival: summary({problem.label: times[rival] / times["ours"] for problem, times in measured.items()})
        for rival in rivals
    }
    for rival, total in totals.items():
        print_rows((f"behind {rival}", "ratio"), [(label, f"{ratio:.2f}") for label, ratio in total["behind"].items()])
    columns = ("against", "problems", "mean", "worst", "5%", "median", "behind")
    rows = [
        (rival, t["problems"], *(f"{v:.2f}" for v in (t["geometric mean"], *(t["quantiles"][q] for q in ("0%", "5%", "50%")))),
         len(t["behind"]))
        for rival, t in totals.items()
    ]  # fmt: skip
    print_rows(columns, rows)
    report("rows", {"times": {p.label: times for p, times in measured.items()}, "summary": totals}, given.out)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


def _fraction(text: str) -> tuple[int, int]:
    part, parts = map(int, text.split("/"))
    return part, parts


if __name__ == "__main__":
    main()
