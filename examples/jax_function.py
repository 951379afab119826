"""A kernel of a bundle inside a function that JAX compiles."""

import aot_runtime
import aot_runtime.jax
import jax
import jax.export
import jax.numpy as jnp

kernels = aot_runtime.load("dist/kernels")
functions = aot_runtime.jax.register(kernels)


@jax.jit
def normalized(x, weight):
    return functions.rmsnorm(2 * x, weight, eps=1e-5, in_place="x")


x, weight = jnp.ones((64, 512), jnp.bfloat16), jnp.ones(512, jnp.bfloat16)
y = normalized(x, weight)
y.block_until_ready()  # JAX computes in the background: an error of the kernel is raised here

exported = jax.export.export(normalized, disabled_checks=aot_runtime.jax.export_checks(functions))(x, weight)
