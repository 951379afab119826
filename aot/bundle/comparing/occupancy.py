"""How many threads of a kernel fit on a multiprocessor at once: an upper bound, from what was compiled."""

from __future__ import annotations

from math import ceil, prod

from aot_runtime.arch import Arch

from ...targets import MAX_REGISTERS_PER_BLOCK, limits_of
from ..details import LaunchDetails

__all__ = ["occupancy"]

# The rules are those of NVIDIA's cuda_occupancy.h, with which a test compares them. That header is given the limits of a
# device; here they come from data/archs.json.
_WARP = 32
_REGISTERS = MAX_REGISTERS_PER_BLOCK  # of a multiprocessor; every architecture has as many as one block may use
_REGISTER_UNIT = 256  # registers are given to a warp in units of this size
_PARTITIONS = 4  # a multiprocessor is four schedulers, each with its own registers
_MEMORY_UNIT = 128  # bytes by which shared memory is given to a block
_RESERVED = 1024  # bytes of shared memory that the system takes for each block, from compute capability 8.0 on


def occupancy(arch: Arch, launch: LaunchDetails) -> float | None:
    """The share of a multiprocessor's threads that can be resident; None if it is only known at run time."""
    if launch.block is None or launch.dynamic_shared_memory is None:
        return None
    sm = limits_of(arch.capability)["sm"]
    warps = ceil(prod(launch.block) / _WARP)
    limits = (
        sm["blocks"],
        sm["threads"] // (warps * _WARP),
        _warps_with_registers(launch.registers) // warps,
        sm["shared_memory"]
        // _whole(launch.static_shared_memory + launch.dynamic_shared_memory + _RESERVED, _MEMORY_UNIT),
    )
    return float(min(limits) * warps * _WARP / sm["threads"])


def _warps_with_registers(registers: int) -> int:
    """How many warps have registers: no warp is spread over two partitions."""
    return _PARTITIONS * (_REGISTERS // _PARTITIONS // _whole(max(registers, 1) * _WARP, _REGISTER_UNIT))


def _whole(amount: int, unit: int) -> int:
    return ceil(amount / unit) * unit
