"""A file that brings its own reference: `kernel_fn`, `reference_fn` and `get_inputs`. It is an exercise as it is.

    python -m aot capture examples/capture/kernel_contract.py --arch sm90 --name contract
    python -m aot check dist/contract --exercise examples/capture/kernel_contract.py

The first command needs no GPU. The second runs `kernel_fn` on one, from the bundle, and compares.
"""

import cutlass
import cutlass.cute as cute
import torch
from cuda.bindings.driver import CUstream
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream

THREADS = 256


@cute.kernel
def add_relu_kernel(x: cute.Tensor, y: cute.Tensor, out: cute.Tensor):
    index = cute.arch.block_idx()[0] * THREADS + cute.arch.thread_idx()[0]
    if index < cute.size(x):
        total = x[index].to(cutlass.Float32) + y[index].to(cutlass.Float32)
        out[index] = cutlass.max(total, 0.0).to(out.element_type)


@cute.jit
def add_relu(x: cute.Tensor, y: cute.Tensor, out: cute.Tensor, stream: CUstream):
    blocks = (cute.size(x) + THREADS - 1) // THREADS
    add_relu_kernel(x, y, out).launch(grid=[blocks, 1, 1], block=[THREADS, 1, 1], stream=stream)


def compiled():
    vector = make_fake_compact_tensor(cutlass.BFloat16, (cute.sym_int(),))
    stream = make_fake_stream(use_tvm_ffi_env_stream=True)
    return cute.compile(add_relu, vector, vector, vector, stream, options="--enable-tvm-ffi")


def kernel_fn(x, y):
    out = torch.empty_like(x)
    compiled()(x, y, out)
    return out


def reference_fn(x, y):
    return torch.relu(x.double() + y.double())


def get_inputs():
    return [torch.randn(100_003, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
