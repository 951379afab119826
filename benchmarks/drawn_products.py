"""The shipped products against others on shapes that a seed draws, as this GPU chooses tilings and as others would.

Needs a GPU, torch, and a bundle of the shipped kernels. ``drawn.py`` draws the products: none of them was tuned on. Each GPU
that ``--as`` names chooses by its own table, and the choice runs here. Contenders take turns in random order, in CUDA graphs
with weights beyond the L2 cache, five rounds, and medians are compared. Everything is measured twice. A product counts as
behind if it is below 0.95 in both runs. ``--core`` is a bundle with fewer tilings: what its table chooses is measured too.

    python benchmarks/drawn_products.py dist/kernels --seed 20 --as "NVIDIA H100 80GB HBM3" --core dist/core
    python benchmarks/drawn_products.py dist/kernels --cubes
    python benchmarks/drawn_products.py dist/kernels --seed 20 --what blocks     # f8; also `tensor` and `rows`
    python benchmarks/drawn_products.py dist/kernels --seed 20 --few --read dist/read

The tables know times of the cubes from 4096 on. The contender is torch: cuBLAS, or ``_scaled_mm``. Of blocks of f8 it is the
better of torch and DeepGEMM, if that is installed.
``--few`` draws products of up to 16 rows, and ``--read`` is a bundle of ``benchmarks/kernels/read.py``, which reads the
weights and nothing else, in several forms: the fastest one counts.
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
from scaled_shapes import Case, make_inputs, takes, torch_run

OTHERS, OWN, CORE, READ = "others", "its own table", "its own table of the core tilings", "a plain read"
PLAIN = ("bf16", "f16", "f32")
CUBES = (1024, 2048, 3072, 4096, 6144, 8192)
BLOCK = 128  # of f8 scales; DeepGEMM takes no part of one along k
MOST_SETS = 16
READ_AT_ONCE = 1 << 13  # numbers of 4 bytes that `read` takes a multiple of; a part of that is not read
READ_FORMS = ("default", "wide", "many", "short")
FEW_ROWS = {"f32": 4}  # else 16
Chooser = Callable[..., str]  # the variant that a table of a bundle names for tensors
Run = Callable[[int], Any]


def inputs_of(problem: Problem, what: str, sets: int) -> list[dict[str, Any]]:
    import torch

    from aot.gpu.inputs import torch_dtype

    m, n, k = problem[2:]
    if what not in PLAIN:
        made = [make_inputs(Case([*problem], what)) for _ in range(sets)]
        return [{**one, "out": torch.empty(m, n, device="cuda", dtype=torch.bfloat16)} for one in made]
    own = {"device": "cuda", "dtype": torch_dtype(what)}
    return [
        {"a": torch.randn(m, k, **own), "b": torch.randn(n, k, **own), "out": torch.empty(m, n, **own)}
        for _ in range(sets)
    ]


def deep_gemm_run(inputs: Sequence[Mapping[str, Any]]) -> Run | None:
    """DeepGEMM on these inputs; None if it is not installed."""
    try:
        import deep_gemm
    except ImportError:
        return None
    scales = [deep_gemm.get_mn_major_tma_aligned_tensor(one["a_scale"]) for one in inputs]

    def run(i: int) -> None:
        one = inputs[i]
        deep_gemm.fp8_gemm_nt((one["a"], scales[i]), (one["b"], one["b_scale"]), one["out"])

    return run


def others_of(problem: Problem, what: str, inputs: Sequence[Mapping[str, Any]]) -> dict[str, Run]:
    """What ours are compared with."""
    import torch

    if what in PLAIN:
        return {"torch": lambda i: torch.mm(inputs[i]["a"], inputs[i]["b"].T, out=inputs[i]["out"])}
    case = Case([*problem], what)
    given = [{name: tensor for name, tensor in one.items() if name != "out"} for one in inputs]
    runs: dict[str, Run] = {}
    if takes(case, given[0]):
        runs["torch"] = lambda i: torch_run(case, **given[i])
    deep = deep_gemm_run(inputs) if what == "blocks" else None
    return runs if deep is None else {**runs, "DeepGEMM": deep}


def read_runs(read: Any, inputs: Sequence[Mapping[str, Any]]) -> dict[str, Run]:
    """A plain read in each of its forms."""
    import torch

    weights = [one["b"].view(torch.int32).view(-1) for one in inputs]
    weights = [one[: len(one) // READ_AT_ONCE * READ_AT_ONCE] for one in weights]
    sink = torch.empty(512, device="cuda", dtype=torch.int32)
    return {f"{READ}, {form}": lambda i, form=form: read.read(weights[i], sink, form=form) for form in READ_FORMS}


def measure(bundle: Any, problem: Problem, what: str, choosers: Mapping[str, Chooser], read: Any) -> dict[str, Any]:
    """Microseconds of others and by table, and the variant that each table names."""
    from aot_runtime.core.asking import variant_function

    from aot.gpu.bench import cache_bytes, copies_beyond

    kernel, size = kernel_of(what), problem.bytes if what in PLAIN else Case([*problem], what).bytes
    inputs = inputs_of(problem, what, min(copies_beyond(cache_bytes("cuda"), size), MOST_SETS))
    runs = others_of(problem, what, inputs)
    others = tuple(runs)
    reading = read_runs(read, inputs) if read is not None else {}
    runs |= reading
    variants = {name: choose(**inputs[0]) for name, choose in choosers.items()}
    for variant in dict.fromkeys(variants.values()):
        function = variant_function(bundle, kernel, variant)
        runs[variant] = lambda i, function=function: function(**inputs[i])
    found = medians(runs, "graph", len(inputs), problem.calls, ROUNDS)
    times = {name: found[variant] for name, variant in variants.items()}
    best = {OTHERS: min(found[name] for name in others)} if others else {}
    reads = {READ: min(found[name] for name in reading)} if reading else {}
    return {"variants": variants, "microseconds": {**best, **reads, **times}}


def summary(problems: Sequence[Problem], ratios: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Of ratios of another's time to ours, by product and run."""
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


