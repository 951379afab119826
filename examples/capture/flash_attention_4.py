"""What of FlashAttention-4 goes into a bundle: forward and backward, by head dimension, masks and layouts.

    python -m aot capture examples/capture/flash_attention_4.py --arch sm90,sm100 --name fa4

Tried with flash-attn-4 4.0.0b36, quack-kernels 0.6.5, CuTe DSL 4.8.1 and torch 2.13. Batch, lengths and numbers of heads
are symbolic; the ratio of query heads to key heads is not.
"""

import torch
from flash_attn.cute.interface import _flash_attn_bwd, flash_attn_func, flash_attn_varlen_func, get_scheduler_metadata


def empty(*shape, dtype=torch.bfloat16):
    return torch.empty(*shape, dtype=dtype, device="cuda")


for head, value_head in ((64, 64), (128, 128), (192, 128), (256, 256)):
    q, v = empty(2, 1024, 8, head), empty(2, 1024, 8, value_head)
    flash_attn_func(q, q, v, causal=True)

q = empty(2, 1024, 8, 128)
flash_attn_func(q, q, q, causal=False)
grouped = empty(2, 1024, 2, 128)  # four query heads for each key head
flash_attn_func(q, grouped, grouped, causal=True)

tokens, starts = empty(2048, 8, 128), empty(3, dtype=torch.int32)
lengths = {"cu_seqlens_q": starts, "max_seqlen_q": 1024, "max_seqlen_k": 1024, "causal": True}
flash_attn_varlen_func(tokens, tokens, tokens, cu_seqlens_k=starts, **lengths)
# The metadata of many calls in advance. Its kernel is another one for each power of two of 31 sequences.
get_scheduler_metadata(nheads=8, nheads_kv=8, headdim=128, num_splits=1, cu_seqlens_k=starts, **lengths)
pages, table, used = empty(64, 128, 8, 128), empty(2, 16, dtype=torch.int32), empty(2, dtype=torch.int32)
flash_attn_varlen_func(tokens, pages, pages, seqused_k=used, page_table=table, **lengths)

# Below the autograd function, which would need gradients: fake tensors have none.
_flash_attn_bwd(q, q, q, q, q, empty(2, 8, 1024, dtype=torch.float32), causal=True)
