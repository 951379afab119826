"""Times of every tiling of a shipped product for sm_90a, on products to tune on: what `aot tune --times` fits models to.

Needs a GPU, torch, and a bundle of the shipped kernels with the family of the product, alone on the GPU. Contenders take turns
in random order in CUDA graphs, with inputs beyond the L2 cache. After 6 ms of work the GPU rests as long, so that its clock
stays high. It does not rest between calls of large products: where they matter, one follows the other, and power limits them.
A tiling is left out of a product if a call of it takes much longer than one of the fastest, and timed once if it is not among
the fastest.

    python benchmarks/tilings.py dist/kernels bf16      # `gemm`, against torch.mm
    python benchmarks/tilings.py dist/kernels tf32      # `gemm_f32`; f32 are exact products
    python benchmarks/tilings.py dist/kernels tensor    # `gemm_fp8` with one scale, against `_scaled_mm`; blocks: with theirs
"""

from __future__ import annotations

import gc
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from _common import machine_facts, parser
from _timers import between_events
from aot_runtime.arch import Arch
from gemm_shapes import EVERY, PRECISIONS, Problem, read_clocks, read_problems, this_device
from scaled_shapes import MAX_SETS, Case, make_inputs, takes, torch_run

from aot.gpu.running import find_gpu, variants_of
from aot.gpu.tune import tuned_device
from aot.records import encode

SETS = ("gemm_tune", "gemm_random")
ARCH = Arch.parse("sm_90a")
KINDS = {"bf16": "gemm", "tf32": "gemm_f32", "f32": "gemm_f32", "tensor": "gemm_fp8", "blocks": "gemm_fp8"}
MOST = {"bf16": 2.6e12, "tf32": 1.3e12, "f32": 2.5e11, "tensor": 2.6e12, "blocks": 2.6e12}  # operations of a product
WORK = 6000.0  # microseconds after which the GPU rests
LARGE = 1e11  # operations of a product from which it does not
# A tiling is left out if a call takes SLOWER times as long as one of the fastest, and MORE microseconds more.
SLOWER, MORE = 1.25, 12.0
NEAR = 1.12  # a tiling is timed once if it takes longer than this
ROUNDS = 3
SEED = 17
TORCH = "torch"  # the contender that is always timed

Run = Callable[[int], Any]


def problems(what: str) -> list[Problem]:
    """Products to tune on, in random order, without those that are reported or that torch does not take."""
    reported = {problem[2:] for problem in read_problems("gemm_report")}
    found = {problem[2:]: problem for name in SETS for problem in read_problems(name)}
    multiple = {"tensor": 16, "blocks": 128}.get(what, 1)  # of k
    kept = [
        problem
        for shape, problem in found.items()
        if shape not in reported and problem.operations < MOST[what] and problem.k % multiple == 0
    ]
    random.Random(SEED).shuffle(kept)
    return kept


def inputs_of(what: str, problem: Problem, sets: int) -> tuple[list[dict[str, Any]], list[Any], Run]:
    """Inputs, outputs, and torch's product of them."""
    import torch

    dtype = torch.float32 if what in PRECISIONS else torch.bfloat16
    outs = [torch.empty(problem.m, problem.n, device="cuda", dtype=dtype) for _ in range(sets)]
    if KINDS[what] == "gemm_fp8":
        case = Case(list(problem), what)
        made = [make_inputs(case) for _ in range(sets)]
        run: Run = lambda i: torch_run(case, **made[i])  # noqa: E731
        if not takes(case, made[0]):
            made = []
    else:
        torch.backends.cuda.matmul.allow_tf32 = what == "tf32"
        own = {"device": "cuda", "dtype": dtype}
        made = [
            {"a": torch.randn(problem.m, problem.k, **own), "b": torch.randn(problem.n, problem.k, **own)}
            for _ in range(sets)
        ]
        run = lambda i: torch.mm(made[i]["a"], made[i]["b"].T, out=outs[i])  # noqa: E731
    return made, outs, run


def tilings(
    bundle: Any, what: str, inputs: list[dict[str, Any]], outs: list[Any], functions: dict[str, Any]
) -> Iterator[tuple[str, Run]]:
    """Each tiling that takes a product."""
    from aot_runtime.core.asking import variant_function

    kernel = KINDS[what]
    choices = {"precision": PRECISIONS[what]} if what in PRECISIONS else {}
    for one in bundle.explain(kernel, this_device(), **inputs[0], out=outs[0], **choices).candidates:
        if not one.reason and one.variant.rpartition("__")[2].startswith("tile"):
            if one.variant not in functions:
                functions[one.variant] = variant_function(bundle, kernel, one.variant)
            yield one.variant, lambda i, call=functions[one.variant]: call(**inputs[i], out=outs[i], **choices)


