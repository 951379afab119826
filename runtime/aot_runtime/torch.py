"""A bundle's kernels as operators of torch.

import aot_runtime, aot_runtime.torch
kernels = aot_runtime.load("dist/kernels")
ops = aot_runtime.torch.register(kernels)
y = ops.rmsnorm(x, weight)              # allocates
ops.rmsnorm.out(x, weight, out=y)       # writes
"""

from .frameworks.torch import GradientError, Operators, load_library, register

__all__ = ["GradientError", "Operators", "load_library", "register"]
