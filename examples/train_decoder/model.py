"""A decoder of the Llama kind that can be trained, with its operations from a bundle or from torch.

:class:`Decoder` is the model. What it computes with is an object of its own: :class:`BundleLayers` or :class:`TorchLayers`.
All weights are views of one flat buffer, which an optimizer updates in one launch. So are the places of their gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, Protocol

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


class Heads(NamedTuple):
    """How many sequences there are, and how many heads of queries, and of keys and values, a token has."""

    batch: int
    queries: int
    keys: int

    def parts(self, qkv: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values: batch x tokens x heads x head."""
        every = qkv.view(self.batch, qkv.shape[0] // self.batch, self.queries + 2 * self.keys, -1)
        return every.split((self.queries, self.keys, self.keys), 2)

    def rotated(self, qkv: Tensor) -> Tensor:
        """Queries and keys: rows x heads x head."""
        return qkv.view(qkv.shape[0], self.queries + 2 * self.keys, -1)[:, : self.queries + self.keys]


class Rotation(NamedTuple):
    """Of each row, for each element of half a head."""

    cos: Tensor
    sin: Tensor
    back: Tensor  # the negative of ``sin``, which rotates back


class Layers(Protocol):
    """Operations on rows of all tokens of a batch."""

    def norm(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The normalized rows, and the rows as they are."""

    def linear(self, x: Tensor, weight: Tensor, residual: Tensor | None = None) -> Tensor:
        """A product, added to ``residual`` if there is one."""

    def feed_forward(self, x: Tensor, gate_up: Tensor, down: Tensor, residual: Tensor) -> Tensor:
        """Silu of the product with the upper half of ``gate_up``, times that with the lower half; ``down`` of it is added."""

    def attend(self, x: Tensor, weight: Tensor, heads: Heads, rotation: Rotation) -> Tensor:
        """Causal attention of rotated queries and keys. A row of the product has all heads of queries, of keys, and of values."""

    def loss(self, logits: Tensor, target: Tensor) -> Tensor: ...


class BundleLayers:
    """The operators that ``aot_runtime.torch.register`` makes of a bundle."""

    def __init__(self, ops: Any) -> None:
        self.ops = ops

    def norm(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return _Norm.apply(x, weight, self.ops)

    def linear(self, x: Tensor, weight: Tensor, residual: Tensor | None = None) -> Tensor:
        return _Linear.apply(x, weight, residual, self.ops)

    def feed_forward(self, x: Tensor, gate_up: Tensor, down: Tensor, residual: Tensor) -> Tensor:
        return _FeedForward.apply(x, gate_up, down, residual, self.ops)

    def attend(self, x: Tensor, weight: Tensor, heads: Heads, rotation: Rotation) -> Tensor:
        return _Attention.apply(x, weight, heads, rotation, self.ops)

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        return self.ops.cross_entropy(logits, target).mean()


class _Norm(torch.autograd.Function):
    """Rows go two ways, to be normalized and as they are. One kernel adds the gradients of both."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, ops: Any) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, weight)
        ctx.set_materialize_grads(False)
        ctx.ops = ops
        return ops.rmsnorm(x, weight, EPS), x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, passed: Tensor | None) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        if passed is None:  # nobody reads what the last layer adds to, but the last norm
            by_x, by_weight, *_ = ctx.ops.rmsnorm_backward(grad, x, weight, EPS)
        else:
            by_x, by_weight, *_ = ctx.ops.rmsnorm_residual_backward(grad, passed, x, weight, EPS)
        return by_x, by_weight, None


class _Linear(torch.autograd.Function):
    """A product. The gradient of the weight is written to its place beside all others, and not to ``weight.grad``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, residual: Tensor | None, ops: Any) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.ops, ctx.gradient = ops, weight.gradient
        return ops.gemm(x, weight) if residual is None else ops.gemm_add(x, weight, residual)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        ctx.ops.gemm.out(grad.mT, x.mT, out=ctx.gradient)
        return ctx.ops.gemm(grad, weight.mT), None, grad if ctx.needs_input_grad[2] else None, None


class _Attention(torch.autograd.Function):
    """The product rotates queries and keys, and gradients are written side by side, so that nothing is copied.

    The gradient of the weight is written as by :class:`_Linear`.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, heads: Heads, rotation: Rotation, ops: Any) -> Tensor:
        qkv = ops.gemm_rope(x, weight, rotation.cos, rotation.sin, heads.queries + heads.keys)
        q, k, v = heads.parts(qkv)
        out, lse = ops.attention(q, k, v, q.shape[-1] ** -0.5, right=0)
        ctx.save_for_backward(x, weight, qkv, out, lse)
        ctx.heads, ctx.rotation, ctx.ops, ctx.gradient = heads, rotation, ops, weight.gradient
        return out.view(qkv.shape[0], -1)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, qkv, out, lse = ctx.saved_tensors
        grad = torch.empty_like(qkv)
        q, k, v = ctx.heads.parts(qkv)
        grad_q, grad_k, grad_v = ctx.heads.parts(grad)
        ctx.ops.attention_backward.out(
            grad_out.view(out.shape), q, k, v, out, lse, q.shape[-1] ** -0.5, right=0, grad_q=grad_q, grad_k=grad_k,
            grad_v=grad_v, grad_sinks=lse.new_empty(ctx.heads.queries),
        )  # fmt: skip
        rotated = ctx.heads.rotated(grad)
        ctx.ops.rope.out(rotated, ctx.rotation.cos, ctx.rotation.back, out=rotated)
        ctx.ops.gemm.out(grad.mT, x.mT, out=ctx.gradient)
        return ctx.ops.gemm(grad, weight.mT), None, None, None, None


