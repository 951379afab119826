"""What SGLang calls of its own CuTe DSL kernels on Hopper: norm with rope, decoding by gated delta rule and KDA.

    python -m aot capture examples/capture/sglang_kernels.py --arch sm90 --name sglang

Tried with sglang 0.5.23 and CuTe DSL 4.8.1. The script is a program too: on a GPU it runs the kernels.
"""

import torch
from sglang.kernels.ops.attention.cutedsl_gdn import cutedsl_fused_sigmoid_gating_delta_rule_update
from sglang.kernels.ops.attention.cutedsl_kda import cutedsl_fused_sigmoid_gating_kda_update
from sglang.kernels.ops.diffusion.rope.rmsnorm_interleaved_rope_cutedsl import fused_rmsnorm_interleaved_rope_

HEADS, VALUE_HEADS, WIDTH = 16, 32, 128


def drawn(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, dtype=dtype, device="cuda")


def norm_with_rope(dtype, hidden=2048, positions=64):
    x = drawn(2 * positions, hidden, dtype=dtype)
    yield fused_rmsnorm_interleaved_rope_(
        x, drawn(hidden, dtype=dtype), drawn(positions, WIDTH, dtype=torch.float32), 1e-6, WIDTH
    )


def decoded(update, sequences, gate):
    """A step of decoding: the state of each sequence is updated in place. These kernels are compiled without TVM-FFI."""
    q, k = (drawn(sequences, 1, HEADS, WIDTH) for _ in range(2))
    v, state = drawn(sequences, 1, VALUE_HEADS, WIDTH), drawn(sequences, VALUE_HEADS, WIDTH, WIDTH, dtype=torch.float32)
    a, b = drawn(sequences, 1, VALUE_HEADS, *gate), drawn(sequences, 1, VALUE_HEADS)
    log, bias = drawn(VALUE_HEADS, dtype=torch.float32), drawn(VALUE_HEADS, *gate)
    yield update(log, bias, q, k, v, a, b, state, torch.arange(sequences, dtype=torch.int32, device="cuda"))
    yield state


def results():
    """Everything that the kernels compute, from the same inputs each time."""
    torch.manual_seed(0)
    for dtype in (torch.bfloat16, torch.float16):
        yield from norm_with_rope(dtype)
    for sequences in (4, 64):  # small and large batches have kernels of their own
        yield from decoded(cutedsl_fused_sigmoid_gating_delta_rule_update, sequences, ())
        yield from decoded(cutedsl_fused_sigmoid_gating_kda_update, sequences, (WIDTH,))


if __name__ == "__main__":
    for result in results():
        print(tuple(result.shape), result.dtype)
