"""Shipped kernels that round to f8, in one dtype."""

import dataclasses

from kernels.fp8 import quantize_fp8_blocks as shipped_blocks
from kernels.fp8 import quantize_fp8_scaled as shipped_scaled
from kernels.fp8 import quantize_fp8_squares as shipped_squares

ONE = {"dtype": {"bf16": "bf16"}}
quantize_fp8_blocks = dataclasses.replace(shipped_blocks.quantize_fp8_blocks, axes=ONE)
quantize_fp8_squares = dataclasses.replace(shipped_squares.quantize_fp8_squares, axes=ONE)
quantize_fp8_scaled = dataclasses.replace(shipped_scaled.quantize_fp8_scaled, axes={**ONE, "access": {"scalar": False}})
