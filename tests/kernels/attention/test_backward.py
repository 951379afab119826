"""Gradients of attention as far as they can be tested without a GPU: what is launched and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aot_runtime
import pytest
from aot_runtime import ArgumentError
from standin import Standin

from aot.pipeline.settings import BuildResult

HEADS, KV_HEADS, DIM = 4, 2, 64


@pytest.fixture(scope="module")
def path(build_bundle: Callable[..., BuildResult]) -> Path:
    result = build_bundle(Path(__file__).parent / "small_backward.py", ("sm_90a",), shared_cudart=True)
    assert not result.failures
    return result.path


@pytest.fixture
def backward(path: Path, cuda: Standin) -> Any:
    cuda.reset(capabilities=[(9, 0)], sm_counts=[132])
    return aot_runtime.load(path)["attention_backward"]


def call(cuda: Standin, tokens: int, kv_tokens: int, **others: Any) -> dict[str, Any]:
    queries, keys = (3, tokens, HEADS, DIM), (3, kv_tokens, KV_HEADS, DIM)
    shapes = {"grad_out": queries, "q": queries, "k": keys, "v": keys, "out": queries}
    shapes |= {"grad_q": queries, "grad_k": keys, "grad_v": keys}
    tensors = {name: cuda.tensor(shape, "bfloat16") for name, shape in shapes.items()}
    size = 3 * tokens * HEADS * (4 * DIM + 12)
    rows = {"lse": cuda.tensor((3, tokens, HEADS), "float32"), "grad_sinks": cuda.tensor((HEADS,), "float32")}
    return {**tensors, **rows, "scratch": cuda.tensor((size,), "uint8"), "scale": 0.125, **others}


def launched(cuda: Standin, backward: Any, arguments: dict[str, Any]) -> int:
    cuda.clear()
    backward(**arguments)
    return len(cuda.launches)


def rows_of_block(path: Path, kind: str) -> int:
    """The rows that a block has, by the names of the variants: keys of a ``tile``, keys or queries of a ``split``."""
    variants = json.loads((path / "details" / "sm_90a.json").read_text())["variants"]
    (rows,) = {int(found[1]) for one in variants if (found := re.search(rf"__{kind}(\d+)x\d+$", one["name"]))}
    return rows


def blocks_of(tokens: int, rows: int) -> int:
    return -(-tokens // rows)


def test_statistics_come_first_then_gradients_then_rounding(cuda: Standin, backward: Any, path: Path) -> None:
    assert launched(cuda, backward, call(cuda, 200, 300, right=0)) == 3
    statistics, gradients, rounding = (launch.grid[0] for launch in cuda.launches)
    assert gradients == 3 * KV_HEADS * blocks_of(300, rows_of_block(path, "tile"))
    assert rounding <= statistics


def test_a_soft_cap_takes_two_kernels_without_sums(cuda: Standin, backward: Any, path: Path) -> None:
    assert launched(cuda, backward, call(cuda, 200, 300, soft_cap=30.0)) == 3
    rows = rows_of_block(path, "split")
    by_keys, by_queries = (launch.grid[0] for launch in cuda.launches[1:])
    assert (by_keys, by_queries) == (3 * KV_HEADS * blocks_of(300, rows), 3 * HEADS * blocks_of(200, rows))


def test_a_fixed_order_takes_the_same_kernels(cuda: Standin, backward: Any) -> None:
    launches = []
    for deterministic in (False, True):
        launched(cuda, backward, call(cuda, 200, 300, deterministic=deterministic))
        launches.append([(launch.kernel, launch.grid) for launch in cuda.launches])
    assert launches[0] == launches[1]


def test_sequences_side_by_side_get_a_block_for_each_tile_that_there_may_be(
    cuda: Standin, backward: Any, path: Path
) -> None:
    queries, keys = (200, HEADS, DIM), (300, KV_HEADS, DIM)
    names = {"grad_out": queries, "q": queries, "k": keys, "v": keys, "out": queries}
    names |= {"grad_q": queries, "grad_k": keys, "grad_v": keys}
    arguments = call(cuda, 200, 300)
    arguments |= {name: cuda.tensor(shape, "bfloat16") for name, shape in names.items()}
    arguments |= {name: cuda.tensor((5,), "int32") for name in ("q_starts", "k_starts")}
    assert launched(cuda, backward, {**arguments, "lse": cuda.tensor((200, HEADS), "float32")}) == 3
    # In four sequences, each of which may end with a tile that is not full.
    assert cuda.launches[1].grid[0] == (300 // rows_of_block(path, "tile") + 4) * KV_HEADS


def test_without_queries_or_keys_the_rest_is_zeroed(cuda: Standin, backward: Any) -> None:
    for others in ({}, {"deterministic": True}):
        assert launched(cuda, backward, call(cuda, 0, 300, **others)) == 3  # keys, values and sinks
        assert launched(cuda, backward, call(cuda, 200, 0, **others)) == 2
        assert launched(cuda, backward, call(cuda, 0, 0, **others)) == 1


def test_scratch_memory_holds_the_sums_and_the_statistics(cuda: Standin, backward: Any) -> None:
    arguments = call(cuda, 200, 300)
    short = cuda.tensor((3 * 200 * HEADS * (4 * DIM + 12) - 1,), "uint8")
    with pytest.raises(ArgumentError, match="scratch"):
        backward(**{**arguments, "scratch": short})


def test_heads_that_do_not_share_keys_evenly_are_refused(cuda: Standin, backward: Any) -> None:
    arguments = call(cuda, 200, 300)
    for name in ("k", "v", "grad_k", "grad_v"):
        arguments[name] = cuda.tensor((3, 300, 3, DIM), "bfloat16")
    with pytest.raises(ArgumentError, match="heads"):
        backward(**arguments)