class _FeedForward(torch.autograd.Function):
    """The gradient of the gated rows goes straight into that of their product, and is never in memory itself.

    Gradients of weights are written as by :class:`_Linear`.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, gate_up: Tensor, down: Tensor, residual: Tensor, ops: Any) -> Tensor:
        gated, product = ops.gemm_gated_product(x, gate_up)
        ctx.save_for_backward(x, gate_up, down, gated, product)
        ctx.ops, ctx.gradients = ops, (gate_up.gradient, down.gradient)
        return ops.gemm_add(gated, down, residual)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, gate_up, down, gated, product = ctx.saved_tensors
        by_product = ctx.ops.gemm_silu_and_mul_backward(grad, down.mT, product)
        ctx.ops.gemm.out(by_product.mT, x.mT, out=ctx.gradients[0])
        ctx.ops.gemm.out(grad.mT, gated.mT, out=ctx.gradients[1])
        return ctx.ops.gemm(by_product, gate_up.mT), None, None, grad, None


class TorchLayers:
    """The same in plain torch."""

    def norm(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return functional.rms_norm(x, x.shape[-1:], weight, EPS), x

    def linear(self, x: Tensor, weight: Tensor, residual: Tensor | None = None) -> Tensor:
        product = functional.linear(x, weight)
        return product if residual is None else product + residual

    def feed_forward(self, x: Tensor, gate_up: Tensor, down: Tensor, residual: Tensor) -> Tensor:
        gate, up = functional.linear(x, gate_up).chunk(2, dim=-1)
        return self.linear(functional.silu(gate) * up, down, residual)

    def attend(self, x: Tensor, weight: Tensor, heads: Heads, rotation: Rotation) -> Tensor:
        q, k, v = heads.parts(functional.linear(x, weight))
        q, k = (self._rotate(x, rotation) for x in (q, k))
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        grouped = heads.queries != heads.keys
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        return out.transpose(1, 2).reshape(x.shape[0], -1)

    def _rotate(self, x: Tensor, rotation: Rotation) -> Tensor:
        first, second = x.float().chunk(2, -1)
        cos, sin = (angles.view(*x.shape[:2], 1, -1) for angles in (rotation.cos, rotation.sin))
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(logits.float(), target)


class Decoder:
    """The model. ``loss`` is what a step of training differentiates."""

    def __init__(self, shape: Shape, layers: Layers, batch: int, length: int, seed: int, device: str = "cuda") -> None:
        self.shape, self.layers, self.batch, self.length = shape, layers, batch, length
        sizes = [prod(extents) for _, extents in shape.tensors()]
        self.master = torch.empty(sum(sizes), device=device)
        self.flat = torch.empty_like(self.master, dtype=torch.bfloat16)
        self.grad = torch.zeros_like(self.flat)
        self.ends = torch.tensor(sizes, device=device).cumsum(0)
        self.weights = {
            name: part.view(extents).requires_grad_()
            for (name, extents), part in zip(shape.tensors(), self.flat.split(sizes), strict=True)
        }
        for weight, part in zip(self.weights.values(), self.grad.split(sizes), strict=True):
            weight.gradient = part.view(weight.shape)
        self._initialize(sizes, seed)
        frequencies = BASE ** (-torch.arange(0, shape.head, 2, device=device) / shape.head)
        angles = torch.outer(torch.arange(length, device=device), frequencies).repeat(batch, 1)
        self.heads = Heads(batch, shape.heads, shape.kv_heads)
        self.rotation = Rotation(angles.cos(), angles.sin(), -angles.sin())

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
        for layer in range(self.shape.layers):
            x, residual = layers.norm(residual, weights[f"{layer}.norm"])
            x = layers.attend(x, weights[f"{layer}.qkv"], self.heads, self.rotation)
            residual = layers.linear(x, weights[f"{layer}.out"], residual)
            x, residual = layers.norm(residual, weights[f"{layer}.feed_norm"])
            residual = layers.feed_forward(x, weights[f"{layer}.gate_up"], weights[f"{layer}.down"], residual)
        x, _ = layers.norm(residual, weights["norm"])
        return layers.loss(layers.linear(x, weights["vocabulary"]), target.view(-1))
