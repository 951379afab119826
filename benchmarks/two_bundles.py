"""Two bundles beside each other on the sets that are reported: whether rewritten code is as fast as what it replaced.

Calls of both alternate in CUDA graphs, in one process, on inputs that exceed the L2 cache. If the second bundle is more
than 2% slower, the call is measured once more, and the better of the two ratios counts. Calls that one of the bundles has
no variant for are named and not measured. ``--every`` thins out the products; ``--seconds`` limits the run, and each kind
of call gets an equal part of what is left: those that take longest go last.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attention
import attention_decode
import gemm_shapes
import mla_decode
import scaled_shapes
from _common import parser, print_rows, report

ROUNDS = 5
SLOWER = 0.98
OPERATIONS = 4e12  # of one measurement of attention, about
MOST_SETS = 8
MOST_CALLS = 20  # of a decoding, each with a cache of its own
EXACT = 2.5e11  # operations of the largest exact product

# What one call is: its name, how a bundle runs it with each set of inputs, how many sets there are, and calls in a graph.
Call = tuple[str, Callable[[Any], Callable[[int], Any]], int, int]


def products(dtype: str, every: int) -> Iterator[Call]:
    import torch

    from aot.gpu.bench import cache_bytes, copies_beyond
    from aot.gpu.inputs import torch_dtype

    precision = gemm_shapes.PRECISIONS.get(dtype)
    kernel, chosen = ("gemm", {}) if precision is None else ("gemm_f32", {"precision": precision})
    own = {"device": "cuda", "dtype": torch_dtype("f32" if precision else dtype)}
    for one in gemm_shapes.read_problems("gemm_report")[::every]:
        if precision == "exact" and one.operations > EXACT:
            continue
        sets = min(copies_beyond(cache_bytes("cuda"), one.bytes), MOST_SETS)
        a, b = torch.randn(sets, one.m, one.k, **own), torch.randn(sets, one.n, one.k, **own)
        out = torch.empty(sets, one.m, one.n, **own)

        def runs(bundle: Any, a: Any = a, b: Any = b, out: Any = out) -> Callable[[int], Any]:
            return lambda i: bundle[kernel](a[i], b[i], out[i], **chosen)

        yield f"{one.m} x {one.n} x {one.k}", runs, sets, one.calls


def scaled(what: str, every: int) -> Iterator[Call]:
    import torch

    from aot.gpu.bench import cache_bytes, copies_beyond

    for case in scaled_shapes.read_cases(
        "grouped_report" if what.startswith("grouped") else "gemm_report", what, every
    ):
        sets = min(copies_beyond(cache_bytes("cuda"), case.bytes), MOST_SETS)
        inputs = [scaled_shapes.make_inputs(case) for _ in range(sets)]
        out = torch.empty(sets, case.rows, case.n, device="cuda", dtype=torch.bfloat16)
        kernel = "grouped_gemm" if case.grouped else "gemm_fp8"

        def runs(bundle: Any, kernel: str = kernel, inputs: Any = inputs, out: Any = out) -> Callable[[int], Any]:
            return lambda i: bundle[kernel](**inputs[i], out=out[i])

        yield " ".join(map(str, case.row)), runs, sets, case.calls


def prompts() -> Iterator[Call]:
    for which in ("table", "further", "chunks"):
        for one in attention.problems(which):
            calls = min(50, max(2, round(OPERATIONS / one.operations)))
            yield one.name, lambda bundle, one=one: one.contenders(bundle["attention"], None)["aot"], 1, calls


def decoding() -> Iterator[Call]:
    import torch

    for one in attention_decode.PROBLEMS:
        made = [attention_decode.inputs_of(one) for _ in range(min(MOST_CALLS, attention_decode.calls_of(one.bytes)))]
        out = torch.empty_like(made[0]["call"]["q"])

        def runs(bundle: Any, made: Any = made, out: Any = out) -> Callable[[int], Any]:
            return lambda i: bundle["attention_decode"](out=out, **made[i]["call"])

        yield one.name, runs, len(made), len(made)


def latent() -> Iterator[Call]:
    for one in mla_decode.PROBLEMS:
        made = [mla_decode.inputs_of(one) for _ in range(min(MOST_CALLS, attention_decode.calls_of(one.bytes)))]
        yield one.name, lambda bundle, made=made: lambda i: bundle["mla_decode"](**made[i]), len(made), len(made)


def ratio(before: Any, after: Any, call: Call) -> float:
    """The speed of the second bundle relative to the first."""
    from aot.gpu.bench import graph_timer, shuffled_medians

    _, runs, sets, calls = call
    timers = {"before": graph_timer(runs(before), sets, calls), "after": graph_timer(runs(after), sets, calls)}
    found = 0.0
    for rounds in (ROUNDS, 2 * ROUNDS):
        if found < SLOWER:
            times = shuffled_medians(timers, rounds)
            found = max(found, times["before"] / times["after"])
    return found


def ratios_of(before: Any, after: Any, calls: Iterator[Call], until: float) -> tuple[dict[str, float], list[str]]:
    """The ratio of each call, and the calls that one of the bundles has no variant for. None begins after ``until``."""
    from aot_runtime import ArgumentError

    found: dict[str, float] = {}
    refused: list[str] = []
    for call in calls:
        if time.monotonic() > until:
            break
        try:
            found[call[0]] = ratio(before, after, call)
        except ArgumentError:
            refused.append(call[0])
    return found, refused


def summary(ratios: dict[str, float]) -> dict[str, Any]:
    slower = sorted((round(value, 3), name) for name, value in ratios.items() if value < SLOWER)
    mean = round(statistics.geometric_mean(ratios.values()), 4)
    return {"calls": len(ratios), "mean": mean, "worst": round(min(ratios.values()), 3), "slower": slower}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("before", type=Path, help="a bundle")
    arguments.add_argument("after", type=Path, help="a bundle of the same kernels")
    arguments.add_argument("--every", type=int, default=1, metavar="N", help="one of N products")
    arguments.add_argument("--seconds", type=float, default=float("inf"), help="measure nothing later than this")
    options = arguments.parse_args()
    import aot_runtime

    bundles = aot_runtime.load(options.before), aot_runtime.load(options.after)
    end, every = time.monotonic() + options.seconds, options.every
    kinds = {
        "gemm, bf16": lambda: products("bf16", every), "gemm, f16": lambda: products("f16", 4 * every),
        "gemm_fp8, one scale each": lambda: scaled("tensor", 2 * every), "gemm_fp8, blocks": lambda: scaled("blocks", 2 * every),
        "gemm_f32, TF32": lambda: products("tf32", 2 * every), "gemm_f32, exact": lambda: products("f32", 3 * every),
        "grouped_gemm, bf16": lambda: scaled("grouped", every), "grouped_gemm, f8e4m3": lambda: scaled("grouped-fp8", 2 * every),
        "attention_decode": decoding, "mla_decode": latent, "attention": prompts,
    }  # fmt: skip
    results = {}
    for done, (kind, calls) in enumerate(kinds.items()):
        now = time.monotonic()
        ratios, refused = ratios_of(*bundles, calls(), now + (end - now) / (len(kinds) - done))
        if ratios:
            results[kind] = {**summary(ratios), "refused": refused}
            print(kind, results[kind], flush=True)
        if options.out is not None:  # a run that is cut leaves what it had
            report("two_bundles", results, options.out, quiet=True)
    print_rows(
        ("", "calls", "mean", "worst"),
        [(name, row["calls"], row["mean"], row["worst"]) for name, row in results.items()],
    )


if __name__ == "__main__":
    main()
