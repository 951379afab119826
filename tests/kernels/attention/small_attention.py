"""Attention of prompts, decoding and appending to a cache, each in one dtype and one width."""

import dataclasses

from kernels.attention import attention as prompts
from kernels.attention import attention_decode as decode
from kernels.attention import cache_append as append

BF16 = {"dtype": {"bf16": "bf16"}}
SAME = {**BF16, "cache_dtype": {"same": False}, "paged": {"contiguous": False}}
attention = dataclasses.replace(
    prompts.attention,
    axes={
        **BF16,
        "layout": {"batch": "batch"},
        "dims": {"dim64": (64, 64)},
        "extras": {"lse": prompts.EXTRAS["lse"]},
    },
    backward=None,
)
attention_decode = dataclasses.replace(decode.attention_decode, axes={**SAME, "dim": {"dim64": 64}})
cache_append = dataclasses.replace(append.cache_append, axes={**SAME, "rotated": {"not_rotated": False}})
