"""The shipped GEMM against cuBLAS, on products of real models. The tables know times of some of them: see ``drawn_products.py``.

Needs a GPU, torch, and a bundle of the shipped kernels. Inputs are normally distributed random numbers, row-major. Each
product is measured in several rounds, ours and torch's in random order in each of them, and medians are compared. All
products are measured that way in two runs, one after the other. A product counts as behind if its ratio is below 0.95 in
both.

    python benchmarks/gemm_shapes.py dist/kernels                  # `gemm` in bf16
    python benchmarks/gemm_shapes.py dist/kernels --way python     # called from Python: `_timers.py` has the three ways
    python benchmarks/gemm_shapes.py dist/kernels --dtype tf32     # `gemm_f32`, of a bundle with the family `f32`
    python benchmarks/gemm_shapes.py dist/kernels --dtype f32 --most 2.5e11   # exact ones, which take cuBLAS long
"""

from __future__ import annotations

import gc
import json
import statistics
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from _common import PROJECT, parser, report
from _timers import WAYS, medians

ROUNDS, RUNS = 5, 2
BEHIND = 0.95
SHORT = 300.0  # microseconds; a measurement takes about as long, or two calls
CLOCKS = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")
EVERY = 100  # products between two looks at the clocks
PRECISIONS = {"f32": "exact", "tf32": "tf32"}  # of `gemm_f32`; `gemm` takes the other dtypes


class Problem(NamedTuple):
    model: str
    layer: str
    m: int
    n: int
    k: int

    @property
    def operations(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        return 2 * (self.m * self.k + self.n * self.k + self.m * self.n)

    @property
    def calls(self) -> int:
        """Calls in one measurement, from about what a fast GPU needs for one."""
        microseconds = max(self.operations / 600e6, self.bytes / 3e6, 2.0)
        return max(2, min(16, int(SHORT / microseconds)))


def read_problems(name: str) -> list[Problem]:
    data = json.loads((PROJECT / "benchmarks" / "shapes" / f"{name}.json").read_text())
    return [Problem(*row) for row in data["problems"]]


def this_device() -> Any:
    """The GPU, with its name: the table that was measured on it decides."""
    import torch
    from aot_runtime import Device

    found = torch.cuda.get_device_properties("cuda")
    return Device((found.major, found.minor), found.name, found.multi_processor_count)


def measure(bundle: Any, problem: Problem, dtype: str, way: str) -> dict[str, Any]:
    """Medians of one product in microseconds, and the variant that ran."""
    import torch

    from aot.gpu.bench import cache_bytes, copies_beyond
    from aot.gpu.inputs import torch_dtype

    m, n, k = problem.m, problem.n, problem.k
    kernel = "gemm_f32" if dtype in PRECISIONS else "gemm"
    chosen_by = {"precision": PRECISIONS[dtype]} if dtype in PRECISIONS else {}
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    sets = min(copies_beyond(cache_bytes("cuda"), problem.bytes), 16) if way == "graph" else 1
    own = {"device": "cuda", "dtype": torch_dtype("f32" if dtype in PRECISIONS else dtype)}
    a, b = torch.randn(sets, m, k, **own), torch.randn(sets, n, k, **own)
    out = torch.empty(sets, m, n, **own)
    inputs = [(a[i], b[i], b[i].T, out[i]) for i in range(sets)]
    function = bundle[kernel]

    def ours(i: int) -> None:
        a, b, _, out = inputs[i]
        function(a, b, out, **chosen_by)

    def cublas(i: int) -> None:
        a, _, b, out = inputs[i]
        torch.mm(a, b, out=out)

    found = medians({"aot": ours, "cublas": cublas}, way, sets, problem.calls, ROUNDS)
    chosen = bundle.explain(kernel, this_device(), a[0], b[0], out[0], **chosen_by).chosen
    return {**found, "variant": chosen.variant if chosen is not None else ""}


def read_clocks() -> dict[str, str]:
    command = ["nvidia-smi", f"--query-gpu={','.join(CLOCKS)}", "--format=csv,noheader,nounits", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return {"unknown": str(error)}
    return dict(zip(CLOCKS, (word.strip() for word in done.stdout.split(",")), strict=True))


def summary(ratios: dict[Problem, list[float]]) -> dict[str, Any]:
    """What the runs say, of ratios of cuBLAS' time to ours."""
    runs = list(zip(*ratios.values(), strict=True))
    behind = [problem for problem, own in ratios.items() if max(own) < BEHIND]
    return {
        "products": len(ratios),
        "geometric_mean": [round(statistics.geometric_mean(run), 4) for run in runs],
        "below": [sum(ratio < BEHIND for ratio in run) for run in runs],
        "worst": [round(min(run), 3) for run in runs],
        "behind_in_both": [[*problem, *(round(ratio, 3) for ratio in ratios[problem])] for problem in behind],
    }


def run(
    bundle: Any, problems: list[Problem], dtype: str, way: str
) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    rows, clocks = [], [read_clocks()]
    for index, problem in enumerate(problems):
        rows.append(measure(bundle, problem, dtype, way))
        if index % EVERY == EVERY - 1:
            clocks.append(read_clocks())
    return rows, clocks


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("bundle", type=Path)
    arguments.add_argument("--set", default="gemm_report", help="file of benchmarks/shapes (default: gemm_report)")
    arguments.add_argument("--dtype", default="bf16", choices=("bf16", "f16", *PRECISIONS))
    arguments.add_argument("--way", default="graph", choices=WAYS, help="how calls are timed (default: graph)")
    arguments.add_argument("--most", type=float, default=float("inf"), help="operations of a product (default: any)")
    given = arguments.parse_args()
    import aot_runtime

    problems = [problem for problem in read_problems(given.set) if problem.operations < given.most]
    bundle = aot_runtime.load(given.bundle)
    gc.freeze()  # torch collects garbage before each graph: it need not look at what is here already
    runs = [run(bundle, problems, given.dtype, given.way) for _ in range(RUNS)]
    ratios = {problem: [rows[i]["cublas"] / rows[i]["aot"] for rows, _ in runs] for i, problem in enumerate(problems)}
    found = summary(ratios)
    results = {
        "set": given.set,
        "dtype": given.dtype,
        "way": given.way,
        "summary": found,
        "clocks": [clocks for _, clocks in runs],
        "columns": ["model", "layer", "m", "n", "k", "variant", "aot_us", "cublas_us"],
        "problems": [
            [
                *problem,
                runs[0][0][i]["variant"],
                *([round(rows[i][who], 2) for rows, _ in runs] for who in ("aot", "cublas")),
            ]
            for i, problem in enumerate(problems)
        ],
    }
    print(json.dumps(found, indent=1))
    report("gemm_shapes", results, given.out)


if __name__ == "__main__":
    main()