def summaries(problems: Sequence[Problem], runs: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """What others, and a plain read, took beside what each table names."""
    found: dict[str, Any] = {}
    times = [[rows[i]["microseconds"] for rows in runs] for i in range(len(problems))]
    for name in runs[0][0]["variants"]:
        for other, label in ((OTHERS, name), (READ, f"{name}, beside {READ}")):
            own = [(problem, each) for problem, each in zip(problems, times, strict=True) if other in each[0]]
            if own:
                ratios = [[one[other] / one[name] for one in each] for _, each in own]
                found[label] = summary([problem for problem, _ in own], ratios)
    return found


def _row(runs: Sequence[Mapping[str, Any]], devices: Iterable[str]) -> tuple[list[str], list[list[float]]]:
    tilings = [runs[0]["variants"][name].rpartition("__")[2] for name in devices]
    return tilings, [[round(took, 2) for took in run["microseconds"].values()] for run in runs]


def kernel_of(what: str) -> str:
    return "gemm_f32" if what == "f32" else "gemm" if what in PLAIN else "gemm_fp8"


def choosers_of(bundle: Any, what: str, names: Sequence[str], core: Any = None) -> dict[str, Chooser]:
    from aot_runtime import Device

    from aot.model.parts import find_part

    def chooser(bundle: Any, device: Any) -> Chooser:
        return lambda **tensors: bundle.explain(kernel_of(what), device, **tensors).chosen.variant

    found = {OWN: chooser(bundle, this_device())}
    if core is not None:
        found[CORE] = chooser(core, this_device())
    for name in names:
        part = find_part(name)
        if part is None:
            raise SystemExit(f"not a known GPU: {name}")
        found[name] = chooser(bundle, Device(part.capability, part.name, part.multiprocessors, part.bandwidth))
    return found


def problems_of(given: Any) -> list[Problem]:
    if given.cubes:
        return [Problem("cube", "", size, size, size) for size in CUBES]
    drawn = draw(given.seed, (12 if given.few or given.what == "blocks" else 1) * given.count)
    if given.few:
        drawn = [problem for problem in drawn if problem.m <= FEW_ROWS.get(given.what, 16)]
    if given.what == "blocks":  # torch takes no others
        drawn = [problem for problem in drawn if problem.m % 4 == problem.k % BLOCK == 0]
    return drawn[: given.count]


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("bundle", type=Path)
    arguments.add_argument("--seed", type=int, default=0, help="a new one for each report")
    arguments.add_argument("--count", type=int, default=300, help="products (default: 300)")
    arguments.add_argument(
        "--what", default="bf16", choices=(*PLAIN, "tensor", "rows", "blocks"), help="operands, or scales of f8"
    )
    arguments.add_argument("--cubes", action="store_true", help="cubes instead of drawn products")
    arguments.add_argument("--few", action="store_true", help="products of few rows only")
    arguments.add_argument("--read", type=Path, help="a bundle of `benchmarks/kernels/read.py`")
    arguments.add_argument("--as", dest="others", action="append", default=[], help="a GPU; repeatable")
    arguments.add_argument("--core", type=Path, help="a bundle with fewer tilings")
    given = arguments.parse_args()
    import aot_runtime

    bundle, problems = aot_runtime.load(given.bundle), problems_of(given)
    core, read = (path and aot_runtime.load(path) for path in (given.core, given.read))
    devices = choosers_of(bundle, given.what, given.others, core)
    gc.freeze()  # torch collects garbage before each graph: it need not look at what is here already
    clocks = [read_clocks()]
    runs = []
    for _ in range(RUNS):
        runs.append([measure(bundle, problem, given.what, devices, read) for problem in problems])
        clocks.append(read_clocks())
    found = summaries(problems, runs)
    print(json.dumps(found, indent=1))
    rows = [[*problem, *_row([rows[i] for rows in runs], devices)] for i, problem in enumerate(problems)]
    columns = ["model", "layer", "m", "n", "k", f"tilings by {', '.join(devices)}"]
    columns.append("microseconds of each run: others, a plain read if it was timed, tables")
    results = {
        "seed": given.seed,
        "what": given.what,
        "summary": found,
        "clocks": clocks,
        "columns": columns,
        "problems": rows,
    }
    report("drawn_products", results, given.out)


if __name__ == "__main__":
    main()
