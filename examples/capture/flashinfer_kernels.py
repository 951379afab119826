"""What an engine calls of FlashInfer's CuTe DSL kernels on Hopper: norms, quantizing norms, gated delta rule decoding.

    python -m aot capture examples/capture/flashinfer_kernels.py --arch sm90 --name flashinfer

Tried with flashinfer-python 0.7.2.post1 and CuTe DSL 4.8.1. The script is a program too: on a GPU it runs the kernels.
"""

import flashinfer
import torch
from flashinfer.gdn_decode import gated_delta_rule_decode_pretranspose

HIDDEN = 4096
ROWS = 128


def norms(dtype):
    x = torch.randn(ROWS, HIDDEN, dtype=dtype, device="cuda")
    residual, weight = torch.randn_like(x), torch.randn(HIDDEN, dtype=dtype, device="cuda")
    yield flashinfer.norm.rmsnorm(x, weight)
    yield flashinfer.norm.gemma_rmsnorm(x, weight)
    flashinfer.norm.fused_add_rmsnorm(x, residual, weight)
    yield x
    flashinfer.norm.gemma_fused_add_rmsnorm(x, residual, weight)
    yield x
    gamma, beta = (torch.randn(HIDDEN, dtype=torch.float32, device="cuda") for _ in range(2))
    if dtype == torch.bfloat16:
        yield flashinfer.norm.layernorm(x, gamma, beta)
    scale = torch.ones(1, dtype=torch.float32, device="cuda")
    quantized = torch.empty_like(x, dtype=torch.float8_e4m3fn)
    flashinfer.norm.rmsnorm_quant(quantized, x, weight, scale)
    yield quantized
    heads = torch.randn(ROWS, 32, 128, dtype=dtype, device="cuda")
    yield flashinfer.norm.rmsnorm(heads, torch.randn(128, dtype=dtype, device="cuda"))


def gated_delta_rule(batch):
    """A step of decoding: the state of each sequence is updated in place."""
    heads, value_heads, width = 16, 32, 128
    of = lambda *shape, dtype=torch.bfloat16: torch.randn(*shape, dtype=dtype, device="cuda")  # noqa: E731
    q, k, v = of(batch, 1, heads, width), of(batch, 1, heads, width), of(batch, 1, value_heads, width)
    state = of(batch, value_heads, width, width, dtype=torch.float32)
    a_log, dt_bias = of(value_heads, dtype=torch.float32), of(value_heads, dtype=torch.float32)
    out, _ = gated_delta_rule_decode_pretranspose(
        q, k, v, state, a_log, of(batch, 1, value_heads), dt_bias, of(batch, 1, value_heads), backend="flashinfer"
    )
    yield out
    yield state


def results():
    """Everything that the kernels compute, from the same inputs each time."""
    torch.manual_seed(0)
    for dtype in (torch.bfloat16, torch.float16):
        yield from norms(dtype)
    for batch in (1, 64):
        yield from gated_delta_rule(batch)


if __name__ == "__main__":
    for result in results():
        print(tuple(result.shape), result.dtype)
