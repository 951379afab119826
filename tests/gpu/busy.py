"""Keep the GPU busy until the process is killed: products of changing sizes, so that launches interleave in new ways.

Started as ``python tests/gpu/busy.py``; it prints a line once it runs.
"""

from __future__ import annotations

import itertools

import torch

a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
torch.mm(a, a)
torch.cuda.synchronize()
print("busy", flush=True)
for step in itertools.count():
    size = 512 * (1 + step % 13)
    for _ in range(8):
        torch.mm(a[:size], a)
    torch.cuda.synchronize()
