"""The shipped GEMM against cuBLAS on products that a seed draws, as this GPU chooses and as others would.

Needs a GPU, torch, and a bundle of the shipped kernels. ``drawn.py`` draws the products: none of them was tuned on. Each GPU
that ``--as`` names chooses by its own table, and the choice runs here. Contenders take turns in random order, in CUDA graphs
with weights beyond the L2 cache, five rounds, and medians are compared. Everything is measured twice. A product counts as
behind if it is below 0.95 in both runs. ``--core`` is a bundle with fewer tilings: what its table chooses is measured too.

    python benchmarks/drawn_products.py dist/kernels --seed 20 --as "NVIDIA H100 80GB HBM3" --core dist/core
"""

from __future__ import annotations

import gc
import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from _common import parser, report
from _timers import medians
from drawn import RANGES, draw
from gemm_shapes import BEHIND, ROUNDS, RUNS, Problem, read_clocks, this_device

CUBLAS, OWN, CORE = "cublas", "its own table", "its own table of the core tilings"
Chooser = Callable[..., str]  # the variant that a table of a bundle names for tensors


def contenders(
    bundle: Any, problem: Problem, choosers: Mapping[str, Chooser], sets: int
) -> dict[str, Callable[[int], Any]]:
    """cuBLAS, and the variant that each table names; one of several that name the same."""
    import torch
    from aot_runtime.core.asking import variant_function

    own = {"device": "cuda", "dtype": torch.bfloat16}
    a, b = torch.randn(sets, problem.m, problem.k, **own), torch.randn(sets, problem.n, problem.k, **own)
    out = torch.empty(sets, problem.m, problem.n, **own)
    runs: dict[str, Callable[[int], Any]] = {CUBLAS: lambda i: torch.mm(a[i], b[i].T, out=out[i])}
    for choose in choosers.values():
        chosen = choose(a[0], b[0], out[0])
        if chosen not in runs:
            function = variant_function(bundle, "gemm", chosen)
            runs[chosen] = lambda i, function=function: function(a[i], b[i], out[i])
    return runs


def measure(bundle: Any, problem: Problem, choosers: Mapping[str, Chooser]) -> dict[str, Any]:
    """Microseconds by table and of cuBLAS, and the variant that each table names."""
    from aot_runtime import TensorInfo

    from aot.gpu.bench import cache_bytes, copies_beyond

    sets = min(copies_beyond(cache_bytes("cuda"), problem.bytes), 16)
    found = medians(contenders(bundle, problem, choosers, sets), "graph", sets, problem.calls, ROUNDS)
    m, n, k = problem[2:]
    shapes = [TensorInfo("bf16", shape) for shape in ((m, k), (n, k), (m, n))]
    variants = {name: choose(*shapes) for name, choose in choosers.items()}
    times = {name: found[variant] for name, variant in variants.items()}
    return {"variants": variants, "microseconds": {CUBLAS: found[CUBLAS], **times}}


def summary(problems: Sequence[Problem], ratios: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Of ratios of cuBLAS' time to ours, by product and run."""
    best, mean = [max(own) for own in ratios], [statistics.geometric_mean(own) for own in ratios]
    ranges = {}
    for low, high in RANGES:
        own = [ratio for problem, ratio in zip(problems, mean, strict=True) if low <= problem.m <= high]
        ranges[f"{low} to {high}"] = round(statistics.geometric_mean(own), 3) if own else None
    return {
        "products": len(problems),
        "mean": round(statistics.geometric_mean(mean), 3),
        "behind": sum(ratio < BEHIND for ratio in best),
        "worst": round(min(best), 3),
        "by_rows": ranges,
    }


def _row(runs: Sequence[Mapping[str, Any]], devices: Iterable[str]) -> tuple[list[str], list[list[float]]]:
    tilings = [runs[0]["variants"][name].rpartition("__")[2] for name in devices]
    return tilings, [[round(run["microseconds"][name], 2) for name in (CUBLAS, *devices)] for run in runs]


def choosers_of(bundle: Any, names: Sequence[str], core: Any = None) -> dict[str, Chooser]:
    from aot_runtime import Device

    from aot.model.parts import find_part

    def chooser(bundle: Any, device: Any) -> Chooser:
        return lambda *tensors: bundle.explain("gemm", device, *tensors).chosen.variant

    found = {OWN: chooser(bundle, this_device())}
    if core is not None:
        found[CORE] = chooser(core, this_device())
    for name in names:
        part = find_part(name)
        if part is None:
            raise SystemExit(f"not a known GPU: {name}")
        found[name] = chooser(bundle, Device(part.capability, part.name, part.multiprocessors, part.bandwidth))
    return found


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("bundle", type=Path)
    arguments.add_argument("--seed", type=int, required=True, help="a new one for each report")
    arguments.add_argument("--count", type=int, default=300, help="products (default: 300)")
    arguments.add_argument("--as", dest="others", action="append", default=[], help="a GPU; repeatable")
    arguments.add_argument("--core", type=Path, help="a bundle with fewer tilings")
    given = arguments.parse_args()
    import aot_runtime

    bundle, problems = aot_runtime.load(given.bundle), draw(given.seed, given.count)
    core = aot_runtime.load(given.core) if given.core is not None else None
    devices = choosers_of(bundle, given.others, core)
    gc.freeze()  # torch collects garbage before each graph: it need not look at what is here already
    clocks = [read_clocks()]
    runs = []
    for _ in range(RUNS):
        runs.append([measure(bundle, problem, devices) for problem in problems])
        clocks.append(read_clocks())
    found = {}
    for name in devices:
        times = [[rows[i]["microseconds"] for rows in runs] for i in range(len(problems))]
        found[name] = summary(problems, [[one[CUBLAS] / one[name] for one in own] for own in times])
    print(json.dumps(found, indent=1))
    rows = [[*problem, *_row([rows[i] for rows in runs], devices)] for i, problem in enumerate(problems)]
    columns = [
        "model",
        "layer",
        "m",
        "n",
        "k",
        f"tilings by {', '.join(devices)}",
        "microseconds of each run, cuBLAS first",
    ]
    results = {
        "seed": given.seed,
        "dtype": "bf16",
        "summary": found,
        "clocks": clocks,
        "columns": columns,
        "problems": rows,
    }
    report("drawn_products", results, given.out)


if __name__ == "__main__":
    main()
