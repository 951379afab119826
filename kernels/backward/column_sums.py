"""``out = sum over rows of x``: the gradient of a bias that was added to every row.

Memory is the limit: ``x`` is read once. Groups of rows are added up first, then their sums, in a fixed order: see ``_norms``.
"""

from __future__ import annotations

import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Int32

import aot

from .._device import ARCHS, DTYPES
from .._rows import ROW_TILINGS, RowTensors
from ..contracts.backward import column_sums as contract
from ._norms import NormBackward, groups_of, partial_output, partial_tensor


class ColumnSums(NormBackward):
    def terms(self, grad: cute.TensorSSA, x: cute.TensorSSA, statistics: list[cute.Tensor], row: Int32):
        return [x]

    @cute.jit
    def __call__(self, x: cute.Tensor, out: cute.Tensor, partial: cute.Tensor, stream: CUstream):
        _, columns = x.shape
        if columns > 0:  # CUDA refuses an empty grid
            self.launch_sums(x, x, [], [partial], [out], stream)


@aot.kernel(
    parameters=(
        aot.In("x"),
        aot.Out("out", shape="(x.shape[1],)", dtype="x.dtype"),
        partial_output("partial"),
    ),
    archs=ARCHS,
    axes={"dtype": DTYPES, "access": tuple(ROW_TILINGS)},
    contract=contract,
)
def column_sums(target: aot.Target, dtype: str, access: str) -> aot.Spec:
    """The sum of every column of ``x``, computed in f32 and rounded once. The order of additions is fixed."""
    rows = RowTensors(dtype, access == "vector")
    arguments = {"x": rows.matrix, "out": rows.row, "partial": partial_tensor(rows), "stream": aot.Stream()}
    guards = (f"groups == {groups_of('m', 'n')}",)
    return aot.Spec(ColumnSums(ROW_TILINGS[access][:1], target, rows.chunk), arguments, guards)
