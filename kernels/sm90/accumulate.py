"""The epilogue of products that are added to a matrix, which may be the output: an element is read before it is written."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from .epilogue import Epilogue, Place


def load_addend(addend: cute.Tensor, row: Int32, column: Int32, count: int) -> cute.Tensor:
    """Elements of a row of the addend. Outside of the matrix, any inside serve: nobody stores those sums."""
    rows, columns = addend.shape
    row, column = cutlass.min(row, rows - 1), cutlass.min(column, columns - count)
    start = addend.iterator + (Int64(row) * addend.stride[0] + column)
    held = cute.make_rmem_tensor((count,), addend.element_type)
    aligned = start.align(count * addend.element_type.width // 8)
    cute.autovec_copy(cute.make_tensor(aligned, cute.make_layout(count)), held)
    return held


@dataclass(frozen=True)
class Accumulate(Epilogue):
    """``sums + addend``, added in f32. Its argument is a matrix like the output, without elements if there is none."""

    together: int = 1  # elements that are loaded at once: 2 if rows start at an even address and have an even length

    def begin(self, arguments, floats, place: Place):
        return arguments[0]

    @cute.jit
    def transform(self, sums, addend, floats, part: cutlass.Constexpr, mma, place: Place):
        if cute.size(addend) > 0:
            for v in cutlass.range_constexpr(0, cute.size(sums), self.together):
                held = load_addend(addend, place.row(part, v), place.column(v), self.together)
                for i in cutlass.range_constexpr(self.together):
                    sums[v + i] += Float32(held[i])
