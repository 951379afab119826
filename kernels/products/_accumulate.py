"""Products of 16 bits that are added to a matrix of f32."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Int32

import aot

from ..sm90.accumulate import Accumulate
from ..sm90.mainloop import Mainloop
from ..sm90.product import Product
from ..sm90.tiling import Tiling
from ._tf32 import F32BiasActivation


@dataclass(frozen=True)
class AccumulateF32(Accumulate):
    """The output is f32."""

    copy_to_shared = F32BiasActivation.copy_to_shared


class AccumulatingGemm(Product):
    def __init__(self, tiling: Tiling, target: aot.Target) -> None:
        super().__init__(Mainloop(tiling), AccumulateF32(tiling), target)

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, addend, clusters: Int32, stream: CUstream):
        self.launch(a, b, out, (addend,), None, clusters, stream)
