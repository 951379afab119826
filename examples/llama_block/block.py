"""A decoder block as Llama, Mistral and Qwen have it, in plain torch and with the operators of a bundle.

Both use torch's own attention. All else goes through one of two sets of layers: :class:`TorchLayers`, or
:class:`BundleLayers`, which calls kernels of the bundle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

EPS = 1e-6


@dataclass(frozen=True)
class Model:
    """The extents of one block."""

    name: str
    hidden: int
    heads: int
    key_heads: int
    feed_forward: int
    bias: bool = False  # of queries, keys and values
    head: int = 128  # elements per head


class Layers(Protocol):
    def norm(self, x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The normalized sum, and the sum."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor: ...

    def gated(self, x: Tensor, weight: Tensor) -> Tensor:
        """Of the product with ``weight``: silu of the left half of each row, times the right half."""


class TorchLayers:
    """What a torch user writes."""

    def norm(self, x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        total = x + residual
        return functional.rms_norm(total, total.shape[-1:], weight, EPS), total

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return functional.linear(x, weight, bias)

    def gated(self, x: Tensor, weight: Tensor) -> Tensor:
        gate, up = functional.linear(x, weight).chunk(2, dim=-1)
        return functional.silu(gate) * up


class BundleLayers:
    """The same with what ``aot_runtime.torch.register`` returned. Epilogues of the GEMMs add the bias and do the gating."""

    def __init__(self, ops: Any) -> None:
        self.ops = ops

    def norm(self, x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        normed, total = self.ops.rmsnorm_residual(x, residual, weight, EPS)
        return normed, total

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        product: Tensor = self.ops.gemm(x, weight, bias)
        return product

    def gated(self, x: Tensor, weight: Tensor) -> Tensor:
        product: Tensor = self.ops.gemm_gated(x, weight)
        return product


class Block(nn.Module):
    """``x`` and ``residual`` have a row per token: ``batch`` sequences of the same length, one after another."""

    def __init__(self, model: Model, layers: Layers, batch: int = 1, **options: Any) -> None:
        super().__init__()
        self.model, self.layers, self.batch = model, layers, batch
        heads = model.heads + 2 * model.key_heads

        def weight(rows: int, columns: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(rows, columns, **options) * columns**-0.5, requires_grad=False)

        def norm() -> nn.Parameter:
            return nn.Parameter(torch.rand(model.hidden, **options) + 0.5, requires_grad=False)

        self.attention_norm, self.feed_forward_norm = norm(), norm()
        self.qkv = weight(heads * model.head, model.hidden)
        bias = torch.randn(heads * model.head, **options) if model.bias else None
        self.qkv_bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.out = weight(model.hidden, model.heads * model.head)
        self.gate_up = weight(2 * model.feed_forward, model.hidden)
        self.down = weight(model.hidden, model.feed_forward)

    def forward(self, x: Tensor, residual: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
        layers = self.layers
        normed, residual = layers.norm(x, residual, self.attention_norm)
        attended = self.attend(layers.linear(normed, self.qkv, self.qkv_bias), cosine, sine)
        normed, residual = layers.norm(layers.linear(attended, self.out), residual, self.feed_forward_norm)
        return layers.linear(layers.gated(normed, self.gate_up), self.down), residual

    def attend(self, qkv: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Causal attention with rotated queries and keys, by torch for both sets of layers."""
        model = self.model
        heads = qkv.view(self.batch, qkv.shape[0] // self.batch, -1, model.head).transpose(1, 2)
        queries, keys, values = heads.split([model.heads, model.key_heads, model.key_heads], dim=1)
        attended = functional.scaled_dot_product_attention(
            rotate(queries, cosine, sine), rotate(keys, cosine, sine), values, is_causal=True, enable_gqa=True
        )
        return attended.transpose(1, 2).reshape(qkv.shape[0], -1)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-right, left), dim=-1) * sine


def rotations(length: int, head: int, **options: Any) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the positions 0 to ``length``."""
    device = options.get("device")
    frequencies = 10_000.0 ** (-torch.arange(0, head, 2, device=device) / head)
    angles = torch.outer(torch.arange(length, device=device), frequencies).repeat(1, 2)
    return angles.cos().to(options.get("dtype")), angles.sin().to(options.get("dtype"))


def inputs(model: Model, batch: int, length: int, **options: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``x``, ``residual``, and the rotations."""
    tokens = (batch * length, model.hidden)
    x, residual = torch.randn(*tokens, **options), torch.randn(*tokens, **options)
    return x, residual, *rotations(length, model.head, **options)


def captured(function: Callable[..., Any], arguments: Sequence[Tensor]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A CUDA graph of a call, and the tensors that each replay writes."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            function(*arguments)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = function(*arguments)
    return graph, results
