"""Operands of a portable product, on their way to shared memory, and the description of its tile.

A block computes one tile of the output. Copies into shared memory run some stages ahead of the products. The first step
along k may be incomplete, so that all others are whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32
from cutlass.utils import LayoutEnum

import aot

from .tiles import CHUNK, ELEMENT_BYTES, LINE, MMA, chunk_copy, past_l1


@dataclass(frozen=True)
class Tiling:
    """A block of ``warps`` (along m, along n) computes ``m`` x ``n`` of the output, 64 of ``k`` at a time."""

    m: int
    n: int
    warps: tuple[int, int]
    stages: int
    group: int = 8  # rows of tiles that are computed together: see ``swizzled_batch``

    k = LINE
    chunk = CHUNK

    @property
    def label(self) -> str:
        return f"tile{self.m}x{self.n}"

    @property
    def threads(self) -> int:
        return math.prod(self.warps) * cute.arch.WARP_SIZE

    @property
    def shared_bytes(self) -> int:
        """The memory of the stages. The output reuses it."""
        return max(self.stages * (self.m + self.n) * self.k, self.m * self.n) * ELEMENT_BYTES

    @property
    def multiples(self) -> tuple[int, int, int]:
        """What both m and n are multiples of, then m, then n."""
        return LINE, self.warps[0] * MMA[0], self.warps[1] * MMA[1] * 2

    def validate(self, target: aot.Target) -> None:
        both, rows, columns = self.multiples
        if self.m % both or self.n % both or self.m % rows or self.n % columns or self.threads > target.max_threads:
            raise aot.DeclarationError(
                f"a tile of {self.m} x {self.n} for {self.warps[0]} x {self.warps[1]} warps",
                hint=f"m and n are multiples of {both}, of {rows} and of {columns}",
            )
        if self.stages < 2 or self.shared_bytes > target.shared_memory:
            raise aot.DeclarationError(
                f"{self.stages} stages take {self.shared_bytes} bytes; a block of {target.arch} has {target.shared_memory}",
                hint="two stages or more",
            )


class Operand(NamedTuple):
    """The tiles of ``a`` or ``b`` that a block needs, on their way to shared memory.

    The first step may be incomplete: its tile starts before the matrix. Elements outside along k must be zero. Rows
    outside only produce rows of the output that do not exist, so their values do not matter.
    """

    chunks: cute.TiledCopy
    source: cute.Tensor  # what this thread copies: chunk, along rows, along k, step
    target: cute.Tensor  # and to where: chunk, along rows, along k, stage
    places: cute.Tensor  # where in the matrix that is, of the first step
    inside: cute.Tensor  # whether the row exists


def make_operand(matrix: cute.Tensor, major: LayoutEnum, shared: cute.Tensor, index, thread, tiling: Tiling) -> Operand:
    rows, k = cute.size(shared, mode=[0]), cute.size(shared, mode=[1])
    steps = cute.ceil_div(cute.size(matrix, mode=[1]), k)
    missing = (0, cute.size(matrix, mode=[1]) - steps * k, 0)
    source = cute.domain_offset(missing, cute.local_tile(matrix, (rows, k), (index, None)))
    source = cute.make_tensor(source.iterator.align(CHUNK * ELEMENT_BYTES), source.layout)
    places = cute.local_tile(cute.make_identity_tensor(matrix.shape), (rows, k), (index, None))
    chunks = chunk_copy(past_l1(), matrix.element_type, major, tiling.threads, tiling.k, tiling.chunk)
    own = chunks.get_slice(thread)
    source, target = own.partition_S(source), own.partition_D(shared)
    places = own.partition_S(cute.domain_offset(missing, places))[None, None, None, 0]
    _, along_rows, along_k = places.shape
    inside = cute.make_rmem_tensor(cute.make_layout((1, along_rows, along_k), stride=(0, 1, 0)), Boolean)
    for i in range(along_rows):
        inside[0, i, 0] = places[(0, 0), i, 0][0] < cute.size(matrix, mode=[0])
    return Operand(chunks, source, target, places, inside)


@cute.jit
def copy_first(operand: Operand):
    for k in cutlass.range_constexpr(cute.size(operand.places, mode=[2])):
        if operand.places[(0, 0), 0, k][1] >= 0:
            source, target = operand.source[None, None, k, 0], operand.target[None, None, k, 0]
            cute.copy(operand.chunks, source, target, pred=operand.inside[None, None, k])


@cute.jit
def copy_step(a: Operand, b: Operand, step: Int32, end: Int32, stage: Int32):
    """Copy the tiles of a step into a stage; from step ``end`` on, nothing."""
    if step < end:
        copy_tiles(a, b, step, stage)
    cute.arch.cp_async_commit_group()  # commit even an empty group, because waiting counts groups


def copy_tiles(a: Operand, b: Operand, step: Int32, stage: Int32) -> None:
    for operand in (a, b):
        source, target = operand.source[None, None, None, step], operand.target[None, None, None, stage]
        cute.copy(operand.chunks, source, target, pred=operand.inside)
