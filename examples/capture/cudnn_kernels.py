"""CuTe DSL kernels of the cuDNN frontend on Hopper: block-sparse attention forward and backward, and selection attention.

    python -m aot capture examples/capture/cudnn_kernels.py --arch sm90 --name cudnn

Tried with nvidia-cudnn-frontend 1.32.0 and CuTe DSL 4.8.1. The script is a program too: on a GPU it runs the kernels.
"""

import torch
from cudnn.block_sparse_attention import block_sparse_attention_backward, block_sparse_attention_forward
from cudnn.native_sparse_attention import NSA

BATCH, HEADS, LENGTH, WIDTH = 1, 8, 1024, 128


def drawn(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, dtype=dtype, device="cuda")


def block_sparse(block, chosen=4):
    """Each block of queries attends to the same first blocks of keys. Some of these are compiled without TVM-FFI."""
    q, k, v = (drawn(BATCH, HEADS, LENGTH, WIDTH) for _ in range(3))
    blocks = torch.arange(chosen, dtype=torch.int32, device="cuda").expand(BATCH, HEADS, LENGTH // block, chosen)
    blocks = blocks.contiguous()
    out, lse = block_sparse_attention_forward(q, k, v, blocks, sparse_block_size=block)
    yield from (out, lse)
    # Not the gradients: two runs from the same inputs differ in them.
    block_sparse_attention_backward(drawn(*q.shape), q, k, v, out, lse, blocks, sparse_block_size=block)


def selection(tokens=256, kv_heads=1, queries=16, block=64, chosen=4):
    """Attention of packed sequences over blocks of keys that were selected for each token."""
    q = drawn(tokens, kv_heads * queries, WIDTH)
    k, v = drawn(tokens, kv_heads, WIDTH), drawn(tokens, kv_heads, WIDTH)
    lengths = torch.tensor([0, tokens], dtype=torch.int32, device="cuda")
    indices = torch.arange(chosen, dtype=torch.int32, device="cuda").expand(tokens, kv_heads, chosen).contiguous()
    counts = torch.full((tokens, kv_heads), chosen, dtype=torch.int32, device="cuda")
    yield NSA.selection_attention_wrapper(
        q, k, v, indices, counts, lengths, lengths, max_s_q=tokens, max_s_k=tokens, block_size=block
    )[0]


def results():
    """What the kernels compute but the gradients, from the same inputs each time."""
    torch.manual_seed(0)
    for block in (64, 128):
        yield from block_sparse(block)
    yield from selection()


if __name__ == "__main__":
    for result in results():
        print(tuple(result.shape), result.dtype)
