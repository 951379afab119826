"""Attention on a real GPU: one captured CUDA graph serves lengths and pages that change between replays.

Needs a bundle with the family `attention`: ``pytest tests/gpu/test_attention.py --bundle dist/attention``.
"""

from __future__ import annotations

from typing import Any

import aot_runtime
import pytest

from aot.bundle.contracts import Contract, load_contracts
from aot.gpu.check import compare

pytestmark = pytest.mark.gpu
NEEDS = {"attention_decode": "attention"}

BATCH, HEADS, KV_HEADS, DIM, PAGE, EACH = 5, 8, 2, 128, 16, 80
SCALE = DIM**-0.5
# Longer, shorter and empty sequences than those of the capture, up to the whole table and past it.
REPLAYS = (
    (1000, 3, 17, 0, 640),
    (1, 0, 0, 0, 0),
    (0, 0, 0, 0, 0),
    (1280, 1280, 1280, 1280, 1280),
    (9999, -5, 2, 1, 64),
)


@pytest.fixture(scope="module")
def contracts(bundle: aot_runtime.Bundle) -> dict[str, Contract]:
    names = ("attention", "attention_decode", "cache_append", "mla_decode", "mla_decode_sparse")
    return load_contracts(bundle.path, bundle.manifest, [name for name in names if name in bundle.kernels])


@pytest.fixture
def caches(torch: Any) -> dict[str, Any]:
    return caches_of(torch, KV_HEADS)


def caches_of(torch: Any, kv_heads: int) -> dict[str, Any]:
    shape = (BATCH * EACH, PAGE, kv_heads, DIM)
    keys, values = torch.randn(2, *shape, device="cuda").to(torch.bfloat16).unbind(0)
    order = torch.randperm(BATCH * EACH, device="cuda", dtype=torch.int32)
    return {"k_cache": keys, "v_cache": values, "pages": order.view(BATCH, EACH)}


def narrowed(torch: Any, caches: dict[str, Any]) -> dict[str, Any]:
    """The same caches in f8e4m3, with a scale for each head."""
    stored = {name: caches[name].to(torch.float8_e4m3fn) for name in ("k_cache", "v_cache")}
    scales = {name: torch.full((caches["k_cache"].shape[2],), 0.5, device="cuda") for name in ("k_scale", "v_scale")}
    return {**caches, **stored, **scales}


def ints(torch: Any, values: tuple[int, ...]) -> Any:
    return torch.tensor(values, dtype=torch.int32, device="cuda")


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize(("tokens", "heads", "kv_heads"), [(1, 8, 2), (3, 8, 2), (4, 16, 1), (1, 128, 1)])
def test_a_graph_stays_right_when_lengths_and_pages_change(
    bundle: aot_runtime.Bundle,
    contracts: dict[str, Contract],
    torch: Any,
    tokens: int,
    heads: int,
    kv_heads: int,
    narrow: bool,
) -> None:
    """For each tiling: with up to 16 query rows for each head of the cache, up to 64, and more."""
    bundle.preload(0)
    caches = caches_of(torch, kv_heads)
    caches = narrowed(torch, caches) if narrow else caches
    q = torch.randn(BATCH, tokens, heads, DIM, device="cuda").to(torch.bfloat16)
    out, lengths = torch.empty_like(q), ints(torch, (64, 200, 1, 33, 512))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        bundle["attention_decode"](q=q, lengths=lengths, out=out, scale=SCALE, **caches)
    for replay in REPLAYS:
        lengths.copy_(ints(torch, replay))
        caches["pages"].copy_(torch.randperm(BATCH * EACH, device="cuda").view(BATCH, EACH))
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        seen = lengths.clamp(0, EACH * PAGE)
        expected = contracts["attention_decode"].reference(q=q, lengths=seen, scale=SCALE, **caches)
        assert compare(out, expected)[0] == "", replay


