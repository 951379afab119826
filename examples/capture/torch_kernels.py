"""The CuTe DSL kernels inside torch itself, `torch._native`: RMS norm forward and backward, top-k, scatter-add.

    python -m aot capture examples/capture/torch_kernels.py --arch sm90 --name torch_native

Tried with torch 2.14.1 and CuTe DSL 4.8.1. Torch calls these kernels for `rms_norm`, `topk` and `scatter_add` on a device
that they support. The script calls them directly, as torch's operators do, so that a machine without a driver can capture them.
It is a program too: on a GPU it runs the kernels.
"""

import torch
from torch._native.ops.norm.norms import quack_rmsnorm_bwd, quack_rmsnorm_fwd
from torch._native.ops.scatter_add.tma_kernel import tma_scatter_add_into
from torch._native.ops.scatter_add.vec_scatter_kernel import vec_scatter_add_into
from torch._native.ops.topk.cutedsl_kernels import topk_radix, topk_register

ROWS, HIDDEN = 256, 4096


def drawn(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype, device="cuda")


def norms(dtype):
    x, weight, shape = drawn(ROWS, HIDDEN, dtype=dtype), drawn(HIDDEN, dtype=dtype), [HIDDEN]
    out, rstd = quack_rmsnorm_fwd(x, weight, shape, 1e-6)
    yield from (out, rstd)
    yield from quack_rmsnorm_bwd(drawn(ROWS, HIDDEN, dtype=dtype), x, rstd, weight, shape)


def largest():
    yield from topk_register(drawn(ROWS, 1024), 16)
    yield from topk_radix(drawn(ROWS, HIDDEN), 64, deterministic=True)
    yield topk_radix(drawn(ROWS, HIDDEN), 128, deterministic=False)[0]  # its indices may differ between equal values


def scattered(add_into):
    """Each row is added to another row, so that the order of additions does not matter."""
    out, source = drawn(ROWS, HIDDEN), drawn(ROWS, HIDDEN)
    add_into(out, torch.arange(ROWS - 1, -1, -1, dtype=torch.int64, device="cuda"), source)
    yield out


def results():
    """Everything that the kernels compute, from the same inputs each time."""
    torch.manual_seed(0)
    for dtype in (torch.bfloat16, torch.float32):
        yield from norms(dtype)
    yield from largest()
    for add_into in (vec_scatter_add_into, tma_scatter_add_into):
        yield from scattered(add_into)


if __name__ == "__main__":
    for result in results():
        print(tuple(result.shape), result.dtype)
