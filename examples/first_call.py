"""Calls a kernel of the bundle that ``python -m aot build --arch sm90`` makes. Needs torch and a GPU."""

import aot_runtime
import torch

kernels = aot_runtime.load("dist/kernels")
x, y = torch.randn(1000, device="cuda"), torch.randn(1000, device="cuda")
out = torch.empty_like(x)
kernels.add(x, y, out)

kernels.preload(device=0)  # loads all code now, as a CUDA graph capture needs
print(kernels.explain("add", "9.0", x, y, out))  # which variant a device runs, and why; needs no GPU

torch.testing.assert_close(out, torch.add(x, y))
