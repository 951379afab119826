"""Uses the wheel of ``examples/kernel_package``. Needs torch and a GPU; no compiler, no CuTe DSL."""

import sample_kernels
import torch

x = torch.randn(1000, device="cuda")
out = torch.empty_like(x)

sample_kernels.scale(x, out, factor=3.0)
sample_kernels.scale(x, x)  # in place, with the default factor 2.0
sample_kernels.clip(x, out)  # bound="zero" is the default
sample_kernels.clip(x, out, bound="one")
sample_kernels.clip.one(x, out)  # the same, without looking the name up on each call
sample_kernels.preload(device="cuda:0")  # before a CUDA graph is captured
