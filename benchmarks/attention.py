"""The speed of `attention` beside cuDNN's, on the problems of `shapes/attention.json`.

Needs a GPU, torch with cuDNN, and a bundle of the shipped kernels with the family `attention`. With `--flash-attention`,
FlashAttention-4 runs too, if it is installed. All contenders run in one process, in random order in each round. TFLOP/s
count the two products over what queries see. torch's call of cuDNN has no window, so problems with one have no such
contender. Chunks of prompts against caches in pages run beside FlashAttention-4, and beside our own code for the same keys
and values side by side.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _common import PROJECT, parser, print_rows, report

Runs = dict[str, Callable[[int], Any]]

ROUNDS = 7
OPERATIONS = 8e12  # of one measurement, about
ALL = -1


@dataclass(frozen=True)
class Problem:
    """``left``: how many earlier tokens a query sees."""

    batch: int
    heads: int
    kv_heads: int
    length: int
    dim: int
    value_dim: int
    causal: bool
    left: int

    @property
    def name(self) -> str:
        width = str(self.dim) if self.dim == self.value_dim else f"{self.dim}/{self.value_dim}"
        mask = "causal" if self.causal else "full"
        window = f", window {self.left + 1}" if self.left != ALL else ""
        return f"B{self.batch} H{self.heads}/{self.kv_heads} S{self.length} D{width} {mask}{window}"

    @property
    def operations(self) -> float:
        """What is seen is at and below the diagonal, without a triangle that is too early, or all."""
        early = max(0, self.length - 1 - self.left) if self.left != ALL else 0
        seen = self.length**2
        if self.causal:
            seen = (self.length * (self.length + 1) - early * (early + 1)) // 2
        return 2.0 * self.batch * self.heads * seen * (self.dim + self.value_dim)

    def contenders(self, attention: Any, flash: Any) -> Runs:
        return prompt_contenders(self, attention, flash.flash_attn_func if flash else None)


@dataclass(frozen=True)
class Chunks:
    """The last ``queries`` tokens of each sequence against all of them, which are in pages."""

    sequences: int
    queries: int
    tokens: int
    heads: int
    kv_heads: int
    dim: int
    page: int

    @property
    def name(self) -> str:
        size = f"B{self.sequences} H{self.heads}/{self.kv_heads} {self.queries} of S{self.tokens} D{self.dim}"
        return f"{size}, pages of {self.page}"

    @property
    def operations(self) -> float:
        seen = self.queries * self.tokens - self.queries * (self.queries - 1) // 2
        return 4.0 * self.sequences * self.heads * seen * self.dim

    def contenders(self, attention: Any, flash: Any) -> Runs:
        return chunk_contenders(self, attention, flash.flash_attn_varlen_func if flash else None)


def problems(which: str) -> list[Problem] | list[Chunks]:
    data = json.loads((PROJECT / "benchmarks" / "shapes" / "attention.json").read_text())
    return [Chunks(*row) for row in data[which]] if which == "chunks" else [Problem(*row) for row in data[which]]


def chunk_contenders(problem: Chunks, attention: Any, flash: Any) -> Runs:
    import torch

    def tensor(*shape: int) -> Any:
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16)

    count, length, width = problem.sequences, problem.tokens, (problem.kv_heads, problem.dim)
    q = tensor(count * problem.queries, problem.heads, problem.dim)
    out = torch.empty_like(q)
    each = -(-length // problem.page)
    k_cache, v_cache = (tensor(count * each, problem.page, *width) for _ in range(2))
    table = torch.randperm(count * each, device="cuda").to(torch.int32).view(count, each)
    lengths = torch.full((count,), length, dtype=torch.int32, device="cuda")
    q_starts, k_starts = (
        torch.arange(count + 1, device="cuda", dtype=torch.int32) * n for n in (problem.queries, length)
    )
    k, v = (x[table.long()].flatten(1, 2)[:, :length].flatten(0, 1) for x in (k_cache, v_cache))
    call = {"scale": problem.dim**-0.5, "right": 0, "q_starts": q_starts}
    runs: Runs = {
        "aot": lambda _: attention(q, k_cache, v_cache, out, **call, pages=table, lengths=lengths),
        "aot_side_by_side": lambda _: attention(q, k, v, out, **call, k_starts=k_starts),
    }
    if flash is not None:
        runs["flash_attention_4"] = lambda _: flash(
            q, k_cache, v_cache, cu_seqlens_q=q_starts, max_seqlen_q=problem.queries, max_seqlen_k=length,
            seqused_k=lengths, page_table=table, softmax_scale=call["scale"], causal=True,
        )  # fmt: skip
    return runs


def prompt_contenders(problem: Problem, attention: Any, flash: Any) -> Runs:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def tokens(heads: int, dim: int) -> Any:
        shape = (problem.batch, problem.length, heads, dim)
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16)

    q, k = tokens(problem.heads, problem.dim), tokens(problem.kv_heads, problem.dim)
    v, out = tokens(problem.kv_heads, problem.value_dim), tokens(problem.heads, problem.value_dim)
    scale, right = problem.dim**-0.5, 0 if problem.causal else ALL
    by_head = [x.transpose(1, 2) for x in (q, k, v)]

    def cudnn(_: int) -> Any:
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            return torch.nn.functional.scaled_dot_product_attention(
                *by_head, is_causal=problem.causal, scale=scale, enable_gqa=True
            )

    def flash_attention(_: int) -> Any:
        window = (problem.left, 0) if problem.left != ALL else (None, None)
        return flash(q, k, v, softmax_scale=scale, causal=problem.causal and problem.left == ALL, window_size=window)

    runs: Runs = {"aot": lambda _: attention(q, k, v, out, scale, left=problem.left, right=right)}
    if problem.left == ALL:
        runs["cudnn"] = cudnn
    if flash is not None:
        runs["flash_attention_4"] = flash_attention
    return runs


def measure(problem: Problem | Chunks, attention: Any, flash: Any) -> dict[str, float]:
    """TFLOP/s by contender."""
    from aot.gpu.bench import graph_timer, shuffled_medians

    calls = min(50, max(2, round(OPERATIONS / problem.operations)))
    timers = {}
    for name, run in problem.contenders(attention, flash).items():
        try:
            timers[name] = graph_timer(run, 1, calls)
        except Exception as error:  # some problems are refused, and the table then shows them as missing
            print(f"{problem.name}: {name} does not take it: {error}", file=sys.stderr)
    return {name: problem.operations / time / 1e6 for name, time in shuffled_medians(timers, ROUNDS).items()}


def mean_ratio(rows: list[dict[str, float]], name: str) -> float | None:
    """The geometric mean of our speed over that of a contender."""
    ratios = [row["aot"] / row[name] for row in rows if "aot" in row and name in row]
    return math.prod(ratios) ** (1 / len(ratios)) if ratios else None


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("bundle", type=Path)
    arguments.add_argument("--flash-attention", action="store_true", help="measure FlashAttention-4 too")
    given = arguments.parse_args()

    import aot_runtime

    flash = None
    if given.flash_attention:
        from flash_attn.cute import interface as flash
    attention = aot_runtime.load(given.bundle)["attention"]
    results = {}
    for which in ("table", "further", "chunks"):
        names = ("aot", "aot_side_by_side" if which == "chunks" else "cudnn", "flash_attention_4")
        speeds = {problem.name: measure(problem, attention, flash) for problem in problems(which)}
        results[which] = {name: {k: round(x, 1) for k, x in row.items()} for name, row in speeds.items()}
        rows = [
            (name, *(f"{row[one]:.0f}" if one in row else "-" for one in names),
             *(f"{row['aot'] / row[one]:.3f}" if "aot" in row and one in row else "-" for one in names[1:]))
            for name, row in speeds.items()
        ]  # fmt: skip
        means = [mean_ratio(list(speeds.values()), one) for one in names[1:]]
        rows.append(("geometric mean", "", "", "", *("-" if x is None else f"{x:.3f}" for x in means)))
        print_rows((f"TFLOP/s, {which}", *names, *(f"of {one}" for one in names[1:])), rows)
    report("attention", results, given.out)


if __name__ == "__main__":
    main()
