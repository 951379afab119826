"""``out = a @ b.T + residual`` for sm_90a: the shipped Hopper core with an epilogue of its own."""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32

import aot
from kernels.products.gemm import matrix
from kernels.sm90.epilogue import Epilogue
from kernels.sm90.mainloop import Mainloop
from kernels.sm90.product import Product
from kernels.sm90.tiling import Tiling

from .contracts import gemm_residual as contract


@dataclass(frozen=True)
class AddResidual(Epilogue):
    """``sums + residual``. Its argument is a matrix like the output."""

    def begin(self, arguments, floats, place):
        return arguments[0]

    @cute.jit
    def transform(self, sums, residual, floats, part: cutlass.Constexpr, mma, place):
        for v in cutlass.range_constexpr(cute.size(sums)):
            at = place.row(part, v), place.column(v)
            if cute.elem_less(at, residual.shape):  # a tile may be larger than what is left of the output
                sums[v] += Float32(residual[at])


class ResidualGemm(Product):
    @cute.jit
    def __call__(self, a, b, residual, out, clusters: Int32, stream: CUstream):
        self.launch(a, b, out, (residual,), None, clusters, stream)


@aot.kernel(
    parameters=(aot.In("a"), aot.In("b"), aot.In("residual"), aot.Out("out", shape="residual.shape", dtype="a.dtype")),
    archs=("sm_90a",),
    axes={"dtype": ("bf16", "f16")},
    contract=contract,
)
def gemm_residual(target, dtype):
    """``out = a @ b.T + residual``, summed in f32, all matrices row-major."""
    extents = {"a": ("m", "k"), "b": ("n", "k"), "residual": ("m", "n"), "out": ("m", "n")}
    matrices = {name: matrix(name, dtype, *shape, True, False) for name, shape in extents.items()}
    tiling = Tiling(128, 128, cluster_m=2)
    function = ResidualGemm(Mainloop(tiling), AddResidual(tiling), target)
    return aot.Spec(function, {**matrices, "clusters": aot.ActiveClusters(), "stream": aot.Stream()}, ("k > 0",))
