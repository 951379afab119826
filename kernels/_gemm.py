"""What the GEMM of every architecture shares: the problem, and which activations its epilogue has.

The problem is ``out[m, n, l] = epilogue(sum over k of a[m, k, l] * b[n, k, l] + bias[n])``, for each ``l`` of a batch. Without a bias, ``bias`` has
no elements: code is compiled once for both cases.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Int32

import aot

from ._activations import Activation, activate
from ._device import KernelObject


class EpilogueGemm(KernelObject):
    """A GEMM with several activations. Each call says which one it wants, by its position among them."""

    def __init__(self, tiling: Any, target: aot.Target, epilogues: Sequence[type[Activation]]) -> None:
        self.tiling = tiling
        self.epilogues = tuple(epilogues)

    @cute.jit
    def activate(self, values: cute.Tensor, epilogue: Int32):
        """Apply the epilogue of this call to values in registers."""
        activate(values, epilogue, self.epilogues)


class TileGemm(EpilogueGemm):
    """A GEMM whose blocks, or clusters of blocks, compute one tile each. Its code is the method ``kernel``."""

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, bias, epilogue: Int32, stream: CUstream):
        a, b, out = batched(a), batched(b), batched(out)
        m, n, batch = out.shape
        tiles = (cute.ceil_div(m, self.tiling.m), cute.ceil_div(n, self.tiling.n), batch)
        count = tiles[0] * tiles[1] * tiles[2]
        if count > 0:  # CUDA refuses an empty grid
            blocks, cluster = self.launched_blocks(count, cute.size(a, mode=[1]))
            self.kernel(a, b, out, bias, epilogue, self.tiled_mma(a.element_type), tiles).launch(
                grid=[blocks, 1, 1], block=[self.tiling.threads, 1, 1], stream=stream, cluster=cluster
            )

    @cute.jit
    def launched_blocks(self, tiles: Int32, depth: Int32):
        """How many blocks compute the ``tiles``, and the shape of their clusters, if they form some."""
        return tiles, None


def batched(tensor: cute.Tensor) -> cute.Tensor:
    """A matrix, or a batch of them, with the batch as its last mode: ``(rows, columns, batch)``."""
    if cute.rank(tensor) == 3:
        return cute.make_tensor(tensor.iterator, cute.select(tensor.layout, mode=[1, 2, 0]))
    return cute.make_tensor(tensor.iterator, cute.append(tensor.layout, cute.make_layout(1, stride=0)))
