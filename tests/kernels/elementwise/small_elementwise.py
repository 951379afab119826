"""Shipped elementwise kernels at a few points of their grids, in one dtype."""

import dataclasses

from kernels.elementwise import activation as shipped_activation
from kernels.elementwise import rope as shipped_rope
from kernels.elementwise import silu_and_mul as shipped_silu_and_mul

BF16 = {"dtype": {"bf16": "bf16"}}
activation = dataclasses.replace(
    shipped_activation.activation,
    axes={"rank": {"rank1": 1}, **BF16, "access": shipped_silu_and_mul.ELEMENTWISE_TILINGS},
    backward=None,
)
silu_and_mul = dataclasses.replace(
    shipped_silu_and_mul.silu_and_mul,
    axes={**BF16, "access": {"scalar": shipped_silu_and_mul.ELEMENTWISE_TILINGS["scalar"]}},
    backward=None,
)
rope = dataclasses.replace(shipped_rope.rope, axes={**BF16, "access": {"vector": "vector"}})
