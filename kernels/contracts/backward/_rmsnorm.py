"""The gradients of rows that are scaled to a root mean square of one: of the norm alone, and with a residual."""

from __future__ import annotations

from typing import Any

from ._gradients import group_sums


def rmsnorm_gradients(grad_out: Any, x: Any, weight: Any, eps: float = 1e-6) -> Any:
    """By rows and by the weight, then what the first stage hands to the second one."""
    grad_out, x, weight = grad_out.double(), x.double(), weight.double()
    factor = (x.square().mean(-1, keepdim=True) + eps).rsqrt()
    weighted = grad_out * weight
    mean = (weighted * x).mean(-1, keepdim=True) * factor * factor
    by_weight = grad_out * x * factor
    return factor * (weighted - x * mean), by_weight.sum(0), factor.squeeze(-1), group_sums(by_weight)


def rmsnorm_autograd(grad_out: Any, x: Any, weight: Any, eps: float = 1e-6) -> Any:
    """Torch's autograd, with the forward that it needs."""
    import torch

    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    with torch.enable_grad():
        out = torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)
    return torch.autograd.grad(out, (x, weight), grad_out)
