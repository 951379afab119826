"""A feed-forward block of a transformer with the kernels of a bundle, compiled whole by torch."""

import aot_runtime
import aot_runtime.torch
import torch

kernels = aot_runtime.load("dist/kernels")
ops = aot_runtime.torch.register(kernels)


def block(x, residual, weight, up, down):
    normed, residual = ops.rmsnorm_residual(x, residual, weight)
    return ops.gemm(ops.silu_and_mul(ops.gemm(normed, up)), down), residual


def bf16(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


x, residual, weight = bf16(64, 512), bf16(64, 512), bf16(512)
up, down = bf16(2048, 512), bf16(512, 1024)
compiled = torch.compile(block, fullgraph=True)
y, residual = compiled(x, residual, weight, up, down)

ops.rmsnorm.out(x, weight, out=y)  # writes into a tensor of yours
