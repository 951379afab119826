"""AdamW over the flat buffers of a model: gradients are clipped by their norm, weights are masters rounded to bf16."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from model import Decoder
from torch import Tensor

BETAS, EPS = (0.9, 0.95), 1e-8


@dataclass(frozen=True)
class Schedule:
    """A learning rate that rises linearly, then falls along a cosine to a tenth."""

    peak: float
    steps: int
    rising: int = 20

    def rate(self, step: int) -> float:
        import math

        if step <= self.rising:
            return self.peak * step / self.rising
        part = (step - self.rising) / max(self.steps - self.rising, 1)
        return self.peak * (0.55 + 0.45 * math.cos(math.pi * min(part, 1.0)))


class AdamW:
    """The state of the optimizer. The rate and the number of the step are on the device, so that CUDA graphs read them."""

    def __init__(self, model: Decoder, decay: float, clip: float = 1.0) -> None:
        self.model, self.clip, self.decays = model, clip, model.decays(decay)
        self.grad = model.grad
        self.mean, self.square = torch.zeros_like(model.master), torch.zeros_like(model.master)
        self.rate = torch.zeros(1, device=model.master.device)
        self.step = torch.zeros(1, dtype=torch.int64, device=model.master.device)

    def collect(self) -> Tensor:
        """Put the gradients side by side that are not there already; return what all are scaled by."""
        weights = self.model.weights.values()
        apart = [weight for weight in weights if weight.grad is not None]
        if len(apart) == len(weights):
            torch.cat([weight.grad.reshape(-1) for weight in weights], out=self.grad)
        else:
            for weight in apart:
                weight.gradient.copy_(weight.grad)
        for weight in apart:
            weight.grad = None
        norm = torch.linalg.vector_norm(self.grad, dtype=torch.float32)
        return (self.clip / (norm + 1e-6)).clamp(max=1.0).view(1)

    def state(self) -> dict[str, Tensor]:
        return {"master": self.model.master, "mean": self.mean, "square": self.square, "step": self.step}

    def load(self, state: dict[str, Tensor]) -> None:
        for name, tensor in self.state().items():
            tensor.copy_(state[name])
        with torch.no_grad():
            self.model.flat.copy_(self.model.master)

    def update(self) -> None:
        raise NotImplementedError


class BundleAdamW(AdamW):
    """One launch of the bundle's kernel."""

    def __init__(self, model: Decoder, decay: float, ops: Any) -> None:
        super().__init__(model, decay)
        self.ops = ops

    @torch.no_grad()
    def update(self) -> None:
        model, scale = self.model, self.collect()
        self.step += 1
        self.ops.adamw.out(
            self.grad, model.master, self.mean, self.square, model.ends, self.decays, self.rate, self.step, scale,
            *BETAS, EPS, weight=model.flat.detach(), master_out=model.master, mean_out=self.mean, square_out=self.square,
        )  # fmt: skip


class TorchAdamW(AdamW):
    """The same in plain torch; ``compiled`` fuses it."""

    def __init__(self, model: Decoder, decay: float, compiled: bool) -> None:
        super().__init__(model, decay)
        self.each = torch.repeat_interleave(self.decays, model.ends.diff(prepend=model.ends.new_zeros(1)))
        self.apply = torch.compile(_adamw) if compiled else _adamw

    @torch.no_grad()
    def update(self) -> None:
        model, scale = self.model, self.collect()
        self.step += 1
        self.apply(
            self.grad, model.master, self.mean, self.square, self.each, self.rate, self.step, scale, model.flat.detach()
        )


def _adamw(
    grad: Tensor, master: Tensor, mean: Tensor, square: Tensor, decay: Tensor, rate: Tensor, step: Tensor, scale: Tensor,
    weight: Tensor,
) -> None:  # fmt: skip
    grad = grad.float() * scale
    mean.lerp_(grad, 1 - BETAS[0])
    square.mul_(BETAS[1]).add_(grad * grad * (1 - BETAS[1]))
    update = (mean / (1 - BETAS[0] ** step)) / ((square / (1 - BETAS[1] ** step)).sqrt() + EPS)
    master.sub_(rate * (update + decay * master))
    weight.copy_(master)
