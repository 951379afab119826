"""What all kernels share: how chunks of rows are read and written, early launches, conditions of TMA, and stable symbols.

A thread moves data in *chunks*: 16 bytes, the widest access, if addresses and extents allow it; otherwise one element.
A kernel is compiled for both cases. Nothing else differs between the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int64
from cutlass.cute.nvgpu.common import CacheEvictionPriority, CopyG2ROp, CopyUniversalOp

import aot

# One code for all architectures, written for these and, with clusters, for sm_90: what sm_100f runs is portable code.
ARCHS = {"sm_80": "sm_80", "sm_90a": "sm_90a", "sm_100f": "sm_90"}
# Code of its own for sm_90a, with TMA and wgmma. All others run the code for sm_80: sm_100f has no wgmma.
HOPPER_ARCHS = {"sm_80": "sm_80", "sm_90a": "sm_90a", "sm_100f": "sm_80"}
# By the architecture that code was written for: whether TMA copies.
TMA = {
    "sm_80": False,
    "sm_90": False,
    "sm_90a": True,
}
F8_ARCHS = {"sm_90a": "sm_90a", "sm_100f": "sm_90"}  # sm_80 has no conversion to f8
DTYPES = ("f16", "bf16", "f32")

WARP = cute.arch.WARP_SIZE
VECTOR_BYTES = 16
# What a TMA copy asks of the L2 cache: to replace what it reads as usual, or before others. Values of CUTLASS's `CacheHintSm90`.
EVICT_NORMAL, EVICT_FIRST = 0x1000000000000000, 0x12F0000000000000


def chunk_elements(dtype: str, vector: bool) -> int:
    """Elements in a chunk."""
    return VECTOR_BYTES // aot.Tensor(dtype, ()).element_bytes if vector else 1


def forward(arguments: Mapping[str, Any], *names: str) -> tuple[str, ...]:
    """Guards that say that strides are not negative: the descriptor of a TMA copy would take them for huge ones."""
    strides = [stride for name in names for stride in arguments[name].strides if isinstance(stride, aot.Dim)]
    return tuple(f"{stride.name} >= 0" for stride in strides)


class KernelObject:
    """A kernel as an object with a jit ``__call__``.

    CuTe DSL spells ``str(self)`` into the symbol of the kernel that it compiles. Without the folder in it, a file can
    move to another family and its cubins stay the same bytes.
    """

    def __str__(self) -> str:
        module = type(self).__module__.split(".")
        return f"<{module[0]}.{module[-1]}.{type(self).__qualname__} object at 0x00000000>"


# Launches, and the L2 cache.


def launched_early(target: aot.Target) -> bool:
    """Whether a kernel is launched before the previous kernel in the stream has ended: see :func:`await_previous`."""
    # Later architectures have it too, but others saw it fail in CUDA graphs there.
    return target.capability[0] in (
        9,
        10,
    )


@cute.jit
def await_previous(early: cutlass.Constexpr):
    """Wait until the previous kernel in the stream has ended and its writes are visible.

    Call this before the first access to memory. Blocks that were launched early start as soon as other blocks end, and
    wait here for the last one. The launch itself takes about a microsecond, which is over by then. The next kernel may
    launch early too, because it waits for this one.
    """
    if cutlass.const_expr(early):
        cute.arch.griddepcontrol_launch_dependents()
        cute.arch.griddepcontrol_wait()


@cute.jit
def policy_of_weights(once):
    """What TMA copies of weights ask of the L2 cache: to replace them before others if nobody reads them again.

    On an H200, products of few rows are 3 to 5% faster by that.
    """
    policy = Int64(EVICT_NORMAL)
    if once:
        policy = Int64(EVICT_FIRST)
    return policy


# Reductions over the lanes of a warp, or over blocks.


def add(left: Float32, right: Float32) -> Float32:
    return left + right


def maximum(left: Float32, right: Float32) -> Float32:
    """The larger value; NaN if one of them is NaN."""
    return cute.arch.fmax(left, right, nan=True)


# Rows: contiguous tensors of rank 1. An index or extent is an Int32 or an Int64.


def fetch(row: cute.Tensor, index: Int64, size: int, cached: bool = True) -> cute.Tensor:
    """Chunk ``index`` of a row, in registers. ``cached=False`` bypasses the L1 cache."""
    chunk = cute.make_rmem_tensor((size,), row.element_type)
    copy_chunk(cute.local_tile(row, (size,), (index,)), chunk, size, cached)
    return chunk


def copy_chunk(source: cute.Tensor, target: cute.Tensor, size: int, cached: bool = True) -> None:
    """Copy a chunk from memory to registers, or back.

    ``autovec_copy`` makes the same code of it. But it derives from both layouts that a chunk is one access, and rows are
    read and written so often that this takes a sixth of the time to trace their kernels.
    """
    bits = size * source.element_type.width
    priority = CacheEvictionPriority.EVICT_NORMAL if cached else CacheEvictionPriority.NO_ALLOCATE
    if size > 1 and min(source.iterator.max_alignment, target.iterator.max_alignment) * 8 >= bits:
        op, settings = (CopyUniversalOp(), {}) if cached else (CopyG2ROp(), {"l1c_evict_priority": priority})
        access = cute.make_copy_atom(op, source.element_type, num_bits_per_copy=bits, **settings)
        cute.copy_atom_call(access, source, target)
    else:
        cute.autovec_copy(source, target, l1c_evict_priority=priority)


def load(row: cute.Tensor, index: Int64, size: int, cached: bool = True) -> cute.Tensor:
    """Like :func:`fetch`, but an index past the end gives the last chunk of the row, which must have one.

    So a load needs no branch, many loads can be in flight at once, and loaded values stay in their narrow dtype.
    """
    return fetch(row, cutlass.min(index, cute.size(row) // size - 1), size, cached)


@cute.jit
def store(values: cute.TensorSSA, row: cute.Tensor, index: Int64, end: Int64, size: int):
    """Round values to the row's dtype and write them as chunk ``index``. From index ``end`` on, nothing is written."""
    chunk = cute.make_rmem_tensor((size,), row.element_type)
    chunk.store(values.to(row.element_type))
    if index < end:
        copy_chunk(chunk, cute.local_tile(row, (size,), (index,)), size)
