"""A small decoder that generates tokens with paged caches: the model, its layers through a bundle, and a reference.

The model is of the Llama kind, with random weights. :class:`Decoder` runs one step, which appends one token to each
sequence. Its layers come from the bundle (:class:`BundleLayers`) or from torch (:class:`TorchLayers`), and its attention
from a paged cache (:class:`PagedAttention`) or from torch (:class:`TorchAttention`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

EPS = 1e-6
BASE = 10_000.0  # of the rotations


@dataclass(frozen=True)
class Model:
    vocabulary: int = 1024
    hidden: int = 512
    layers: int = 4
    heads: int = 8
    kv_heads: int = 2
    head: int = 128  # elements
    feed_forward: int = 1536

    @property
    def sizes(self) -> list[int]:
        """Columns of queries, keys and values in one product."""
        return [self.heads * self.head, self.kv_heads * self.head, self.kv_heads * self.head]

    def weights(self, dtype: torch.dtype, device: str, seed: int = 0) -> dict[str, Any]:
        make = torch.Generator(device).manual_seed(seed)

        def matrix(rows: int, columns: int) -> Tensor:
            values = torch.randn(rows, columns, device=device, generator=make) * columns**-0.5
            return values.to(dtype)

        def norm() -> Tensor:
            return (torch.rand(self.hidden, device=device, generator=make) + 0.5).to(dtype)

        def layer() -> dict[str, Tensor]:
            return {
                "norm": norm(),
                "qkv": matrix(sum(self.sizes), self.hidden),
                "out": matrix(self.hidden, self.sizes[0]),
                "feed_norm": norm(),
                "gate_up": matrix(2 * self.feed_forward, self.hidden),
                "down": matrix(self.hidden, self.feed_forward),
            }

        return {
            "embedding": matrix(self.vocabulary, self.hidden) * self.hidden**0.5,
            "layers": [layer() for _ in range(self.layers)],
            "norm": norm(),
            "vocabulary": matrix(self.vocabulary, self.hidden),
        }

    def angles(self, positions: int, device: str) -> tuple[Tensor, Tensor]:
        """Cosines and sines by position, for each element of half a head."""
        frequencies = BASE ** (-torch.arange(0, self.head, 2, device=device) / self.head)
        angles = torch.outer(torch.arange(positions, device=device), frequencies)
        return angles.cos(), angles.sin()


class Layers(Protocol):
    def norm(self, x: Tensor, weight: Tensor) -> Tensor: ...

    def add_norm(self, x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The normalized sum, and the sum."""

    def linear(self, x: Tensor, weight: Tensor) -> Tensor: ...

    def gate(self, x: Tensor) -> Tensor:
        """Silu of the left half of each row, times the right half."""

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor: ...

    def choose(self, logits: Tensor, tokens: Tensor) -> None:
        """Write the most likely token of each row into ``tokens``."""


class Attention(Protocol):
    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        """Append ``k`` and ``v``, and attend with ``q``. Keys are not rotated yet. All are batch x heads x head."""


