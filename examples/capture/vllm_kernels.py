"""What vLLM calls of its own CuTe DSL kernels on Hopper: low-latency and skinny GEMMs, norms, the end of a mixture of experts.

    python -m aot capture examples/capture/vllm_kernels.py --arch sm90 --name vllm

Tried with vLLM 0.33.0 and CuTe DSL 4.8.1. The script is a program too: on a GPU it runs the kernels.
"""

import torch
from vllm.model_executor.kernels.linear.cute_dsl.ll_bf16 import ll_bf16_gemm
from vllm.model_executor.kernels.linear.cute_dsl.ll_fp32w import LL_FP32W_GEMM_KERNEL
from vllm.model_executor.kernels.linear.cute_dsl.skinny_gemm import shape_dynamic_skinny_gemm
from vllm.models.muse_spark.nvidia.ops.cute_dsl.moe_finalize_rmsnorm import moe_finalize_with_rmsnorm
from vllm.models.muse_spark.nvidia.ops.cute_dsl.qk_norm import qk_norm
from vllm.models.step5.nvidia.ops.rms_norm import rms_norm

HIDDEN, EXPERTS, HEADS, WIDTH = 4096, 256, 32, 128


def drawn(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, dtype=dtype, device="cuda")


def products(tokens):
    """The products of decoding: few tokens with the router's weights, or with those of a projection."""
    x = drawn(tokens, HIDDEN)
    yield ll_bf16_gemm(x, drawn(EXPERTS, HIDDEN))
    yield LL_FP32W_GEMM_KERNEL(x, drawn(EXPERTS, HIDDEN, dtype=torch.float32))
    weight, residual = drawn(HIDDEN, HIDDEN), drawn(tokens, HIDDEN)
    yield shape_dynamic_skinny_gemm(x, weight)
    yield shape_dynamic_skinny_gemm(x, weight, residual=residual)


def norms(tokens):
    """These are compiled without TVM-FFI."""
    x, weight, residual = drawn(tokens, HIDDEN), drawn(HIDDEN), drawn(tokens, HIDDEN, dtype=torch.float32)
    yield rms_norm(x, weight, 1e-6)
    yield rms_norm(x, weight, 1e-6, residual=residual)
    yield residual
    yield qk_norm(drawn(tokens, HEADS * WIDTH), WIDTH, scale=0.5)


def finalized(tokens, chosen=8):
    """The rows of each token's experts are gathered, normed and added up. Compiled without TVM-FFI."""
    rows = torch.arange(tokens * chosen, dtype=torch.int32, device="cuda")
    out, weights = torch.empty(tokens, HIDDEN, dtype=torch.bfloat16, device="cuda"), drawn(tokens, chosen)
    moe_finalize_with_rmsnorm(drawn(tokens * chosen, HIDDEN), weights, rows, drawn(HIDDEN), out, topk=chosen, eps=1e-6)
    yield out


def results():
    """Everything that the kernels compute, from the same inputs each time."""
    torch.manual_seed(0)
    for tokens in (1, 8):  # one token and several have kernels of their own
        yield from products(tokens)
    yield from norms(64)
    yield from finalized(64)


if __name__ == "__main__":
    for result in results():
        print(tuple(result.shape), result.dtype)
