"""How fast `mla_decode` is, beside a plain read of the same cache, FlashMLA and torch's products. A seed draws more problems.

Needs a GPU, torch, a bundle of the shipped kernels with the family `attention`, and one of `benchmarks/kernels/read.py`.
FlashMLA takes part if the package `sgl-flash-mla` is installed. All contenders run in one process, in random order in each
round, and each call of a measurement has a cache of its own. FlashMLA plans in a kernel of its own, which engines run once
for all layers: its times are with that kernel (`planned`) and without it (`flash_mla`). torch has two products and a softmax,
over a contiguous cache. TFLOP/s count both products, TB/s the cache that a call must read.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _common import parser, print_rows, report
from attention_decode import F8, READ, READ_UNIT, calls_of

ROUNDS = 5
KEY, VALUE = 576, 512
PACKED, PACKED_BYTES = "packed", 656  # the dtype of a cache, and what a token has there
SCALE = 192**-0.5
CONTENDERS = ("aot", "read", "flash_mla", "planned", "torch")
DRAWN = 20
MOST = 3_000_000  # tokens of a drawn problem


@dataclass(frozen=True)
class Problem:
    batch: int
    heads: int
    length: int
    dtype: str = "bfloat16"  # of the cache
    page: int = 64
    shortest: int = 0  # sequence, if lengths differ: they are drawn between this and ``length``

    @property
    def name(self) -> str:
        lengths = f"S{self.shortest}-{self.length}" if self.shortest else f"S{self.length}"
        return f"B{self.batch} H{self.heads} {lengths} {self.dtype}, pages of {self.page}"

    @property
    def lengths(self) -> list[int]:
        draw = random.Random(self.batch).randint
        return [draw(self.shortest, self.length) if self.shortest else self.length for _ in range(self.batch)]

    @property
    def operations(self) -> int:
        return 2 * self.heads * sum(self.lengths) * (KEY + VALUE)

    @property
    def bytes(self) -> int:
        """Of the cache that a call reads."""
        return sum(self.lengths) * {F8: KEY, PACKED: PACKED_BYTES}.get(self.dtype, 2 * KEY)

    @property
    def pages_each(self) -> int:
        return -(-self.length // self.page)


PROBLEMS = (
    # The rows that torch was measured on first.
    Problem(128, 128, 4096),
    Problem(32, 128, 4096),
    Problem(128, 16, 8192),
    # Beside FlashMLA, whose pages have 64 tokens.
    Problem(1, 128, 4096),
    Problem(8, 128, 8192),
    Problem(64, 128, 2500),
    Problem(132, 128, 6000),
    Problem(32, 64, 10_000),
    Problem(128, 128, 8000, shortest=500),
    Problem(16, 128, 8000, shortest=500),
    # Further ones.
    Problem(128, 128, 4096, page=16),
    Problem(128, 64, 4096),
    Problem(1, 128, 65_536),
    Problem(16, 16, 32_768),
    Problem(128, 128, 4096, dtype=F8),
    Problem(128, 16, 8192, dtype=F8),
    Problem(32, 64, 10_000, dtype=F8),
    Problem(128, 128, 4096, dtype=PACKED),
    Problem(128, 16, 8192, dtype=PACKED),
)


def drawn(seed: int) -> Iterator[Problem]:
    """Problems that a seed draws. Lengths of every other one differ."""
    draw = random.Random(seed)
    for index in range(DRAWN):
        batch, heads = int(2 ** draw.uniform(0, 8)), draw.choice((16, 32, 64, 128))
        longest = min(int(200 * 200 ** draw.random()), MOST // batch)
        yield Problem(batch, heads, longest, shortest=longest // 8 if index % 2 else 0)


def cache_of(problem: Problem, count: int) -> Any:
    """Tokens in so many pages. The scales of packed ones are one."""
    import torch

    tokens = torch.randn(count, problem.page, KEY, device="cuda", dtype=torch.bfloat16)
    if problem.dtype != PACKED:
        return tokens.to(getattr(torch, problem.dtype))
    scales = torch.ones(count, problem.page, 4, device="cuda")
    parts = tokens[..., :VALUE].to(torch.float8_e4m3fn), scales, tokens[..., VALUE:].contiguous()
    return torch.cat([part.view(torch.uint8) for part in parts], -1)


def inputs_of(problem: Problem, tokens: int = 1) -> dict[str, Any]:
    import torch

    count = problem.batch * problem.pages_each
    cache = cache_of(problem, count)
    order = torch.randperm(count, device="cuda", dtype=torch.int32)
    call = {
        "q": torch.randn(problem.batch, tokens, problem.heads, KEY, device="cuda", dtype=torch.bfloat16),
        "cache": cache,
        "lengths": torch.tensor(problem.lengths, device="cuda", dtype=torch.int32),
        "out": torch.empty(problem.batch, tokens, problem.heads, VALUE, device="cuda", dtype=torch.bfloat16),
        "scale": SCALE,
        "pages": order.view(problem.batch, -1),
    }
    return call | ({"cache_scale": torch.ones(1, device="cuda")} if problem.dtype == F8 else {})


def by_torch(problem: Problem, calls: list[dict[str, Any]]) -> Any:
    """The products over contiguous caches of the same size."""
    import torch

    def run(i: int) -> Any:
        q, keys = calls[i]["q"][:, 0], calls[i]["cache"].view(problem.batch, -1, KEY)
        weights = torch.softmax((q @ keys.transpose(1, 2)).float() * SCALE, -1).to(q.dtype)
        return weights @ keys[:, :, :VALUE]

    return run


def by_flash_mla(calls: list[dict[str, Any]]) -> dict[str, Any]:
    """FlashMLA with a plan that all calls share, and with one for each call; nothing if it is not installed."""
    try:
        from flash_mla import flash_mla_with_kvcache, get_mla_metadata
    except ImportError:
        return {}

    def run(i: int, plan: Any = None) -> Any:
        call = calls[i]
        return flash_mla_with_kvcache(
            call["q"],
            call["cache"].unsqueeze(2),
            call["pages"],
            call["lengths"],
            VALUE,
            get_mla_metadata()[0] if plan is None else plan,
            softmax_scale=SCALE,
            causal=call["q"].shape[1] > 1,
            use_legacy=True,
        )

    shared = get_mla_metadata()[0]
    run(0, shared)  # makes the plan
    return {"flash_mla": lambda i: run(i, shared), "planned": run}


def measure(problem: Problem, decode: Any, read: Any, is_drawn: bool) -> dict[str, float]:
    """Microseconds by contender. Drawn problems have FlashMLA alone beside ours."""
    import torch

    from aot.gpu.bench import graph_timer, shuffled_medians

    calls = [inputs_of(problem) for _ in range(calls_of(problem.bytes))]
    words = problem.bytes // 4 // READ_UNIT * READ_UNIT
    flat = [call["cache"].view(torch.uint8).view(-1).view(torch.int32)[:words] for call in calls]
    found = torch.empty(READ, dtype=torch.int32, device="cuda")
    runs = {"aot": lambda i: decode(**calls[i])}
    if not is_drawn:
        runs["read"] = lambda i: read(flat[i], found)
    if problem.dtype not in (F8, PACKED) and not problem.shortest and not is_drawn:
        runs["torch"] = by_torch(problem, calls)
    if problem.dtype not in (F8, PACKED) and problem.page == 64:
        runs |= by_flash_mla(calls)
    timers = {name: graph_timer(run, len(calls), len(calls)) for name, run in runs.items()}
    return shuffled_medians(timers, ROUNDS)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("bundle", type=Path)
    arguments.add_argument("read", type=Path, help="the bundle of `benchmarks/kernels/read.py`")
    arguments.add_argument("--seed", type=int, default=1839, help="of the drawn problems: a new one for each report")
    given = arguments.parse_args()

    import aot_runtime

    decode, read = aot_runtime.load(given.bundle)["mla_decode"], aot_runtime.load(given.read)["read"]
    found: dict[str, dict[str, Any]] = {"shapes": {}, "drawn": {}}
    for key, problems in (("shapes", PROBLEMS), ("drawn", tuple(drawn(given.seed)))):
        rows = []
        for problem in problems:
            times = measure(problem, decode, read, key == "drawn")
            ours = found[key][problem.name] = {
                "microseconds": {name: round(time, 1) for name, time in times.items()},
                "TFLOP/s": round(problem.operations / times["aot"] / 1e6, 1),
                "TB/s": round(problem.bytes / times["aot"] / 1e6, 2),
            }
            cells = (f"{times[name]:.1f}" if name in times else "-" for name in CONTENDERS)
            rows.append((problem.name, *cells, ours["TFLOP/s"], f"{ours['TB/s']:.2f}"))
        print_rows(("microseconds", *CONTENDERS, "TFLOP/s", "TB/s"), rows)
    report("mla_decode", {"unit": "microseconds", "seed": given.seed, **found}, given.out)


if __name__ == "__main__":
    main()
