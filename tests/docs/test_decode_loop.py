"""``examples/decode_loop`` without a GPU: with kernels that torch plays on the CPU, it generates the reference's tokens."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
from modules import module_at
from places import PROJECT

try:
    import torch
except ModuleNotFoundError:
    torch = None

pytestmark = pytest.mark.torch
BATCH, STEPS, PAGE = 3, 40, 16


@pytest.fixture(scope="module")
def example() -> ModuleType:
    if torch is None:
        pytest.skip("the example needs torch")
    return module_at("decode_loop_tested", "examples", "decode_loop", "decoder.py")


class Played:
    """The kernels that the example calls, in the order of their parameters, with caches in pages."""

    def __init__(self, example: ModuleType) -> None:
        self.layers, self.rotated = example.TorchLayers(), example.rotated

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def rmsnorm(self, x: Any, weight: Any, out: Any, eps: float) -> None:
        out.copy_(torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps))

    def rmsnorm_residual(self, x: Any, residual: Any, weight: Any, out: Any, total: Any, eps: float) -> None:
        total.copy_(x + residual)
        self.rmsnorm(total, weight, out, eps)

    def gemm(self, a: Any, b: Any, out: Any) -> None:
        torch.matmul(a, b.T, out=out)

    def silu_and_mul(self, x: Any, out: Any) -> None:
        out.copy_(self.layers.gate(x))

    def rope(self, x: Any, cos: Any, sin: Any, out: Any) -> None:
        out.copy_(self.rotated(x, cos[:, None], sin[:, None]))

    def argmax(self, x: Any, out: Any) -> None:
        torch.argmax(x, dim=-1, out=out)

    def cache_append(
        self,
        k: Any,
        v: Any,
        k_cache: Any,
        v_cache: Any,
        lengths: Any,
        k_out: Any,
        v_out: Any,
        pages: Any,
        cos: Any,
        sin: Any,
    ) -> None:
        assert k_out is k_cache and v_out is v_cache
        for i, last in enumerate((lengths - 1).tolist()):
            at = (int(pages[i, last // k_cache.shape[1]]), last % k_cache.shape[1])
            k_cache[at] = self.rotated(k[i, 0], cos[last], sin[last])
            v_cache[at] = v[i, 0]

    def attention_decode(
        self, q: Any, k_cache: Any, v_cache: Any, lengths: Any, out: Any, scale: float, pages: Any
    ) -> None:
        for i, length in enumerate(lengths.tolist()):
            keys, values = (cache[pages[i].long()].flatten(0, 1)[:length] for cache in (k_cache, v_cache))
            own, keys, values = (x.transpose(0, 1) for x in (q[i], keys, values))
            out[i] = torch.nn.functional.scaled_dot_product_attention(
                own, keys, values, scale=scale, enable_gqa=True
            ).transpose(0, 1)


def generate(example: ModuleType, decoder: Any) -> tuple[Any, Any]:
    """The tokens, the first ones included, and the logits of each step."""
    tokens, logits = [decoder.tokens.clone()], []
    for _ in range(STEPS):
        logits.append(decoder.step())
        tokens.append(decoder.tokens.clone())
    return torch.stack(tokens, 1), torch.stack(logits, 1)


@pytest.mark.parametrize("which", ["bundle", "torch's attention", "torch"])
def test_every_token_is_that_of_the_reference(example: ModuleType, which: str) -> None:
    model = example.Model(vocabulary=128, hidden=64, layers=2, heads=4, kv_heads=2, head=16, feed_forward=96)
    options = {"device": "cpu", "dtype": torch.float32}
    weights, start = model.weights(torch.float32, "cpu"), torch.arange(BATCH)
    kernels = Played(example)
    paged = example.PagedAttention(kernels, model, BATCH, STEPS, PAGE, **options)
    plain = example.TorchAttention(model, BATCH, STEPS, **options)
    layers, attention = {
        "bundle": (example.BundleLayers(kernels), paged),
        "torch's attention": (example.BundleLayers(kernels), plain),
        "torch": (example.TorchLayers(), plain),
    }[which]
    tokens, logits = generate(example, example.Decoder(model, weights, layers, attention, start))
    exact = example.reference(model, weights, tokens[:, :-1])
    assert len(tokens.unique()) > 10  # the sequences do not repeat one token
    assert torch.equal(exact.argmax(-1), tokens[:, 1:])
    torch.testing.assert_close(logits, exact, rtol=1e-4, atol=1e-4)


def test_the_benchmark_knows_the_same_decoder() -> None:
    if torch is None:
        pytest.skip("the example needs torch")
    sys.path.insert(0, str(PROJECT / "benchmarks"))
    try:
        benchmark = module_at("decode_loop_benchmark", "benchmarks", "decode_loop.py")
    finally:
        sys.path.remove(str(PROJECT / "benchmarks"))
    assert {"PagedAttention", "TorchAttention", "captured"} <= set(
        vars(benchmark.load_example("decode_loop", "decoder.py"))
    )
