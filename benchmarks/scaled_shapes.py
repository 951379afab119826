"""`gemm_fp8` and `grouped_gemm` against torch, on products of real models. The tables of `gemm_fp8` know times of some of them.

Needs a GPU, torch, and a bundle of the shipped kernels with the families `fp8` and `experts`. Each product is measured in
several rounds, ours and torch's in random order in each of them, and medians are compared. All products are measured that
way in two runs. A product counts as behind if its ratio is below 0.95 in both.

    python benchmarks/scaled_shapes.py dist/kernels rows       # `_scaled_mm`, a scale per row and column
    python benchmarks/scaled_shapes.py dist/kernels tensor     # one scale each
    python benchmarks/scaled_shapes.py dist/kernels blocks     # 1 x 128 by 128 x 128
    python benchmarks/scaled_shapes.py dist/kernels grouped    # `_grouped_mm`, bf16
    python benchmarks/scaled_shapes.py dist/kernels grouped-fp8

Both sides add f8 products up in f32: `use_fast_accum` is off, which is torch's default. Torch's grouped product of f8 can
only be had with it on, so that comparison favours torch.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _common import PROJECT, parser, report
from _timers import WAYS, medians
from gemm_shapes import BEHIND, EVERY, ROUNDS, RUNS, SHORT, read_clocks, this_device

MAX_SETS = 8  # of inputs, so that they exceed the L2 cache
SEED = 3
PLAIN = "grouped"  # beside these, the plain product of as many rows with one matrix is measured


class Case:
    """One product: what to call, on which inputs, and what it costs."""

    def __init__(self, row: list[Any], what: str) -> None:
        self.row, self.what = row, what
        self.rows, self.n, self.k = row[2], row[-3] if self.grouped else row[3], row[-2] if self.grouped else row[4]
        self.experts = row[3] if self.grouped else 1

    @property
    def grouped(self) -> bool:
        return self.what.startswith("grouped")

    @property
    def narrow(self) -> bool:
        return self.what != "grouped"

    @property
    def operations(self) -> int:
        return 2 * self.rows * self.n * self.k

    @property
    def bytes(self) -> int:
        read = (self.rows + self.experts * self.n) * self.k
        return (1 if self.narrow else 2) * read + 2 * self.rows * self.n

    @property
    def calls(self) -> int:
        microseconds = max(self.operations / 800e6, self.bytes / 3e6, 2.0)
        return max(2, min(16, int(SHORT / microseconds)))


def offsets_of(case: Case) -> Any:
    """The row after the last of each expert, as the problem spreads them."""
    import torch

    if case.row[-1] == "even":
        counts = [(i + 1) * case.rows // case.experts - i * case.rows // case.experts for i in range(case.experts)]
        shares = torch.tensor(counts)
    else:
        generator = torch.Generator().manual_seed(SEED)
        weights = torch.rand(case.experts, generator=generator) ** 3
        chosen = torch.multinomial(weights, case.rows, replacement=True, generator=generator)
        shares = torch.bincount(chosen, minlength=case.experts)
    return shares.cumsum(0).to(torch.int32).cuda()


def make_inputs(case: Case) -> dict[str, Any]:
    import torch

    dtype = torch.float8_e4m3fn if case.narrow else torch.bfloat16
    a = torch.randn(case.rows, case.k, device="cuda").to(dtype)
    b = torch.randn(case.experts * case.n, case.k, device="cuda", dtype=torch.bfloat16).to(dtype)
    made: dict[str, Any] = {"a": a, "b": b.view(case.experts, case.n, case.k) if case.grouped else b}
    if case.grouped:
        made["offsets"] = offsets_of(case)
    if case.narrow:
        blocks = case.k // 128
        shapes = {
            "rows": ((case.rows,), (case.n,)),
            "tensor": ((1,), (1,)),
            "blocks": ((blocks, case.rows), (-(-case.n // 128), blocks)),
            "grouped-fp8": ((case.rows,), (case.experts, case.n)),
        }[case.what]
        scales = [torch.rand(shape, device="cuda") + 0.5 for shape in shapes]
        made["a_scale"] = scales[0].mT if case.what == "blocks" else scales[0]  # as torch wants them
        made["b_scale"] = scales[1]
    return made


def torch_run(case: Case, a: Any, b: Any, a_scale: Any = None, b_scale: Any = None, offsets: Any = None) -> Any:
    import torch

    if case.what == "grouped":
        return torch._grouped_mm(a, b.mT, offs=offsets)
    if case.what == "grouped-fp8":
        return torch._scaled_grouped_mm(
            a, b.mT, a_scale, b_scale, offsets, out_dtype=torch.bfloat16, use_fast_accum=True
        )
    if case.what == "blocks":
        scales = a_scale, b_scale.mT
    else:
        scales = (a_scale[:, None], b_scale[None]) if case.what == "rows" else (a_scale, b_scale)
    return torch._scaled_mm(a, b.mT, *scales, out_dtype=torch.bfloat16)


def takes(case: Case, inputs: dict[str, Any]) -> bool:
    """Whether torch takes a product: of scales of blocks, cuBLAS refuses those whose rows are not a multiple of 4."""
    try:
        torch_run(case, **inputs)
    except RuntimeError as error:
        if "NOT_SUPPORTED" not in str(error):
            raise
        return False
    return True


def measure(bundle: Any, case: Case, way: str) -> dict[str, Any]:
    """Medians of one product in microseconds, and the variant that ran."""
    import torch

    from aot.gpu.bench import cache_bytes, copies_beyond

    sets = min(copies_beyond(cache_bytes("cuda"), case.bytes), MAX_SETS) if way == "graph" else 1
    inputs = [make_inputs(case) for _ in range(sets)]
    out = torch.empty(sets, case.rows, case.n, device="cuda", dtype=torch.bfloat16)
    kernel = "grouped_gemm" if case.grouped else "gemm_fp8"
    runs: dict[str, Callable[[int], Any]] = {"aot": lambda i: bundle[kernel](**inputs[i], out=out[i])}
    if takes(case, inputs[0]):
        runs["torch"] = lambda i: torch_run(case, **inputs[i])
    if case.what == PLAIN and case.row[-1] == "even":
        runs["plain"] = lambda i: torch.mm(inputs[i]["a"], inputs[i]["b"][0].T, out=out[i])
    chosen = bundle.explain(kernel, this_device(), **inputs[0], out=out[0]).chosen
    return {**medians(runs, way, sets, case.calls, ROUNDS), "variant": chosen.variant if chosen is not None else ""}


def summary(cases: list[Case], runs: list[list[dict[str, Any]]], contender: str) -> dict[str, Any]:
    """What the runs say, of ratios of a contender's time to ours."""
    measured = [i for i in range(len(cases)) if all(contender in rows[i] for rows in runs)]
    ratios = [[rows[i][contender] / rows[i]["aot"] for i in measured] for rows in runs]
    pairs = zip(measured, *ratios, strict=True)
    behind = [[*cases[i].row, *(round(ratio, 3) for ratio in own)] for i, *own in pairs if max(own) < BEHIND]
    return {
        "products": len(measured),
        "geometric_mean": [round(statistics.geometric_mean(run), 4) if run else None for run in ratios],
        "below": [sum(ratio < BEHIND for ratio in run) for run in ratios],
        "worst": [round(min(run), 3) if run else None for run in ratios],
        "behind_in_both": behind,
    }


