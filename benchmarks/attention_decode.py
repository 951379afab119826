"""How much of the memory's bandwidth `attention_decode` reaches, beside a plain read and torch's attention. A seed
draws more problems.

Needs a GPU, torch, a bundle of the shipped kernels with the family `attention`, and one of `benchmarks/kernels/read.py`.
All contenders run in one process, in random order in each round. Each call of a measurement has keys and values of its
own: see `calls_of`. TB/s count the keys and values that a call must read. Problems with pages, several tokens or f8e4m3 have
no contender in torch.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _common import parser, print_rows, report

ROUNDS = 5
F8 = "float8_e4m3fn"
MEMORY = 4 * 2**30  # bytes that one measurement reads, about
MAX_CALLS = 400
SLAB = 2**28  # elements that are drawn at once
DRAWN = 20
MOST = 8_000_000  # tokens of a drawn problem, of all heads
READ, READ_UNIT = 512, 512 * 8 * 4  # what the reading kernel writes, and divides its input by; elements
BACKENDS = {"cudnn": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION"}


@dataclass(frozen=True)
class Problem:
    """``page`` is the size of a page, or 0; ``shortest`` is a part of ``length``: lengths are spread evenly between."""

    batch: int
    heads: int
    kv_heads: int
    length: int
    dim: int = 128
    tokens: int = 1
    dtype: str = "bfloat16"  # of the cache
    page: int = 0
    shortest: float = 1.0

    @property
    def name(self) -> str:
        text = f"B{self.batch} H{self.heads}/{self.kv_heads} S{self.length} D{self.dim} {self.dtype}"
        text += f", {self.tokens} tokens" if self.tokens > 1 else ""
        text += f", pages of {self.page}" if self.page else ""
        return text + (f", from S{int(self.length * self.shortest)}" if self.shortest < 1 else "")

    @property
    def lengths(self) -> list[int]:
        step = (1 - self.shortest) / max(self.batch - 1, 1)
        return [int(self.length * (self.shortest + step * i)) for i in range(self.batch)]

    @property
    def bytes(self) -> int:
        """Keys and values that a call reads."""
        return 2 * sum(self.lengths) * self.kv_heads * self.dim * (1 if self.dtype == F8 else 2)

    @property
    def is_dense(self) -> bool:
        """Whether torch's attention takes it."""
        return not self.page and self.shortest == 1 and self.tokens == 1 and self.dtype != F8


PROBLEMS = (
    # The rows of the table in which torch's attention was measured first.
    Problem(64, 32, 8, 8192),
    Problem(8, 32, 8, 32_768),
    Problem(1, 32, 8, 65_536),
    Problem(128, 128, 1, 4096),
    # Further ones.
    Problem(64, 32, 8, 8192, page=64),
    Problem(64, 32, 8, 8192, page=16),
    Problem(64, 32, 8, 8192, dtype=F8),
    Problem(64, 32, 8, 8192, page=64, dtype=F8),
    Problem(1, 32, 8, 65_536, dtype=F8),
    Problem(8, 32, 8, 32_768, tokens=4),
    Problem(64, 32, 8, 8192, page=64, shortest=0.01),
    Problem(256, 32, 8, 512),
    Problem(16, 64, 8, 16_384, dtype="float16"),
    Problem(16, 64, 8, 16_384, dim=64),
    Problem(32, 32, 32, 4096),
    Problem(1, 32, 8, 4096),
)


