"""Products that a seed draws from layers of public models, so that a report can be about shapes nobody tuned on.

A layer of a model in ``shapes/models.json``, shared among 1, 2, 4 or 8 GPUs, gives n and k. Rows are drawn from each of
the ranges that reports tell apart alike, and on a logarithmic scale in it. Products that were tuned on are left out: those of
lists, and those that the models of the shipped tables name as won.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from typing import Any

from _common import PROJECT
from gemm_shapes import Problem, read_problems

TUNED = ("gemm_tune", "gemm_random")  # files of `shapes` that the shipped tables were made from
MODELS = PROJECT / "kernels" / "tuning" / "products.json"
SHARES = (1, 2, 4, 8)
RANGES = ((1, 16), (17, 64), (65, 128), (129, 512), (513, 1024), (1025, 8192))  # of rows
MULTIPLE = 64  # of n and k, what an engine shares a layer into
MOST_OPERATIONS = 3e12


def layers(config: dict[str, Any], share: int) -> dict[str, tuple[int, int]]:
    """``n`` and ``k`` of the products of a layer on one of ``share`` GPUs."""
    attention = config["heads"] * config["head_dim"]
    both = attention + 2 * config["kv_heads"] * config["head_dim"]
    up = (2 if config["gated"] else 1) * config["intermediate"]
    return {
        "qkv": (both // share, config["hidden"]),
        "out": (config["hidden"], attention // share),
        "up": (up // share, config["hidden"]),
        "down": (config["hidden"], config["intermediate"] // share),
    }


def timed() -> Iterator[tuple[int, int, int]]:
    """The extents of products that decide about a cell of a shipped table."""
    for model in json.loads(MODELS.read_text())["models"]:
        for one in model["sets"]:
            for calls in one["fastest"].values():
                yield from ((m, n, k) for m, n, k in calls)


def draw(seed: int, count: int, without: Iterable[Problem] = ()) -> list[Problem]:
    """So many different products, the same for the same seed, without those that were tuned on."""
    chance = random.Random(seed)
    tuned = {problem[2:] for name in TUNED for problem in read_problems(name)} | {problem[2:] for problem in without}
    tuned |= set(timed())
    models = json.loads((PROJECT / "benchmarks" / "shapes" / "models.json").read_text())["models"]
    found: dict[tuple[int, ...], Problem] = {}
    while len(found) < count:
        problem = _one(chance, models)
        if _is_usual(problem) and problem[2:] not in tuned:
            found.setdefault(problem[2:], problem)
    return list(found.values())


def _one(chance: random.Random, models: dict[str, Any]) -> Problem:
    model, share = chance.choice(sorted(models)), chance.choice(SHARES)
    layer, (n, k) = chance.choice(sorted(layers(models[model], share).items()))
    low, high = chance.choice(RANGES)
    m = round(low * (high / low) ** chance.random())
    return Problem(f"{model}/{share}", layer, m, n, k)


def _is_usual(problem: Problem) -> bool:
    return problem.n % MULTIPLE == 0 and problem.k % MULTIPLE == 0 and problem.operations < MOST_OPERATIONS