def read_cases(name: str, what: str, every: int) -> list[Case]:
    """The products of a file. Blocks need a whole number of them along k, and torch a multiple of 16 along n."""
    data = json.loads((PROJECT / "benchmarks" / "shapes" / f"{name}.json").read_text())
    cases = [Case(row, what) for row in data["problems"]]
    fit = [case for case in cases if case.n % 16 == 0 and case.k % (16 if what != "blocks" else 128) == 0]
    return fit[::every]


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("bundle", type=Path)
    arguments.add_argument("what", choices=("rows", "tensor", "blocks", "grouped", "grouped-fp8"))
    arguments.add_argument("--set", help="file of benchmarks/shapes (default: the one to report)")
    arguments.add_argument("--every", type=int, default=1, help="measure one of EVERY products")
    arguments.add_argument("--way", default="graph", choices=WAYS, help="how calls are timed (default: graph)")
    given = arguments.parse_args()
    import aot_runtime

    name = given.set or ("grouped_report" if given.what.startswith("grouped") else "gemm_report")
    cases, bundle = read_cases(name, given.what, given.every), aot_runtime.load(given.bundle)
    runs, clocks = [], []
    for _ in range(RUNS):
        rows = []
        for index, case in enumerate(cases):
            rows.append(measure(bundle, case, given.way))
            if index % EVERY == 0:
                clocks.append(read_clocks())
        runs.append(rows)
    contenders = ("torch", "plain") if given.what == PLAIN else ("torch",)
    found = {name: summary(cases, runs, name) for name in contenders}
    results = {
        "set": name,
        "every": given.every,
        "what": given.what,
        "way": given.way,
        "summary": found,
        "clocks": clocks,
        "columns": ["problem", "variant", *(f"{who}_us" for who in ("aot", *contenders))],
        "problems": [
            [
                case.row,
                runs[0][i]["variant"],
                *([round(rows[i][who], 2) for rows in runs if who in rows[i]] for who in ("aot", *contenders)),
            ]
            for i, case in enumerate(cases)
        ],
    }
    print(json.dumps(found, indent=1))
    report("scaled_shapes", results, given.out)


if __name__ == "__main__":
    main()
