"""What of FlashAttention-4 goes into a bundle: the forward pass, by head dimension, causal or not, with grouped heads.

    python -m aot capture examples/capture/flash_attention_4.py --arch sm90 --name fa4

Tried with flash-attn-4 4.0.0b36, quack-kernels 0.6.5, CuTe DSL 4.8.1 and torch 2.13. Batch, lengths and numbers of heads
are symbolic; the ratio of query heads to key heads is not.
"""

import torch
from flash_attn.cute.interface import flash_attn_func, flash_attn_varlen_func

for head, causal, groups in ((64, True, 1), (128, True, 1), (128, False, 1), (128, True, 4)):
    q = torch.empty(2, 1024, 8, head, dtype=torch.bfloat16, device="cuda")
    k = torch.empty(2, 1024, 8 // groups, head, dtype=torch.bfloat16, device="cuda")
    flash_attn_func(q, k, k, causal=causal)

tokens = torch.empty(2048, 8, 128, dtype=torch.bfloat16, device="cuda")
starts = torch.empty(3, dtype=torch.int32, device="cuda")
flash_attn_varlen_func(
    tokens, tokens, tokens, cu_seqlens_q=starts, cu_seqlens_k=starts, max_seqlen_q=1024, max_seqlen_k=1024, causal=True
)
