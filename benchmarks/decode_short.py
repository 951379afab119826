"""How long `attention_decode` and `mla_decode` take for one to eight sequences of up to 4096 tokens, with 1 to 16 new tokens.

Needs a GPU, torch, and a bundle of the shipped kernels with the family `attention`. `sgl-flash-mla` is beside `mla_decode`, with
its plan in each call (`planned`) and with one plan for all calls (`flash_mla`). cuDNN, through torch, is beside
`attention_decode` if a call has one new token. Calls are in CUDA graphs, and each has a cache of its own. The goal of a
problem is the time to read its cache at 4.2 TB/s, and at least 5 microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import attention_decode as grouped
import mla_decode as latent
from _common import parser, print_rows, report

ROUNDS = 5
BANDWIDTH, LEAST = 4.2e6, 5.0  # bytes per microsecond, microseconds
MEMORY = 150_000_000  # bytes that the calls of a measurement read: three times the L2 cache of an H200
FEWEST, MOST = 50, 2000  # calls
CONTENDERS = ("cudnn", "flash_mla", "planned")


@dataclass(frozen=True)
class Latent:
    batch: int
    length: int
    tokens: int = 1
    heads: int = 128

    @property
    def name(self) -> str:
        return f"mla_decode, B{self.batch} H{self.heads} S{self.length}, {self.tokens} new"

    @property
    def bytes(self) -> int:
        return latent.Problem(self.batch, self.heads, self.length).bytes

    def runs(self, kernels: Any) -> dict[str, Any]:
        problem = latent.Problem(self.batch, self.heads, self.length)
        calls = [latent.inputs_of(problem, self.tokens) for _ in range(calls_of(self.bytes))]
        return {"aot": lambda i: kernels["mla_decode"](**calls[i]), **latent.by_flash_mla(calls)}


@dataclass(frozen=True)
class Grouped:
    batch: int
    length: int
    tokens: int = 1
    page: int = 0

    @property
    def problem(self) -> grouped.Problem:
        return grouped.Problem(self.batch, 32, 8, self.length, tokens=self.tokens, page=self.page)

    @property
    def name(self) -> str:
        pages = f", pages of {self.page}" if self.page else ""
        return f"attention_decode, B{self.batch} H32/8 D128 S{self.length}, {self.tokens} new{pages}"

    @property
    def bytes(self) -> int:
        return self.problem.bytes

    def runs(self, kernels: Any) -> dict[str, Any]:
        import torch

        calls = [grouped.inputs_of(self.problem)["call"] for _ in range(calls_of(self.bytes))]
        out = torch.empty_like(calls[0]["q"])
        found = {"aot": lambda i: kernels["attention_decode"](out=out, **calls[i])}
        if self.problem.is_dense:
            found["cudnn"] = grouped.torch_attention(grouped.BACKENDS["cudnn"], calls)
        return found


PROBLEMS = (
    *(Latent(1, length) for length in (64, 256, 1024, 2048, 4096)),
    *(Latent(batch, length) for batch in (2, 4, 8) for length in (1024, 4096)),
    *(Latent(1, length, heads=16) for length in (64, 1024, 4096)),
    *(Latent(batch, 4096, tokens) for batch, tokens in ((1, 4), (1, 16), (4, 2), (8, 16))),
    *(Latent(4, 2048, tokens, heads=16) for tokens in (4, 16)),
    *(Grouped(1, length) for length in (64, 512, 2048, 4096)),
    *(Grouped(batch, length) for batch in (2, 4, 8) for length in (512, 4096)),
    *(Grouped(batch, 2048, page=16) for batch in (1, 8)),
    *(Grouped(batch, 4096, tokens, 64) for batch, tokens in ((1, 4), (1, 16), (4, 2), (8, 16))),
)


def calls_of(size: int) -> int:
    """How many calls one measurement has, so that none finds its cache in the L2 cache."""
    return min(MOST, max(FEWEST, MEMORY // size))


def goal(size: int) -> float:
    return max(size / BANDWIDTH, LEAST)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("bundle", type=Path)
    given = arguments.parse_args()

    import aot_runtime

    from aot.gpu.bench import graph_timer, shuffled_medians

    kernels = aot_runtime.load(given.bundle)
    rows, results = [], {}
    for problem in PROBLEMS:
        calls = calls_of(problem.bytes)
        timers = {name: graph_timer(run, calls, calls) for name, run in problem.runs(kernels).items()}
        times = {name: round(time, 2) for name, time in shuffled_medians(timers, ROUNDS).items()}
        results[problem.name] = {"goal": round(goal(problem.bytes), 2), "microseconds": times}
        cells = (f"{times[name]:.1f}" if name in times else "-" for name in ("aot", *CONTENDERS))
        rows.append((problem.name, f"{goal(problem.bytes):.1f}", *cells))
    print_rows(("microseconds", "goal", "aot", *CONTENDERS), rows)
    report("decode_short", {"unit": "microseconds", "problems": results}, given.out)


if __name__ == "__main__":
    main()
