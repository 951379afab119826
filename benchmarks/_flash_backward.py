"""FlashAttention-4's backward pass by its own kernels from a bundle, called as its ``_flash_attn_bwd`` calls them on Hopper.

It needs neither FlashAttention-4 nor CuTe DSL, so a benchmark does not compile. This prints the exercise that captures what the
problems of a seed need; a call stands in a line of its own, because a kernel is found by the line that compiled it:

    python benchmarks/_flash_backward.py 38 > flash_backward.py
    python -m aot capture flash_backward.py --arch sm90 --name flash_backward

Written after flash-attn-4 4.0.0b36, whose tiles for Hopper are copied here.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

HEAD = """import torch
from flash_attn.cute.interface import _flash_attn_bwd as bwd


def e(*shape, dtype=torch.bfloat16):
    return torch.empty(*shape, dtype=dtype, device="cuda")


"""
TOKENS, HEADS = 1024, 8  # of a captured call
NEVER = -1


@dataclass(frozen=True)
class Call:
    """What kernels are compiled for."""

    dim: int
    value_dim: int
    share: int  # heads of queries that share a head of keys
    causal: bool
    window: bool
    ragged: bool

    @classmethod
    def of(cls, problem: Any) -> Call:
        share, window = problem.heads // problem.kv_heads, problem.left != NEVER
        return cls(problem.dim, problem.value_dim, share, problem.causal, window, problem.ragged)

    @property
    def queries(self) -> int:
        """Rows of a tile."""
        if self.dim == 128:
            return 64 if self.causal else 80
        return 128 if self.dim == 64 else 64

    @property
    def keys(self) -> int:
        return {192: 96, 256: 48}.get(self.dim, 128)

    @property
    def multiple(self) -> int:
        """Widths are rounded up to multiples of this."""
        return 64 if self.dim > 128 else 32

    @property
    def before(self) -> tuple:
        return self.dim, self.value_dim, self.queries, self.ragged, self.multiple

    @property
    def after(self) -> tuple[tuple, ...]:
        """Of the gradients of queries, and if heads share keys, of keys and values."""
        threads = 128 if self.dim == 96 else 256
        of_queries = (self.dim, self.queries, threads, 2 if self.dim == 64 else 1, self.queries == 80)
        of_keys = tuple(
            (width, self.keys, 256, 1 if self.dim == 256 else 2, self.dim > 128) for width in (self.dim, self.value_dim)
        )
        return tuple((*key, self.ragged, self.multiple) for key in (of_queries, *(of_keys if self.share > 1 else ())))

    def line(self) -> str:
        """A call of FlashAttention-4."""
        lead = f"{2 * TOKENS}" if self.ragged else f"2, {TOKENS}"
        heads, shared = max(HEADS, self.share), max(HEADS, self.share) // self.share
        lse = f"{heads}, {2 * TOKENS}" if self.ragged else f"2, {heads}, {TOKENS}"
        mask = "window_size_left=255, window_size_right=0" if self.window else f"causal={self.causal}"
        q, k, v, out = (
            f"e({lead}, {count}, {width})"
            for count, width in (
                (heads, self.dim),
                (shared, self.dim),
                (shared, self.value_dim),
                (heads, self.value_dim),
            )
        )
        ends = "e(3, dtype=torch.int32)"
        sequences = f", cu_seqlens_q={ends}, cu_seqlens_k={ends}, max_seqlen_q=1500, max_seqlen_k=1500"
        return (
            f"bwd({q}, {k}, {v}, {out}, {out}, e({lse}, dtype=torch.float32), {mask}{sequences if self.ragged else ''})"
        )


def calls_of(problems: list[Any]) -> list[Call]:
    return list(dict.fromkeys(map(Call.of, problems)))


def exercise(problems: list[Any]) -> str:
    return HEAD + "".join(call.line() + "\n" for call in calls_of(problems))


class FlashBackward:
    """The kernels of a bundle that was captured from :func:`exercise` of the same problems."""

    def __init__(self, bundle: Any, problems: list[Any]) -> None:
        self.bundle = bundle
        self.before, self.main, self.after = {}, {}, {}
        lines = _kernels_by_line(bundle)
        first = HEAD.count("\n") + 1
        for number, call in enumerate(calls_of(problems), first):
            found = lines.get(number, {})
            self.main[call] = found["sm90"][0]
            self.before.setdefault(call.before, (found.get("preprocess") or [None])[0])
            new = [key for key in dict.fromkeys(call.after) if key not in self.after]
            # If a line compiles several, all orders are possible: see ``choose``.
            self.after |= {key: (found["postprocess"], i) for i, key in enumerate(new)}

    def choices(self, call: Call) -> Iterator[list[str]]:
        """The kernels that finish gradients: in each order that they may have."""
        groups = {id(names): names for names, _ in (self.after[key] for key in call.after)}
        orders = [dict(zip(groups, order, strict=True)) for order in _orders(list(groups.values()))]
        for order in orders:
            yield [order[id(names)][i] for names, i in (self.after[key] for key in call.after)]

    def prepare(self, given: Any) -> Callable[[], Any]:
        """The backward pass of what is ``given``: see ``attention_backward.Pass``. Its gradients must be close to ours."""
        import torch

        for names in self.choices(Call.of(given.problem)):
            run, gradients = self._pass(given, names)
            run()
            torch.cuda.synchronize()
            if all(_close(one, other) for one, other in zip(gradients, given.gradients, strict=True)):
                return run
        raise RuntimeError("FlashAttention-4's gradients are not those of `attention_backward`")

    def _pass(self, given: Any, names: list[str]) -> tuple[Callable[[], Any], list[Any]]:
        import torch

        def empty(*shape: int) -> Any:
            return torch.empty(*shape, device="cuda")

        def padded(count: int, tile: int) -> int:
            return -(-count // tile) * tile

        problem, call, (q, k, v), starts = given.problem, Call.of(given.problem), given.inputs, given.starts
        width, value_width = (padded(x, call.multiple) for x in (call.dim, call.value_dim))
        heads, tokens = q.shape[-2], q.shape[-3]
        if call.ragged:
            rows, columns = ((tokens + starts.shape[0] * tile - 1) // tile * tile for tile in (call.queries, call.keys))
        else:
            rows, columns = padded(tokens, call.queries), padded(tokens, call.keys)
        lead, lse = tuple(q.shape[:-3]), given.lse.mT.contiguous()
        delta, scaled, sums = empty(*lead, heads, rows), empty(*lead, heads, rows), empty(*lead, heads, rows * width)
        gradients = [torch.empty_like(x) for x in given.inputs]
        shared = k.shape[-2]
        of_keys = (
            [empty(*lead, shared, columns * each) for each in (width, value_width)] if call.share > 1 else gradients[1:]
        )
        scale, window = problem.dim**-0.5, (problem.left, 0) if call.window else (None, None)
        before, main = self.bundle[self.before[call.before]], self.bundle[self.main[call]]
        after = [self.bundle[name] for name in names]

        def run() -> None:
            if call.share > 1:
                for one in of_keys:
                    one.zero_()
            before(given.out, given.grad_out, delta, lse, scaled, sums, starts, None, None, None, None, 1.0, None, None)
            main(
                q, k, v, given.grad_out, scaled, delta, sums, *of_keys, scale, starts, starts, None, None, *window, None, None,
                None, (None, None), None, None,
            )  # fmt: skip
            after[0](sums, gradients[0], scale, starts, None, None, None)
            for finish, one, gradient, factor in zip(after[1:], of_keys, gradients[1:], (scale, 1.0), strict=False):
                finish(one, gradient, factor, starts, None, None, None)

        return run, gradients


def _kernels_by_line(bundle: Any) -> dict[int, dict[str, list[str]]]:
    """Names of kernels by the line of the exercise that compiled them, and by what they are."""
    declared = json.loads((Path(bundle.path) / "kernels.json").read_text())["kernels"]
    found: dict[int, dict[str, list[str]]] = {}
    for name in bundle.kernels:
        line = re.search(r"\.py:(\d+) compiles it", declared[name]["doc"])
        kind = re.search(r"flash_attention_backward_(\w+)_\w+", name)
        if line and kind:
            found.setdefault(int(line[1]), {}).setdefault(kind[1], []).append(name)
    return found


def _orders(groups: list[list[str]]) -> Iterator[tuple]:
    if not groups:
        yield ()
        return
    for first in permutations(groups[0]):
        for rest in _orders(groups[1:]):
            yield (first, *rest)


def _close(one: Any, other: Any) -> bool:
    return bool((one.float() - other.float()).norm() <= 0.02 * other.float().norm())


def main() -> None:
    from attention_backward import problems_of

    print(exercise([p for problems in problems_of(int(sys.argv[1])).values() for p in problems]), end="")


if __name__ == "__main__":
    main()
