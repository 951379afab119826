"""Step 5 of ``docs/guides/first-kernel.md``. ``test_examples.py`` runs it against the stand-in."""

import aot_runtime
import torch

kernels = aot_runtime.load("dist/sample_kernels")
x = torch.randn(1000, device="cuda")
kernels.scale(x, x, factor=3.0)  # in place
