"""How fast `mla_decode_sparse` is, with tokens of bf16 and with packed ones, beside FlashMLA's kernels for chosen tokens.

Needs a GPU, torch, `sgl-flash-mla`, and a bundle of the shipped kernels with the family `attention`. All contenders run in one
process, in random order in each round, each call with queries and indices of its own. FlashMLA decodes packed tokens, with its
plan in each call (`planned`) and with one plan for all calls (`flash_mla`). Its kernel for prompts takes tokens of bf16
(`prompts`). Indices are drawn from a cache of 512 MB of packed tokens. TFLOP/s count both products.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _common import parser, print_rows, report
from mla_decode import KEY, SCALE, VALUE

ROUNDS = 5
CALLS = 20
PAGES, PAGE = 12_800, 64
PACKED = 656  # bytes
CONTENDERS = ("packed", "flash_mla", "planned", "bf16", "prompts")


@dataclass(frozen=True)
class Problem:
    queries: int
    heads: int
    chosen: int = 2048

    @property
    def name(self) -> str:
        return f"{self.queries} queries, H{self.heads}, {self.chosen} tokens"

    @property
    def operations(self) -> int:
        return 2 * self.queries * self.heads * self.chosen * (KEY + VALUE)


PROBLEMS = (
    Problem(1, 128),
    Problem(8, 128),
    Problem(64, 128),
    Problem(128, 128),
    Problem(128, 64),
    Problem(256, 128, 1024),
)


def caches() -> dict[str, Any]:
    """The same tokens in bf16 and packed, with scales of one."""
    import torch

    narrow = torch.randn(PAGES, PAGE, VALUE, device="cuda").to(torch.float8_e4m3fn)
    last = torch.randn(PAGES, PAGE, KEY - VALUE, device="cuda").to(torch.bfloat16)
    scales = torch.ones(PAGES, PAGE, 4, device="cuda")
    packed = torch.cat([part.view(torch.uint8) for part in (narrow, scales, last)], -1)
    return {"bf16": torch.cat((narrow.to(torch.bfloat16), last), -1), "packed": packed}


def inputs_of(problem: Problem) -> dict[str, Any]:
    import torch

    shape = problem.queries, problem.heads
    rows = [torch.randperm(PAGES * PAGE, device="cuda", dtype=torch.int32)[: problem.chosen] for _ in range(shape[0])]
    return {
        "q": torch.randn(*shape, KEY, device="cuda").to(torch.bfloat16),
        "indices": torch.stack(rows),
        "lengths": torch.full(shape[:1], problem.chosen, device="cuda", dtype=torch.int32),
        "out": torch.empty(*shape, VALUE, device="cuda", dtype=torch.bfloat16),
        "scale": SCALE,
    }


def by_flash_mla(calls: list[dict[str, Any]], cache: dict[str, Any]) -> dict[str, Any]:
    from flash_mla import flash_mla_sparse_fwd, flash_mla_with_kvcache, get_mla_metadata

    packed, flat = cache["packed"].unsqueeze(2), cache["bf16"].view(-1, 1, KEY)

    def run(i: int, plan: Any = None) -> Any:
        q, indices = calls[i]["q"].unsqueeze(1), calls[i]["indices"].unsqueeze(1)
        own = get_mla_metadata()[0] if plan is None else plan
        options = {"softmax_scale": SCALE, "is_fp8_kvcache": True, "indices": indices, "use_legacy": True}
        return flash_mla_with_kvcache(q, packed, None, None, VALUE, own, **options)

    def prompts(i: int) -> Any:
        return flash_mla_sparse_fwd(calls[i]["q"], flat, calls[i]["indices"].unsqueeze(1), SCALE, use_legacy=True)

    shared = get_mla_metadata()[0]
    run(0, shared)  # makes the plan
    return {"flash_mla": lambda i: run(i, shared), "planned": run, "prompts": prompts}


def measure(problem: Problem, cache: dict[str, Any], decode: Any) -> dict[str, float]:
    """Microseconds by contender."""
    from aot.gpu.bench import graph_timer, shuffled_medians

    calls = [inputs_of(problem) for _ in range(CALLS)]
    runs = {name: lambda i, name=name: decode(cache=cache[name], **calls[i]) for name in cache}
    runs |= by_flash_mla(calls, cache)
    return shuffled_medians({name: graph_timer(run, CALLS, CALLS) for name, run in runs.items()}, ROUNDS)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("bundle", type=Path)
    given = arguments.parse_args()

    import aot_runtime

    decode, cache = aot_runtime.load(given.bundle)["mla_decode_sparse"], caches()
    rows, results = [], {}
    for problem in PROBLEMS:
        times = measure(problem, cache, decode)
        speeds = {name: round(problem.operations / times[name] / 1e6) for name in ("packed", "bf16")}
        results[problem.name] = {
            "microseconds": {name: round(time, 1) for name, time in times.items()},
            "TFLOP/s": speeds,
        }
        rows.append((problem.name, *(f"{times[name]:.1f}" for name in CONTENDERS), *speeds.values()))
    print_rows(("microseconds", *CONTENDERS, "TFLOP/s packed", "bf16"), rows)
    report("mla_decode_sparse", {"unit": "microseconds", "shapes": results}, given.out)


if __name__ == "__main__":
    main()