def drawn(seed: int) -> Iterator[Problem]:
    """Problems that a seed draws, which cuDNN takes too."""
    draw = random.Random(seed)
    for _ in range(DRAWN):
        batch, kv_heads = int(2 ** draw.uniform(0, 8)), draw.choice((1, 2, 4, 8, 16))
        group, dim = draw.choice((1, 4, 8, 16)), draw.choice((64, 128))
        length = min(int(200 * 200 ** draw.random()), MOST // (batch * kv_heads))
        yield Problem(batch, kv_heads * group, kv_heads, length, dim)


def calls_of(size: int) -> int:
    """How many calls one measurement has, given the bytes that each call reads.

    A kernel may ask the L2 cache to replace first what it reads. Then older data stay there, and a few sets of buffers are
    not enough: some of a set may survive all calls with the others. Of so much memory as here, an L2 cache of 50 MB has 1%,
    or 3% if calls are small.
    """
    return min(MAX_CALLS, max(1, MEMORY // size))


def inputs_of(problem: Problem) -> dict[str, Any]:
    """The arguments of a call. A contiguous cache lies head by head in memory, as torch's attention wants it."""
    import torch

    dtype = getattr(torch, problem.dtype)
    narrow = dtype.itemsize == 1
    size = problem.page or problem.length
    count = problem.batch * (problem.length // size)
    heads, dim = problem.kv_heads, problem.dim
    shape = (count, size, heads, dim) if problem.page else (count, heads, size, dim)
    memory = torch.empty(2, *shape, device="cuda", dtype=dtype)
    for part in memory.view(-1).split(SLAB):
        part.copy_(torch.randn(part.shape, device="cuda", dtype=torch.bfloat16))
    keys, values = memory.unbind(0)
    call = {
        "q": torch.randn(problem.batch, problem.tokens, problem.heads, problem.dim, device="cuda").to(
            torch.bfloat16 if narrow else dtype
        ),
        "k_cache": keys if problem.page else keys.transpose(1, 2),
        "v_cache": values if problem.page else values.transpose(1, 2),
        "lengths": torch.tensor(problem.lengths, dtype=torch.int32, device="cuda"),
        "scale": problem.dim**-0.5,
    }
    if narrow:
        call |= {name: torch.ones(heads, device="cuda") for name in ("k_scale", "v_scale")}
    if problem.page:
        order = torch.randperm(count, device="cuda", dtype=torch.int32)
        call["pages"] = order.view(problem.batch, problem.length // size)
    return {"memory": memory, "call": call}


def torch_attention(backend: str, calls: list[dict[str, Any]]) -> Any:
    """Calls of torch's attention through one of its backends."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def run(i: int) -> Any:
        tensors = (calls[i][name].transpose(1, 2) for name in ("q", "k_cache", "v_cache"))
        with sdpa_kernel([getattr(SDPBackend, backend)]):
            return torch.nn.functional.scaled_dot_product_attention(*tensors, scale=calls[i]["scale"], enable_gqa=True)

    return run


def measure(problem: Problem, decode: Any, read: Any) -> dict[str, float]:
    """TB/s by contender."""
    import torch

    from aot.gpu.bench import graph_timer, shuffled_medians

    made = [inputs_of(problem) for _ in range(calls_of(problem.bytes))]
    out, found = torch.empty_like(made[0]["call"]["q"]), torch.empty(READ, dtype=torch.int32, device="cuda")
    words = problem.bytes // 4 // READ_UNIT * READ_UNIT
    flat = [one["memory"].view(-1).view(torch.int32)[:words] for one in made]
    runs = {"read": lambda i: read(flat[i], found), "aot": lambda i: decode(out=out, **made[i]["call"])}
    if problem.is_dense:
        runs |= {name: torch_attention(backend, [one["call"] for one in made]) for name, backend in BACKENDS.items()}
    timers = {}
    for name, run in runs.items():
        try:
            timers[name] = graph_timer(run, len(made), len(made))
        except RuntimeError as error:  # torch refuses some problems, which the table then shows as missing
            if name not in BACKENDS:
                raise
            print(f"{problem.name}: {name} does not take it: {error}", file=sys.stderr)
    times = shuffled_medians(timers, ROUNDS)
    return {name: problem.bytes / time / 1e6 for name, time in times.items()}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("bundle", type=Path)
    arguments.add_argument("read", type=Path, help="the bundle of `benchmarks/kernels/read.py`")
    arguments.add_argument("--seed", type=int, default=2026, help="of the drawn problems: a new one for each report")
    given = arguments.parse_args()

    import aot_runtime

    decode, read = aot_runtime.load(given.bundle)["attention_decode"], aot_runtime.load(given.read)["read"]
    found: dict[str, dict[str, Any]] = {"times": {}, "drawn": {}}
    for key, problems in (("times", PROBLEMS), ("drawn", tuple(drawn(given.seed)))):
        rows = []
        for problem in problems:
            speeds = measure(problem, decode, read)
            found[key][problem.name] = {name: round(speed, 3) for name, speed in speeds.items()}
            cells = (f"{speeds[name]:.2f}" if name in speeds else "-" for name in ("read", "aot", *BACKENDS))
            rows.append((problem.name, *cells, f"{speeds['aot'] / speeds['read']:.2f}"))
        print_rows(("TB/s of keys and values", "read", "aot", *BACKENDS, "aot of read"), rows)
    report("attention_decode", {"unit": "TB/s of keys and values", "seed": given.seed, **found}, given.out)


if __name__ == "__main__":
    main()
