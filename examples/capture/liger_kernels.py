"""Liger's CuTe DSL kernels for training: norms, softmax, gated activations and rope, forward, and some backward.

    python -m aot capture examples/capture/liger_kernels.py --arch sm90 --name liger

Tried with liger-kernel 0.8.5 and CuTe DSL 4.8.1. The script is a program too: on a GPU it runs the kernels.
"""

import torch
from liger_kernel.ops.backends._cutedsl.geglu import geglu_cutedsl
from liger_kernel.ops.backends._cutedsl.softmax import softmax_cutedsl
from liger_kernel.ops.backends._cutedsl.swiglu import swiglu_cutedsl
from liger_kernel.ops.cutedsl.ops.rms_norm import rms_norm_backward, rms_norm_forward
from liger_kernel.ops.cutedsl.ops.rope import rope_forward
from liger_kernel.ops.cutedsl.ops.swiglu import swiglu_backward, swiglu_forward

ROWS, HIDDEN, HEADS, WIDTH = 256, 4096, 32, 128


def drawn(*shape):
    return torch.randn(*shape, dtype=torch.bfloat16, device="cuda")


def results():
    """Everything that the kernels compute, from the same inputs each time."""
    torch.manual_seed(0)
    x, y, weight = drawn(ROWS, HIDDEN), drawn(ROWS, HIDDEN), drawn(HIDDEN)
    yield softmax_cutedsl(x)
    yield geglu_cutedsl(x, y)
    yield swiglu_cutedsl(x, y)
    # These are compiled without TVM-FFI.
    out, flat, rstd, block, warps, casting = rms_norm_forward(x, weight, 1e-6, 0.0, "llama", None)
    yield out
    yield rms_norm_backward(drawn(ROWS, HIDDEN), flat, weight, rstd, 0.0, casting, block, warps, False, None)[0]
    a, b, c = swiglu_forward(x, y)
    yield c
    yield swiglu_backward(a, b, drawn(ROWS, HIDDEN))[0]
    q, k, angles = drawn(1, HEADS, ROWS, WIDTH), drawn(1, HEADS, ROWS, WIDTH), drawn(1, ROWS, WIDTH)
    yield rope_forward(q, k, angles.cos(), angles.sin())[0]


if __name__ == "__main__":
    for result in results():
        print(tuple(result.shape), result.dtype)
