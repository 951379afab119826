"""The speed of `attention_backward` beside FlashAttention-4's and cuDNN's, on listed problems and on some that a seed draws.

Needs a GPU, torch with cuDNN, and a bundle of the shipped kernels with the family `attention`. With `--flash-attention`,
FlashAttention-4 runs too, if it is installed; with `--flash-kernels`, its kernels run from a bundle that was captured as
`_flash_backward.py` says. All contenders run in one process, in random order in each round. They are
called as training calls them: functions of a bundle directly, the others through autograd. A call before the clock starts
keeps the GPU busy while the host is ahead, so that the time of the host does not count.

TFLOP/s count the five products over what queries see. torch's call of cuDNN has no window and no sequences side by side.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _common import PROJECT, parser, print_rows, report
from _flash_backward import FlashBackward

Runs = dict[str, Callable[[], Any]]

ROUNDS = 5
OPERATIONS = 4e12  # of one measurement, about
ALL = -1
NAMES = ("aot", "aot_deterministic", "flash_attention_4", "cudnn")
DRAWN_TOKENS = 16384  # of a drawn problem, about
DRAWN_DIMS = ((64, 64), (96, 96), (128, 128), (128, 128), (192, 128), (128, 128))


@dataclass(frozen=True)
class Problem:
    """Queries are as many as keys. ``left``: how many earlier tokens a query sees. ``ragged``: sequences lie side by side."""

    lengths: tuple[int, ...]
    heads: int
    kv_heads: int
    dim: int
    value_dim: int
    causal: bool
    left: int = ALL
    ragged: bool = False

    @property
    def name(self) -> str:
        width = str(self.dim) if self.dim == self.value_dim else f"{self.dim}/{self.value_dim}"
        mask = "causal" if self.causal else "full"
        window = f", window {self.left + 1}" if self.left != ALL else ""
        length = f"{min(self.lengths)} to {max(self.lengths)}" if self.ragged else str(self.lengths[0])
        return f"B{len(self.lengths)} H{self.heads}/{self.kv_heads} S{length} D{width} {mask}{window}"

    @property
    def operations(self) -> float:
        return sum(map(self._seen, self.lengths)) * self.heads * (6.0 * self.dim + 4.0 * self.value_dim)

    def _seen(self, length: int) -> int:
        """What is seen is at and below the diagonal, without a triangle that is too early, or all."""
        early = max(0, length - 1 - self.left) if self.left != ALL else 0
        return (length * (length + 1) - early * (early + 1)) // 2 if self.causal else length**2


@dataclass(frozen=True)
class Pass:
    """Tensors of a backward pass. The gradients are ours."""

    problem: Problem
    inputs: tuple[Any, ...]
    grad_out: Any
    starts: Any
    out: Any
    lse: Any
    gradients: tuple[Any, ...]


def listed(which: str) -> list[Problem]:
    data = json.loads((PROJECT / "benchmarks" / "shapes" / "attention.json").read_text())
    return [Problem((length,) * batch, heads, kv_heads, *rest) for batch, heads, kv_heads, length, *rest in data[which]]


def draw(seed: int, count: int) -> list[Problem]:
    """Problems of odd lengths, in turn of each width; some are ragged, some have a window, most are causal."""
    chance = random.Random(seed)
    return [_one(chance, *DRAWN_DIMS[i % len(DRAWN_DIMS)], ragged=i % 4 == 3) for i in range(count)]


def _one(chance: random.Random, dim: int, value_dim: int, ragged: bool) -> Problem:
    heads = chance.choice((8, 16, 24, 32))
    kv_heads = heads if dim == 192 else heads // chance.choice((1, 1, 4, 8))
    usual = round(700 * 12 ** chance.random())
    count = max(1, round(DRAWN_TOKENS / usual))
    lengths = tuple(round(usual * chance.uniform(0.2, 1.8)) for _ in range(count)) if ragged else (usual,) * count
    causal = chance.random() < 0.7
    left = usual // 3 if causal and dim == 128 and chance.random() < 0.4 else ALL
    return Problem(lengths, heads, kv_heads, dim, value_dim, causal, left, ragged)


def problems_of(seed: int) -> dict[str, list[Problem]]:
    return {"table": listed("backward"), "wide": listed("backward_wide"), "drawn": draw(seed, 12)}


def contenders(problem: Problem, bundle: Any, flash: Any) -> Runs:
    """What runs the backward pass alone, by contender."""
    import torch

    def tokens(heads: int, dim: int) -> Any:
        leading = (sum(problem.lengths),) if problem.ragged else (len(problem.lengths), problem.lengths[0])
        return torch.randn(*leading, heads, dim, device="cuda", dtype=torch.bfloat16)

    q, k = tokens(problem.heads, problem.dim), tokens(problem.kv_heads, problem.dim)
    v, grad_out = tokens(problem.kv_heads, problem.value_dim), tokens(problem.heads, problem.value_dim)
    starts = torch.tensor((0, *problem.lengths), device="cuda").cumsum(0).to(torch.int32) if problem.ragged else None
    given = forward_pass(problem, bundle, (q, k, v), grad_out, starts)
    runs: Runs = {
        "aot": lambda: our_run(given, bundle, deterministic=False),
        "aot_deterministic": lambda: our_run(given, bundle, deterministic=True),
    }
    if not problem.ragged and problem.left == ALL:
        runs["cudnn"] = lambda: cudnn_run(problem, (q, k, v), grad_out)
    if isinstance(flash, FlashBackward):
        runs["flash_attention_4"] = lambda: flash.prepare(given)
    elif flash is not None:
        runs["flash_attention_4"] = lambda: flash_run(problem, flash, (q, k, v), grad_out, starts)
    return runs


def options_of(given: Pass) -> dict[str, Any]:
    problem = given.problem
    masks = {"scale": problem.dim**-0.5, "left": problem.left, "right": 0 if problem.causal else ALL}
    return {**masks, "q_starts": given.starts, "k_starts": given.starts}


def forward_pass(problem: Problem, bundle: Any, inputs: tuple[Any, ...], grad_out: Any, starts: Any) -> Pass:
    import torch

    out = torch.empty_like(grad_out)
    lse = torch.empty(out.shape[:-1], device="cuda")
    given = Pass(problem, inputs, grad_out, starts, out, lse, tuple(map(torch.empty_like, inputs)))
    bundle["attention"](*inputs, out=out, lse=lse, **options_of(given))
    our_run(given, bundle, deterministic=False)()
    return given


def our_run(given: Pass, bundle: Any, deterministic: bool) -> Callable[[], Any]:
    import torch

    names = dict(zip("qkv", given.inputs, strict=True))
    gradients = {f"grad_{name}": x for name, x in zip("qkv", given.gradients, strict=True)}
    gradients["grad_sinks"] = torch.empty(given.problem.heads, device="cuda")
    options, backward = options_of(given), bundle["attention_backward"]
    return lambda: backward(
        grad_out=given.grad_out, **names, out=given.out, lse=given.lse, **gradients, **options,
        deterministic=deterministic,
    )  # fmt: skip


def through_autograd(out: Any, inputs: list[Any], grad_out: Any) -> Callable[[], Any]:
    import torch

    out = out[0] if isinstance(out, tuple) else out
    return lambda: torch.autograd.grad(out, inputs, grad_out, retain_graph=True)


def cudnn_run(problem: Problem, inputs: tuple[Any, ...], grad_out: Any) -> Callable[[], Any]:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    by_head = [x.detach().transpose(1, 2).requires_grad_() for x in inputs]
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
        out = torch.nn.functional.scaled_dot_product_attention(*by_head, is_causal=problem.causal, enable_gqa=True)
    return through_autograd(out, by_head, grad_out.transpose(1, 2))


def flash_run(problem: Problem, flash: Any, inputs: tuple[Any, ...], grad_out: Any, starts: Any) -> Callable[[], Any]:
    own = [x.detach().requires_grad_() for x in inputs]
    window = (problem.left, 0) if problem.left != ALL else (None, None)
    call = {"causal": problem.causal and problem.left == ALL, "window_size": window}
    if starts is None:
        return through_autograd(flash.flash_attn_func(*own, **call), own, grad_out)
    longest = max(problem.lengths)
    call |= {"cu_seqlens_q": starts, "cu_seqlens_k": starts, "max_seqlen_q": longest, "max_seqlen_k": longest}
    return through_autograd(flash.flash_attn_varlen_func(*own, **call), own, grad_out)


def timer(run: Callable[[], Any], calls: int) -> Callable[[], float]:
    """Microseconds of a call on the GPU."""
    import torch

    def timed() -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        run()
        start.record()
        for _ in range(calls):
            run()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) * 1e3 / calls

    return timed


def measure(problem: Problem, bundle: Any, flash: Any) -> dict[str, float]:
    """TFLOP/s by contender."""
    from aot.gpu.bench import shuffled_medians

    calls = min(20, max(2, round(OPERATIONS / problem.operations)))
    timers = {}
    for name, prepare in contenders(problem, bundle, flash).items():
        try:
            run = prepare()
            run()
            timers[name] = timer(run, calls)
        except Exception as error:  # some problems are refused, and the table then shows them as missing
            print(f"{problem.name}: {name} does not take it: {error}", file=sys.stderr)
    return {name: problem.operations / time / 1e6 for name, time in shuffled_medians(timers, ROUNDS).items()}


def mean_ratio(rows: list[dict[str, float]], names: tuple[str, ...]) -> str:
    """The geometric mean of our speed over that of the best of some contenders."""
    ratios = [row["aot"] / max(row[name] for name in names if name in row) for row in rows if set(names) & set(row)]
    return f"{math.prod(ratios) ** (1 / len(ratios)):.3f}" if ratios else "-"


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("bundle", type=Path)
    arguments.add_argument("--flash-attention", action="store_true", help="measure FlashAttention-4 too")
    arguments.add_argument("--flash-kernels", type=Path, help="measure FlashAttention-4's kernels of this bundle")
    arguments.add_argument("--seed", type=int, default=38, help="of the drawn problems")
    given = arguments.parse_args()

    import aot_runtime

    flash: Any = None
    if given.flash_attention:
        from flash_attn.cute import interface

        flash = interface
    sets = problems_of(given.seed)
    if given.flash_kernels:
        flash = FlashBackward(
            aot_runtime.load(given.flash_kernels), [p for problems in sets.values() for p in problems]
        )
    bundle = aot_runtime.load(given.bundle)
    results: dict[str, Any] = {}
    fixed: dict[str, Any] = {}
    for which, problems in sets.items():
        speeds = {problem.name: measure(problem, bundle, flash) for problem in problems}
        rounded = {name: {k: round(x, 1) for k, x in row.items()} for name, row in speeds.items()}
        fixed |= {name: {k: row[k] for k in NAMES[:2]} for name, row in rounded.items()}
        results[which] = {name: {k: row[k] for k in row if k != NAMES[1]} for name, row in rounded.items()}
        rows = [(name, *(f"{row[one]:.0f}" if one in row else "-" for one in NAMES)) for name, row in speeds.items()]
        found = list(speeds.values())
        rows.append(("ours by theirs", "", *(mean_ratio(found, (one,)) for one in NAMES[1:])))
        rows.append(("ours by the better of both", mean_ratio(found, NAMES[2:]), "", "", ""))
        print_rows((f"TFLOP/s, {which}", *NAMES), rows)
        sys.stdout.flush()
    report("attention_backward", {"seed": given.seed, "sets": results, "deterministic": fixed}, given.out)


if __name__ == "__main__":
    main()
