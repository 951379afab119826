"""What SGLang calls of its own CuTe DSL kernels on Hopper: norms, decoding by gated delta rule and KDA, products.

    python -m aot capture examples/capture/sglang_kernels.py --arch sm90 --name sglang

Tried with sglang 0.5.23 and CuTe DSL 4.8.1. The script is a program too: on a GPU it runs the kernels.
"""

import torch
from sglang.kernels.ops.attention.cutedsl_gdn import cutedsl_fused_sigmoid_gating_delta_rule_update
from sglang.kernels.ops.attention.cutedsl_gdn_mtp_ring import gated_delta_rule_mtp
from sglang.kernels.ops.attention.cutedsl_kda import cutedsl_fused_sigmoid_gating_kda_update
from sglang.kernels.ops.diffusion.norm.scale_residual_norm_cutedsl import (
    fused_norm_scale_shift,
    fused_scale_residual_norm_scale_shift,
)
from sglang.kernels.ops.diffusion.rope.rmsnorm_interleaved_rope_cutedsl import fused_rmsnorm_interleaved_rope_
from sglang.kernels.ops.gemm.cutedsl_dsv3_fused_a_gemm import dsv3_fused_a_gemm
from sglang.kernels.ops.layernorm.rmsnorm_fanout import rmsnorm_fanout
from sglang.kernels.ops.lora.moe.cutedsl.api import GroupedGemmConfig, prepare_masked_bf16, prepare_masked_fp8
from sglang.kernels.ops.lora.moe.cutedsl.schedule_builder import build_dual_stage_schedules_masked

HEADS, VALUE_HEADS, WIDTH = 16, 32, 128
EXPERTS, ROWS, HIDDEN = 8, 128, 1024


def drawn(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, dtype=dtype, device="cuda")


def norm_with_rope(dtype, hidden=2048, positions=64):
    x = drawn(2 * positions, hidden, dtype=dtype)
    yield fused_rmsnorm_interleaved_rope_(
        x, drawn(hidden, dtype=dtype), drawn(positions, WIDTH, dtype=torch.float32), 1e-6, WIDTH
    )


def three_norms(dtype, hidden=4096):
    """Three weights for the same rows."""
    yield from rmsnorm_fanout(drawn(64, hidden, dtype=dtype), *(drawn(hidden, dtype=dtype) for _ in range(3)), 1e-6)


def modulated_norms(kind, hidden=3072, tokens=64):
    """The norms of a diffusion transformer, whose scale, shift and gate come from its conditions."""
    x, residual = drawn(1, tokens, hidden), drawn(1, tokens, hidden)
    scale, shift, gate, weight, bias = (drawn(hidden) for _ in range(5))
    yield fused_norm_scale_shift(x, weight, bias if kind == "layer" else None, scale, shift, kind)
    yield from fused_scale_residual_norm_scale_shift(residual, x, gate, None, None, scale, shift, kind)


def decoded(update, sequences, gate):
    """A step of decoding: the state of each sequence is updated in place. These kernels are compiled without TVM-FFI."""
    q, k = (drawn(sequences, 1, HEADS, WIDTH) for _ in range(2))
    v, state = drawn(sequences, 1, VALUE_HEADS, WIDTH), drawn(sequences, VALUE_HEADS, WIDTH, WIDTH, dtype=torch.float32)
    a, b = drawn(sequences, 1, VALUE_HEADS, *gate), drawn(sequences, 1, VALUE_HEADS)
    log, bias = drawn(VALUE_HEADS, dtype=torch.float32), drawn(VALUE_HEADS, *gate)
    yield update(log, bias, q, k, v, a, b, state, torch.arange(sequences, dtype=torch.int32, device="cuda"))
    yield state


def several_tokens(sequences, tokens=3):
    """A step that verifies tokens which were guessed, with states in bf16."""
    q, k = (drawn(sequences, tokens, HEADS, WIDTH) for _ in range(2))
    v, state = drawn(sequences, tokens, VALUE_HEADS, WIDTH), drawn(sequences, VALUE_HEADS, WIDTH, WIDTH)
    a, b = (drawn(sequences, tokens, VALUE_HEADS) for _ in range(2))
    log, bias = (drawn(VALUE_HEADS, dtype=torch.float32) for _ in range(2))
    where = torch.arange(sequences, dtype=torch.int32, device="cuda")
    yield gated_delta_rule_mtp(
        log, a, bias, q=q, k=k, v=v, b=b, initial_state_source=state, initial_state_indices=where
    )
    yield state


def fused_products(tokens, hidden=7168, width=2112):
    """The first products of DeepSeek V3's attention, for few tokens: compiled for 16 of them, without TVM-FFI."""
    yield dsv3_fused_a_gemm(drawn(tokens, hidden), drawn(width, hidden).t())


def products_of_experts(eight_bits, tile=64):
    """Each expert multiplies the rows that were chosen for it. Compiled without TVM-FFI; Triton makes the schedule."""
    counts = torch.arange(EXPERTS, dtype=torch.int32, device="cuda") * 16
    schedule, tiles, _, _ = build_dual_stage_schedules_masked(
        counts, m_max=ROWS, token_width=tile, n_gemm1=HIDDEN, n_gemm2=HIDDEN, output_width=64
    )
    config = GroupedGemmConfig(mma_tiler_mn=(64, tile))
    x, weight = drawn(EXPERTS, ROWS, HIDDEN), drawn(EXPERTS, HIDDEN, HIDDEN)
    out = torch.zeros(EXPERTS, ROWS, HIDDEN, dtype=torch.bfloat16, device="cuda")
    scheduled = {"config": config, "direct_schedule": schedule, "schedule_tiles": tiles}
    if eight_bits:
        scales = (drawn(EXPERTS, rows, HIDDEN // 128, dtype=torch.float32) for rows in (ROWS, HIDDEN // 128))
        x, weight = x.to(torch.float8_e4m3fn), weight.to(torch.float8_e4m3fn)
        prepare_masked_fp8(x, weight, *scales, out, counts, **scheduled).launch()
    else:
        prepare_masked_bf16(x, weight, out, counts, **scheduled).launch()
    yield out


def results():
    """Everything that the kernels compute, from the same inputs each time."""
    torch.manual_seed(0)
    for dtype in (torch.bfloat16, torch.float16):
        yield from norm_with_rope(dtype)
        yield from three_norms(dtype)
    for kind in ("layer", "rms"):
        yield from modulated_norms(kind)
    for sequences in (4, 64):  # small and large batches have kernels of their own
        yield from decoded(cutedsl_fused_sigmoid_gating_delta_rule_update, sequences, ())
        yield from decoded(cutedsl_fused_sigmoid_gating_kda_update, sequences, (WIDTH,))
    for sequences in (2, 64):
        yield from several_tokens(sequences)
    for tokens in (4, 16):
        yield from fused_products(tokens)
    for eight_bits in (False, True):
        yield from products_of_experts(eight_bits)


if __name__ == "__main__":
    for result in results():
        print(tuple(result.shape), result.dtype)
