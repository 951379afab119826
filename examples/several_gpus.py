"""Calls a kernel of the bundle that ``python -m aot build --arch sm90`` makes, on every GPU. Needs torch."""

import aot_runtime
import torch

if torch.cuda.device_count() == 0:
    raise SystemExit("this example needs a GPU that torch can use")

kernels = aot_runtime.load("dist/kernels")
for index in range(torch.cuda.device_count()):
    kernels.preload(device=index)  # optional: the first call on a device would load what it needs
    x, y = torch.randn(1000, device=f"cuda:{index}"), torch.randn(1000, device=f"cuda:{index}")
    out = torch.empty_like(x)
    kernels.add(x, y, out)  # runs on the device of its tensors