@pytest.mark.parametrize("page", [16, 64, 0])
@pytest.mark.parametrize("kind", ["bf16", "f8e4m3", "packed"])
@pytest.mark.parametrize("heads", [16, 128])
def test_a_graph_of_latent_attention_stays_right_when_lengths_and_pages_change(
    bundle: aot_runtime.Bundle, contracts: dict[str, Contract], torch: Any, heads: int, kind: str, page: int
) -> None:
    """With pages of two sizes, which take different code, and with a contiguous cache."""
    if "mla_decode" not in bundle.kernels:
        pytest.skip("the bundle has no `mla_decode`")
    bundle.preload(0)
    room = EACH * PAGE
    count = BATCH * room // (page or room)
    q = torch.randn(BATCH, 1, heads, 576, device="cuda").to(torch.bfloat16)
    out, lengths = q.new_empty(BATCH, 1, heads, 512), ints(torch, (64, 200, 1, 33, 512))
    call = {"q": q, "lengths": lengths, "scale": SCALE, **latent_cache(torch, count, page or room, kind)}
    if page:
        call["pages"] = torch.randperm(count, device="cuda", dtype=torch.int32).view(BATCH, -1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        bundle["mla_decode"](out=out, **call)
    for replay in REPLAYS:
        lengths.copy_(ints(torch, replay))
        if page:
            call["pages"].copy_(torch.randperm(count, device="cuda").view(BATCH, -1))
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        seen = {**call, "lengths": lengths.clamp(0, room)}
        assert compare(out, contracts["mla_decode"].reference(**seen))[0] == "", replay


@pytest.mark.parametrize("heads", [16, 128])
@pytest.mark.parametrize("kind", ["bf16", "f8e4m3", "packed"])
def test_latent_attention_does_not_depend_on_what_its_workspace_contains(
    bundle: aot_runtime.Bundle, contracts: dict[str, Contract], torch: Any, kind: str, heads: int
) -> None:
    """Sequences of different lengths, most of which are cut: blocks leave parts and marks for each other."""
    if "mla_decode" not in bundle.kernels:
        pytest.skip("the bundle has no `mla_decode`")
    batch, room = 37, 2048
    q = torch.randn(batch, 1, heads, 576, device="cuda").to(torch.bfloat16)
    call = {"q": q, "scale": SCALE, **latent_cache(torch, batch, room, kind)}
    parts = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    for lengths in (tuple(137 * i % 1900 for i in range(batch)), (room,) * batch):
        call["lengths"] = ints(torch, lengths)
        expected = contracts["mla_decode"].reference(**call)
        results = []
        for content in (0, 0xFF, 0x57, None, None):  # None: what the call before has left
            if content is not None:
                parts.fill_(content)
            out = torch.full((batch, 1, heads, 512), float("nan"), device="cuda", dtype=torch.bfloat16)
            bundle["mla_decode"](out=out, parts=parts, **call)
            results.append(out)
        assert compare(results[0], expected)[0] == ""
        assert all(torch.equal(results[0], other) for other in results[1:])


@pytest.mark.parametrize("scale", [-0.05, 0.0])
def test_latent_attention_takes_scales_that_are_not_positive(
    bundle: aot_runtime.Bundle, contracts: dict[str, Contract], torch: Any, scale: float
) -> None:
    if "mla_decode" not in bundle.kernels:
        pytest.skip("the bundle has no `mla_decode`")
    q = torch.randn(3, 2, 16, 576, device="cuda").to(torch.bfloat16)
    cache = torch.randn(3, 300, 576, device="cuda").to(torch.bfloat16)
    call = {"q": q, "cache": cache, "lengths": ints(torch, (300, 1, 77)), "scale": scale}
    out = torch.full((3, 2, 16, 512), float("nan"), device="cuda", dtype=torch.bfloat16)
    bundle["mla_decode"](out=out, **call)
    assert compare(out, contracts["mla_decode"].reference(**call))[0] == ""


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("heads", [16, 128])
def test_a_graph_of_sparse_attention_stays_right_when_indices_change(
    bundle: aot_runtime.Bundle, contracts: dict[str, Contract], torch: Any, heads: int, packed: bool
) -> None:
    if "mla_decode_sparse" not in bundle.kernels:
        pytest.skip("the bundle has no `mla_decode_sparse`")
    bundle.preload(0)
    room = EACH * PAGE
    q = torch.randn(BATCH, heads, 576, device="cuda").to(torch.bfloat16)
    cache = torch.randn(EACH, PAGE, 656 if packed else 576, device="cuda").to(torch.bfloat16)
    if packed:
        cache = packed_tokens(torch, cache[..., :576])
    indices, lengths = torch.zeros(BATCH, room, device="cuda", dtype=torch.int32), ints(torch, (64, 200, 1, 33, 512))
    call = {"q": q, "cache": cache, "indices": indices, "lengths": lengths, "scale": SCALE}
    out = q.new_empty(BATCH, heads, 512)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        bundle["mla_decode_sparse"](out=out, **call)
    for replay in REPLAYS:
        lengths.copy_(ints(torch, replay))
        indices.copy_(torch.randint(-9, room, indices.shape))
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        seen = {**call, "lengths": lengths.clamp(0, room)}
        assert compare(out, contracts["mla_decode_sparse"].reference(**seen))[0] == "", replay


def latent_cache(torch: Any, count: int, size: int, kind: str) -> dict[str, Any]:
    """A cache of latent vectors in pages, or in line, with the scale that it needs."""
    tokens = torch.randn(count, size, 576, device="cuda").to(torch.bfloat16)
    if kind == "packed":
        return {"cache": packed_tokens(torch, tokens)}
    if kind == "bf16":
        return {"cache": tokens}
    return {"cache": tokens.to(torch.float8_e4m3fn), "cache_scale": torch.full((1,), 0.5, device="cuda")}


def packed_tokens(torch: Any, tokens: Any) -> Any:
    """Tokens of 656 bytes: elements of f8e4m3, scales, and the last elements as they are."""
    scales = torch.rand(*tokens.shape[:2], 4, device="cuda") + 0.5
    narrow = tokens[..., :512].to(torch.float8_e4m3fn)
    parts = [part.contiguous().view(torch.uint8) for part in (narrow, scales, tokens[..., 512:])]
    return torch.cat(parts, -1)


def test_a_decoding_step_in_a_graph_appends_and_attends(
    bundle: aot_runtime.Bundle, contracts: dict[str, Contract], caches: dict[str, Any], torch: Any
) -> None:
    """Each replay appends one token to each sequence, where the one before it ended, and attends to all of them."""
    bundle.preload(0)
    new = torch.randn(3, BATCH, 1, HEADS, DIM, device="cuda").to(torch.bfloat16)
    q, k, v = new[0], new[1, :, :, :KV_HEADS], new[2, :, :, :KV_HEADS]
    out, lengths = torch.empty_like(q), ints(torch, (0, 15, 16, 100, 1000))
    keys, values, pages = caches["k_cache"], caches["v_cache"], caches["pages"]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        lengths.add_(1)
        bundle["cache_append"](k, v, keys, values, lengths, keys, values, pages)
        bundle["attention_decode"](q, keys, values, lengths, out, SCALE, pages)
    for step in range(1, 20):
        new.normal_()
        graph.replay()
        torch.cuda.synchronize()
        assert lengths.tolist() == [length + step for length in (0, 15, 16, 100, 1000)]
        for i, last in enumerate((lengths - 1).tolist()):
            at = (pages[i, last // PAGE].long(), last % PAGE)
            assert torch.equal(keys[at], k[i, 0]) and torch.equal(values[at], v[i, 0])
        expected = contracts["attention_decode"].reference(q=q, lengths=lengths, scale=SCALE, **caches)
        assert compare(out, expected)[0] == "", step


def test_appending_leaves_the_rest_of_a_cache_alone(
    bundle: aot_runtime.Bundle, contracts: dict[str, Contract], caches: dict[str, Any], torch: Any
) -> None:
    k, v = torch.randn(2, BATCH, 4, KV_HEADS, DIM, device="cuda").to(torch.bfloat16).unbind(0)
    lengths = ints(torch, (4, 2, 16, 1281, 40))
    before = [caches[name].clone() for name in ("k_cache", "v_cache")]
    call = {"k": k, "v": v, "lengths": lengths, **caches}
    bundle["cache_append"](**call, k_out=caches["k_cache"], v_out=caches["v_cache"])
    torch.cuda.synchronize()
    expected = contracts["cache_append"].reference(**{**call, "k_cache": before[0], "v_cache": before[1]})
    for name, old, new in zip(("k_cache", "v_cache"), before, expected, strict=True):
        assert torch.equal(caches[name], torch.where(new.isnan(), old.double(), new).to(old.dtype))


@pytest.mark.parametrize("right", [0, -1])
def test_a_graph_of_prompts_stays_right_when_sequences_change(
    bundle: aot_runtime.Bundle, contracts: dict[str, Contract], torch: Any, right: int
) -> None:
    """Tiles are drawn by tickets, which each replay must find at zero."""
    if "attention" not in bundle.kernels:
        pytest.skip(f"the bundle at {bundle.path} has no `attention`: build it with --family attention")
    bundle.preload(0)
    q, k, v = (torch.randn(2000, heads, DIM, device="cuda").to(torch.bfloat16) for heads in (HEADS, KV_HEADS, KV_HEADS))
    out, starts = torch.empty_like(q), ints(torch, (0, 100, 1100, 1100, 2000))
    call = {"q": q, "k": k, "v": v, "scale": SCALE, "right": right, "q_starts": starts, "k_starts": starts, "lse": None}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        bundle["attention"](**call, out=out)
    for replay in ((0, 100, 1100, 1100, 2000), (0, 0, 0, 0, 2000), (0, 1, 2, 1999, 2000), (0, 500, 1000, 1500, 2000)):
        starts.copy_(ints(torch, replay))
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert compare(out, contracts["attention"].reference(**call))[0] == "", replay


def test_a_graph_of_chunks_stays_right_when_lengths_and_pages_change(
    bundle: aot_runtime.Bundle, contracts: dict[str, Contract], caches: dict[str, Any], torch: Any
) -> None:
    """Several tokens of each sequence against pages; where chunks begin and how long sequences are is on the device."""
    if "attention" not in bundle.kernels:
        pytest.skip(f"the bundle at {bundle.path} has no `attention`: build it with --family attention")
    bundle.preload(0)
    q = torch.randn(500, HEADS, DIM, device="cuda").to(torch.bfloat16)
    out, starts, lengths = torch.empty_like(q), ints(torch, (0, 100, 200, 300, 400, 500)), ints(torch, (640,) * BATCH)
    cached = {"k": caches["k_cache"], "v": caches["v_cache"], "pages": caches["pages"], "lengths": lengths}
    call = {"q": q, **cached, "scale": SCALE, "right": 0, "q_starts": starts, "lse": None}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        bundle["attention"](**call, out=out)
    for replay in REPLAYS:
        lengths.copy_(ints(torch, replay))
        starts[1:-1].copy_(torch.randint(0, 501, (BATCH - 1,), device="cuda").sort().values)
        caches["pages"].copy_(torch.randperm(BATCH * EACH, device="cuda").view(BATCH, EACH))
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        seen = {**call, "lengths": lengths.clamp(0, EACH * PAGE)}
        assert compare(out, contracts["attention"].reference(**seen))[0] == "", replay
