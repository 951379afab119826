"""Attention as far as it can be tested without a GPU: which code takes a call, what is launched and what is refused."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import aot_runtime
import pytest
from aot_runtime import ArgumentError
from standin import Standin

DIM, MULTIPROCESSORS = 64, 132
ZEROED = ctypes.create_string_buffer(256)  # the stand-in writes zeros to it as a device would
TICKETS = ctypes.addressof(ZEROED) // 128 * 128 + 128


def prompt(cuda: Standin, tokens: int, kv_tokens: int, heads: int = 8, kv_heads: int = 2) -> dict[str, Any]:
    queries, keys = (2, tokens, heads, DIM), (2, kv_tokens, kv_heads, DIM)
    shapes = {"q": queries, "k": keys, "v": keys, "out": queries}
    tensors = {name: cuda.tensor(shape, "bfloat16") for name, shape in shapes.items()}
    workspace = {"tickets": cuda.tensor((4,), "uint8", address=TICKETS), "lse": cuda.tensor(queries[:3], "float32")}
    return {**tensors, **workspace, "scale": 0.125}


def step(cuda: Standin, batch: int, capacity: int, heads: int, tokens: int = 1, kv_heads: int = 2) -> dict[str, Any]:
    """A step of decoding."""
    queries, cached = (batch, tokens, heads, DIM), (batch, capacity, kv_heads, DIM)
    shapes = {"q": queries, "k_cache": cached, "v_cache": cached, "out": queries}
    tensors = {name: cuda.tensor(shape, "bfloat16") for name, shape in shapes.items()}
    workspace = cuda.tensor((1 << 28,), "uint8")
    return {**tensors, "lengths": cuda.tensor((batch,), "int32"), "parts": workspace, "scale": 0.125}


def launched(cuda: Standin, function: Any, arguments: dict[str, Any]) -> list[Any]:
    cuda.clear()
    function(**arguments)
    return list(cuda.launches)


def test_nothing_but_what_merges_spills_to_memory(path: Path) -> None:
    variants = json.loads((path / "details" / "sm_90a.json").read_text())["variants"]
    assert {variant["kernel"] for variant in variants} == {"attention", "attention_decode", "cache_append"}
    for launch in (launch for variant in variants for launch in variant["launches"]):
        # Four blocks that merge share a multiprocessor, so their threads have 64 registers, and may lack a few.
        assert launch["local_memory"] <= (32 if "_merge_" in launch["name"] else 0), launch


def test_blocks_of_prompts_are_no_more_than_multiprocessors_or_tiles(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    grids = []
    for tokens in (1, 100, 4096, 100_000):
        (launch,) = launched(cuda, bundle["attention"], prompt(cuda, tokens, tokens))
        grids.append(launch.grid[0])
    assert grids == sorted(grids) and grids[0] == 2 * 8 and grids[-1] == MULTIPROCESSORS


def test_without_a_key_queries_get_zeros_by_another_kernel_and_without_queries_nothing_is_launched(
    cuda: Standin, bundle: aot_runtime.Bundle
) -> None:
    (attended,), (blank,) = (launched(cuda, bundle["attention"], prompt(cuda, 100, keys)) for keys in (100, 0))
    assert attended.kernel != blank.kernel and blank.grid[:2] == (2 * 100, 8)
    assert launched(cuda, bundle["attention"], prompt(cuda, 0, 100)) == []


@pytest.mark.parametrize("changed", [{"heads": 7}, {"kv_heads": 3}])
def test_heads_that_do_not_share_keys_evenly_are_refused(
    changed: dict[str, int], cuda: Standin, bundle: aot_runtime.Bundle
) -> None:
    with pytest.raises(ArgumentError, match="heads"):
        bundle["attention"](**prompt(cuda, 100, 100, **changed))
    with pytest.raises(ArgumentError, match="heads"):
        bundle["attention_decode"](**step(cuda, 2, 4096, **{"heads": 8, **changed}))
    assert cuda.launches == []


def test_long_caches_are_split_and_merged_and_short_ones_take_one_kernel(
    cuda: Standin, bundle: aot_runtime.Bundle
) -> None:
    decode = bundle["attention_decode"]
    assert len(launched(cuda, decode, step(cuda, 4, 100_000, 8))) == 2
    (alone,) = launched(cuda, decode, step(cuda, 64, 32, 8))
    assert alone.grid[0] == 64 * 2, "a block for each head of the cache"


def test_few_short_sequences_take_blocks_with_more_tokens_at_a_time_than_many(
    cuda: Standin, bundle: aot_runtime.Bundle
) -> None:
    decode = bundle["attention_decode"]
    (few,) = launched(cuda, decode, step(cuda, 8, 600, 8))
    (many,) = launched(cuda, decode, step(cuda, 300, 600, 8))
    (shorter,) = launched(cuda, decode, step(cuda, 8, 200, 8))
    assert few.grid[0] == 8 * 2 and many.grid[0] == 300 * 2
    assert few.shared_memory > many.shared_memory == shorter.shared_memory


def test_the_code_for_decoding_follows_from_the_rows_that_share_a_head(
    cuda: Standin, bundle: aot_runtime.Bundle
) -> None:
    def chosen(heads: int, tokens: int) -> str:
        found = bundle.explain("attention_decode", "9.0", **step(cuda, 4, 4096, heads, tokens)).chosen
        assert found is not None
        return found.variant

    assert chosen(8, 4) == chosen(32, 1), "sixteen rows, of tokens or of heads"
    assert len({chosen(heads, 1) for heads in (32, 128, 256)}) == 3


def test_more_new_tokens_than_a_call_takes_are_refused(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    with pytest.raises(ArgumentError, match=r"q\.shape\[1\] is 17"):
        bundle["attention_decode"](**step(cuda, 2, 4096, 8, tokens=17))


def test_new_tokens_are_appended_in_place_by_one_launch(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    new, cached = ((2, 3, 4, DIM), (2, 512, 4, DIM))
    arguments = {name: cuda.tensor(new, "bfloat16") for name in ("k", "v")}
    caches = {name: cuda.tensor(cached, "bfloat16") for name in ("k_cache", "v_cache")}
    arguments |= {**caches, "k_out": caches["k_cache"], "v_out": caches["v_cache"]}
    arguments["lengths"] = cuda.tensor((2,), "int32")
    assert len(launched(cuda, bundle["cache_append"], arguments)) == 1
    with pytest.raises(ArgumentError, match="v_out"):
        bundle["cache_append"](**{**arguments, "v_out": cuda.tensor((2, 511, 4, DIM), "bfloat16")})
    assert len(cuda.launches) == 1
