"""A bundle's kernels as JAX functions, through ``jax-tvm-ffi``, which the extra ``jax`` installs.

import aot_runtime, aot_runtime.jax
kernels = aot_runtime.load("dist/kernels")
functions = aot_runtime.jax.register(kernels)
y = functions.rmsnorm(x, weight)          # inside jax.jit or outside
"""

from .frameworks.jax import Functions, export_checks, register

__all__ = ["Functions", "export_checks", "register"]