class BundleLayers:
    def __init__(self, kernels: Any) -> None:
        self.kernels = kernels

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        out = torch.empty_like(x)
        self.kernels["rmsnorm"](x, weight, out, EPS)
        return out

    def add_norm(self, x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        out, total = torch.empty_like(x), torch.empty_like(x)
        self.kernels["rmsnorm_residual"](x, residual, weight, out, total, EPS)
        return out, total

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        out = x.new_empty(x.shape[0], weight.shape[0])
        self.kernels["gemm"](x, weight, out)
        return out

    def gate(self, x: Tensor) -> Tensor:
        out = x.new_empty(x.shape[0], x.shape[1] // 2)
        self.kernels["silu_and_mul"](x, out)
        return out

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        self.kernels["rope"](x, cos, sin, out)
        return out

    def choose(self, logits: Tensor, tokens: Tensor) -> None:
        self.kernels["argmax"](logits, tokens)


class TorchLayers:
    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], weight, EPS)

    def add_norm(self, x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        total = x + residual
        return self.norm(total, weight), total

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.linear(x, weight)

    def gate(self, x: Tensor) -> Tensor:
        gate, up = x.chunk(2, dim=-1)
        return functional.silu(gate) * up

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return rotated(x, cos[:, None], sin[:, None]).to(x.dtype)

    def choose(self, logits: Tensor, tokens: Tensor) -> None:
        tokens.copy_(logits.argmax(-1))


class PagedAttention:
    """Caches in pages that any sequence may have, through ``cache_append`` and ``attention_decode``."""

    def __init__(self, kernels: Any, model: Model, batch: int, capacity: int, page: int = 16, **options: Any) -> None:
        each = -(-capacity // page)
        shape = (batch * each, page, model.kv_heads, model.head)
        # What a page contains before its first token must not matter.
        self.caches = [torch.full((2, *shape), torch.nan, **options).unbind(0) for _ in range(model.layers)]
        order = torch.randperm(batch * each, generator=torch.Generator().manual_seed(1))
        self.pages = order.view(batch, each).to(options["device"], torch.int32)
        self.angles = model.angles(each * page, options["device"])
        self.kernels, self.scale = kernels, model.head**-0.5

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        keys, values = self.caches[layer]
        q, k, v = q[:, None], k[:, None], v[:, None]
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        self.kernels["cache_append"](k, v, keys, values, lengths, keys, values, self.pages, *self.angles)
        self.kernels["attention_decode"](q, keys, values, lengths, out, self.scale, self.pages)
        return out[:, 0]


class TorchAttention:
    """A cache of fixed size, of which torch's attention sees the first tokens, by a mask: that can be captured too."""

    def __init__(self, model: Model, batch: int, capacity: int, **options: Any) -> None:
        shape = (model.layers, 2, batch, capacity, model.kv_heads, model.head)
        self.cache = torch.zeros(shape, **options)
        self.angles = model.angles(capacity, options["device"])
        self.places = torch.arange(capacity, device=options["device"])
        self.batch = torch.arange(batch, device=options["device"])
        self.scale = model.head**-0.5

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        last = lengths.long() - 1
        cos, sin = (table[last][:, None] for table in self.angles)
        self.cache[layer, 0].index_put_((self.batch, last), rotated(k, cos, sin).to(k.dtype))
        self.cache[layer, 1].index_put_((self.batch, last), v)
        keys, values = self.cache[layer].transpose(2, 3).unbind(0)
        seen = (self.places < lengths[:, None])[:, None, None]
        out = functional.scaled_dot_product_attention(
            q[:, :, None], keys, values, attn_mask=seen, scale=self.scale, enable_gqa=True
        )
        return out[:, :, 0]


class Decoder:
    """``step`` appends ``tokens`` to all sequences and replaces them by the next ones. A CUDA graph can capture it."""

    def __init__(
        self, model: Model, weights: dict[str, Any], layers: Layers, attention: Attention, tokens: Tensor
    ) -> None:
        self.model, self.weights, self.layers, self.attention = model, weights, layers, attention
        self.tokens = tokens.clone()
        self.lengths = torch.zeros(len(tokens), dtype=torch.int32, device=tokens.device)
        positions = attention.angles[0].shape[0]
        self.angles = model.angles(positions, str(tokens.device))

    def step(self) -> Tensor:
        """Everything but the look-up of rows by tokens and positions goes through the layers."""
        layers, weights = self.layers, self.weights
        last = self.lengths.long()
        self.lengths.add_(1)
        cos, sin = (table.index_select(0, last) for table in self.angles)
        residual = weights["embedding"].index_select(0, self.tokens)
        normed = layers.norm(residual, weights["layers"][0]["norm"])
        following = [layer["norm"] for layer in weights["layers"][1:]] + [weights["norm"]]
        for index, (layer, norm) in enumerate(zip(weights["layers"], following, strict=True)):
            heads = layers.linear(normed, layer["qkv"]).split(self.model.sizes, dim=-1)
            q, k, v = (part.unflatten(-1, (-1, self.model.head)) for part in heads)
            attended = self.attention.attend(index, layers.rotate(q, cos, sin), k, v, self.lengths)
            projected = layers.linear(attended.flatten(1), layer["out"])
            normed, residual = layers.add_norm(projected, residual, layer["feed_norm"])
            fed = layers.linear(layers.gate(layers.linear(normed, layer["gate_up"])), layer["down"])
            normed, residual = layers.add_norm(fed, residual, norm)
        logits = layers.linear(normed, weights["vocabulary"])
        layers.choose(logits, self.tokens)
        return logits


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.float().chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


def reference(model: Model, weights: dict[str, Any], tokens: Tensor) -> Tensor:
    """The logits of whole sequences in f32, by plain torch without a cache: batch x positions x vocabulary."""
    layers = TorchLayers()
    cos, sin = (table[:, None] for table in model.angles(tokens.shape[1], str(tokens.device)))
    residual = functional.embedding(tokens, weights["embedding"].float())
    for layer in weights["layers"]:
        normed = layers.norm(residual, layer["norm"].float())
        heads = layers.linear(normed, layer["qkv"].float()).split(model.sizes, dim=-1)
        q, k, v = (part.unflatten(-1, (-1, model.head)) for part in heads)
        q, k, v = (x.transpose(1, 2) for x in (rotated(q, cos, sin), rotated(k, cos, sin), v))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        residual = residual + layers.linear(attended.transpose(1, 2).flatten(2), layer["out"].float())
        normed = layers.norm(residual, layer["feed_norm"].float())
        residual = residual + layers.linear(
            layers.gate(layers.linear(normed, layer["gate_up"].float())), layer["down"].float()
        )
    return layers.linear(layers.norm(residual, weights["norm"].float()), weights["vocabulary"].float())


def captured(decoder: Decoder) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """One step as a CUDA graph, and the logits that each replay writes. The decoder is at its beginning again."""
    tokens = decoder.tokens.clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        decoder.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = decoder.step()
    decoder.tokens.copy_(tokens)
    decoder.lengths.zero_()
    return graph, logits