Timed = Callable[[Callable[[], float], int], float]  # a measurement of so many calls


def unrested(timer: Callable[[], float], calls: int) -> float:
    return timer()


class Rested:
    """Measurements between which the GPU rests as long as it worked."""

    def __init__(self) -> None:
        self.worked = 0.0

    def __call__(self, timer: Callable[[], float], calls: int) -> float:
        found = timer()
        self.worked += found * calls
        if self.worked > WORK:
            time.sleep(self.worked * 1e-6)
            self.worked = 0.0
        return found


def measure(runs: Mapping[str, Run], sets: int, calls: int, rested: Timed, chance: random.Random) -> dict[str, float]:
    """Microseconds of a call by contender."""
    from aot.gpu.bench import graph_timer

    def look(run: Run) -> float:
        return min(rested(lambda: between_events(lambda: run(0)), 1) for _ in range(3))

    looks = {name: look(run) for name, run in runs.items()}
    most = min(took for name, took in looks.items() if name != TORCH) * SLOWER + MORE
    timers = {name: graph_timer(run, sets, calls) for name, run in runs.items() if name == TORCH or looks[name] <= most}
    count = max(sets, -(-calls // sets) * sets)
    names = list(timers)
    chance.shuffle(names)
    times = {name: rested(timers[name], count) for name in names}
    least = min(times.values())
    near = [name for name in names if times[name] <= NEAR * least or name == TORCH]
    samples: dict[str, list[float]] = {name: [] for name in near}
    for _ in range(ROUNDS):
        chance.shuffle(near)
        for name in near:
            samples[name].append(rested(timers[name], count))
    return {**times, **{name: statistics.median(own) for name, own in samples.items()}}


def measure_all(
    bundle: Any, what: str, products: list[Problem], seconds: float, clocks: list[dict[str, str]]
) -> list[tuple[Problem, dict[str, float]]]:
    """Products with the times of their contenders, until the time is over."""
    from aot.gpu.bench import cache_bytes, copies_beyond

    start, rested, chance = time.monotonic(), Rested(), random.Random(SEED)
    functions: dict[str, Any] = {}
    measured = []
    wide = 2 if what in PRECISIONS else 1  # f32 has twice the bytes that a problem says
    for index, problem in enumerate(products):
        if time.monotonic() - start > seconds:
            break
        sets = min(copies_beyond(cache_bytes("cuda"), problem.bytes * wide), MAX_SETS)
        inputs, outs, torch_product = inputs_of(what, problem, sets)
        runs = dict(tilings(bundle, what, inputs, outs, functions)) if inputs else {}
        if runs:
            timed = rested if problem.operations < LARGE else unrested
            measured.append((problem, measure({TORCH: torch_product, **runs}, sets, problem.calls, timed, chance)))
        if index % EVERY == EVERY - 1:
            clocks.append(read_clocks())
            print(f"{index + 1} of {len(products)}, {time.monotonic() - start:.0f} s", flush=True)
    return measured


def times_of(bundle: Any, what: str, measured: list[tuple[Problem, dict[str, float]]]) -> Iterator[dict[str, Any]]:
    """The times as `tune --json` prints them, and torch's."""
    known = {one.name: one for one in variants_of(bundle.path, bundle.manifest)[ARCH]}
    for problem, times in measured:
        first = known[next(name for name in times if name != TORCH)]
        own = {name: round(took, 2) for name, took in times.items() if name != TORCH}
        of_call = {"kernel": KINDS[what], "arch": str(ARCH), "function": first.function, "point": dict(first.point)}
        yield {**of_call, "extents": list(problem[2:]), "usual": "", "microseconds": own, TORCH: round(times[TORCH], 2)}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("bundle", type=Path)
    arguments.add_argument("what", choices=tuple(KINDS))
    arguments.add_argument("--seconds", type=float, default=float("inf"), help="stop after these (default: never)")
    given = arguments.parse_args()
    import aot_runtime

    bundle, products, clocks = aot_runtime.load(given.bundle), problems(given.what), [read_clocks()]
    gc.freeze()  # torch collects garbage before each graph: it need not look at what is here already
    measured = measure_all(bundle, given.what, products, given.seconds, clocks)
    gpu = find_gpu("tilings.py")
    results = {
        "benchmark": f"tilings of {KINDS[given.what]}, {given.what}",
        "machine": machine_facts(),
        "summary": {"products": len(measured), "of": len(products), "clocks": clocks},
        "device": encode(tuned_device(gpu)),
        "clock": gpu.clock,
        "measured": list(times_of(bundle, given.what, measured)),
    }
    if given.out is not None:
        given.out.write_text(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
