"""What of quack goes into a bundle: norms, softmax, cross entropy, and matrix products with and without activation.

    python -m aot capture examples/capture/quack_kernels.py --arch sm90 --name quack

Tried with quack-kernels 0.6.5, CuTe DSL 4.8.1, torch 2.13 and triton. Change the widths and dtypes to those that your
program uses: rows are symbolic, widths of rows are not.
"""

import torch
from quack.cross_entropy import cross_entropy_fwd
from quack.gemm_interface import gemm, gemm_act, gemm_add_inplace, gemm_gated
from quack.rmsnorm import layernorm_fwd, rmsnorm_fwd
from quack.softmax import softmax_fwd

WIDTHS = (4096,)

for width in WIDTHS:
    x = torch.empty(8, width, dtype=torch.bfloat16, device="cuda")
    weight = torch.empty(width, dtype=torch.float32, device="cuda")
    rmsnorm_fwd(x, weight)
    rmsnorm_fwd(x, weight, residual=x, store_rstd=True)
    layernorm_fwd(x, weight)
    softmax_fwd(x)
    cross_entropy_fwd(x, torch.empty(8, dtype=torch.int64, device="cuda"))

# Autotuned entry points measure, and nothing can be measured here: pass `tuned=False`, or the configuration to use.
a = torch.empty(1024, 512, dtype=torch.bfloat16, device="cuda")
b = torch.empty(512, 768, dtype=torch.bfloat16, device="cuda")
gemm(a, b, tuned=False)
gemm_act(a, b, activation="relu", tuned=False)
gemm_gated(a, b, activation="swiglu", tuned=False)
gemm_add_inplace(a, b, torch.empty(1024, 768, dtype=torch.bfloat16, device="cuda"), tuned=False)
