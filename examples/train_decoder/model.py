"""A decoder of the Llama kind that can be trained, with its operations from a bundle or from torch.

:class:`Decoder` is the model. What it computes with is an object of its own: :class:`BundleLayers` or :class:`TorchLayers`.
All weights are views of one flat buffer, which an optimizer updates in one launch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

EPS = 1e-6
BASE = 10_000.0  # of the rotations


@dataclass(frozen=True)
class Shape:
    """The sizes of a model. Tokens are bytes."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    feed_forward: int
    head: int = 64  # elements
    vocabulary: int = 256

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names and shapes of all weights, in their order in the buffer."""
        hidden, columns = self.hidden, (self.heads + 2 * self.kv_heads) * self.head
        yield "embedding", (self.vocabulary, hidden)
        for layer in range(self.layers):
            yield f"{layer}.norm", (hidden,)
            yield f"{layer}.qkv", (columns, hidden)
            yield f"{layer}.out", (hidden, self.heads * self.head)
            yield f"{layer}.feed_norm", (hidden,)
            yield f"{layer}.gate_up", (2 * self.feed_forward, hidden)
            yield f"{layer}.down", (hidden, self.feed_forward)
        yield "norm", (hidden,)
        yield "vocabulary", (self.vocabulary, hidden)

    @property
    def parameters(self) -> int:
        return sum(prod(shape) for _, shape in self.tensors())


SHAPES = {
    "tiny": Shape(hidden=256, layers=2, heads=4, kv_heads=2, feed_forward=512),
    "100m": Shape(hidden=768, layers=16, heads=12, kv_heads=4, feed_forward=2048),
    "1b": Shape(hidden=2048, layers=16, heads=32, kv_heads=8, feed_forward=8192),
}


class Layers(Protocol):
    """Operations on rows of all tokens of a batch."""

    def norm(self, x: Tensor, weight: Tensor) -> Tensor: ...

    def add_norm(self, x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The normalized sum, and the sum."""

    def linear(self, x: Tensor, weight: Tensor) -> Tensor: ...

    def gated(self, x: Tensor, weight: Tensor) -> Tensor:
        """Silu of the product with the upper half of the weight, times the product with the lower half."""

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor: ...

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Causal attention. All are batch x tokens x heads x head."""

    def loss(self, logits: Tensor, target: Tensor) -> Tensor: ...


class BundleLayers:
    """The operators that ``aot_runtime.torch.register`` makes of a bundle."""

    def __init__(self, ops: Any) -> None:
        self.ops = ops

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return self.ops.rmsnorm(x, weight, EPS)

    def add_norm(self, x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return self.ops.rmsnorm_residual(x, residual, weight, EPS)

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        return self.ops.gemm(x, weight)

    def gated(self, x: Tensor, weight: Tensor) -> Tensor:
        return self.ops.gemm_gated(x, weight)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return self.ops.rope(x, cos, sin)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, _ = self.ops.attention(q, k, v, q.shape[-1] ** -0.5, right=0)
        return out

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        return self.ops.cross_entropy(logits, target).mean()


class TorchLayers:
    """The same in plain torch."""

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], weight, EPS)

    def add_norm(self, x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        total = x + residual
        return self.norm(total, weight), total

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.linear(x, weight)

    def gated(self, x: Tensor, weight: Tensor) -> Tensor:
        gate, up = functional.linear(x, weight).chunk(2, dim=-1)
        return functional.silu(gate) * up

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x.float().chunk(2, -1)
        cos, sin = cos[:, None], sin[:, None]
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        grouped = q.shape[1] != k.shape[1]
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped).transpose(1, 2)

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(logits.float(), target)


class Decoder:
    """The model. ``loss`` is what a step of training differentiates."""

    def __init__(self, shape: Shape, layers: Layers, batch: int, length: int, seed: int, device: str = "cuda") -> None:
        self.shape, self.layers, self.batch, self.length = shape, layers, batch, length
        sizes = [prod(extents) for _, extents in shape.tensors()]
        self.master = torch.empty(sum(sizes), device=device)
        self.flat = torch.empty_like(self.master, dtype=torch.bfloat16)
        self.ends = torch.tensor(sizes, device=device).cumsum(0)
        self.weights = {
            name: part.view(extents).requires_grad_()
            for (name, extents), part in zip(shape.tensors(), self.flat.split(sizes), strict=True)
        }
        self._initialize(sizes, seed)
        frequencies = BASE ** (-torch.arange(0, shape.head, 2, device=device) / shape.head)
        angles = torch.outer(torch.arange(length, device=device), frequencies).repeat(batch, 1)
        self.cos, self.sin = angles.cos(), angles.sin()

    def _initialize(self, sizes: list[int], seed: int) -> None:
        make = torch.Generator(self.master.device).manual_seed(seed)
        for (_, extents), part in zip(self.shape.tensors(), self.master.split(sizes), strict=True):
            if len(extents) == 1:
                part.fill_(1)
            else:
                part.normal_(std=0.02, generator=make)
        with torch.no_grad():
            self.flat.copy_(self.master)

    def decays(self, decay: float) -> Tensor:
        """How much each tensor decays: norms do not."""
        by_tensor = [decay if len(extents) > 1 else 0.0 for _, extents in self.shape.tensors()]
        return torch.tensor(by_tensor, device=self.master.device)

    def loss(self, tokens: Tensor, target: Tensor) -> Tensor:
        """The mean loss. ``tokens`` and ``target`` are batch x length."""
        layers, weights = self.layers, self.weights
        residual = functional.embedding(tokens.view(-1), weights["embedding"])
        x = layers.norm(residual, weights["0.norm"])
        for layer in range(self.shape.layers):
            x = self._attention(x, layer)
            x, residual = layers.add_norm(x, residual, weights[f"{layer}.feed_norm"])
            x = layers.linear(layers.gated(x, weights[f"{layer}.gate_up"]), weights[f"{layer}.down"])
            following = f"{layer + 1}.norm" if layer + 1 < self.shape.layers else "norm"
            x, residual = layers.add_norm(x, residual, weights[following])
        return layers.loss(layers.linear(x, weights["vocabulary"]), target.view(-1))

    def _attention(self, x: Tensor, layer: int) -> Tensor:
        shape, places = self.shape, (self.batch, self.length)
        sizes = [heads * shape.head for heads in (shape.heads, shape.kv_heads, shape.kv_heads)]
        parts = self.layers.linear(x, self.weights[f"{layer}.qkv"]).split(sizes, -1)
        q, k, v = (part.view(x.shape[0], -1, shape.head) for part in parts)
        q, k = (self.layers.rotate(part, self.cos, self.sin) for part in (q, k))
        out = self.layers.attend(*(part.view(*places, -1, shape.head) for part in (q, k, v)))
        return self.layers.linear(out.reshape(x.shape[0], -1), self.weights[f"{layer}.out"])
