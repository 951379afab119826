"""The description of a Hopper tile: what it refuses, and that its parts cover a tile exactly."""

from __future__ import annotations

import subprocess
import sys

# The compiler stays out of this process: beside the stand-in it would find a driver.
REFUSED = """
import aot
from aot.targets import Target
from aot_runtime.arch import Arch
from kernels.sm90.epilogue import Epilogue
from kernels.sm90.mainloop import Mainloop
from kernels.sm90.product import Product
from kernels.sm90.tiling import Tiling
for tiling in (
    Tiling(192, 256),
    Tiling(96, 128),
    Tiling(64, 104),
    Tiling(128, 192, promoted=1),
    Tiling(128, 128, cluster_m=32),
    Tiling(64, 64, cluster_m=2, split_k=4),
    Tiling(64, 64, rows=12),
    Tiling(64, 64, rows=24, cluster_n=2),
    Tiling(64, 64, lines=4),
):
    try:
        Product(Mainloop(tiling), Epilogue(tiling), Target.of(Arch.parse("sm_90a")))
    except aot.DeclarationError as error:
        print(error.message)
"""


def test_what_the_hardware_cannot_do_is_refused_with_the_numbers() -> None:
    done = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "384 registers of a thread for 192 x 256 sums of one warp group",
        "96 x 128 of a tile of 96 x 128 for one warp group",
        "64 x 104 of a tile of 64 x 104 for one warp group",
        "288 registers of a thread for 128 x 192 sums of one warp group",
        "clusters of 32; sm_90a takes up to 16",
        "4 blocks that sum parts of 64 columns, in clusters of 8",
        "12 rows of 64, in clusters of 1",
        "2 blocks load parts of 24 rows",
        "4 lines of 128 bytes in a step",
    ]


DECLARED = """
from aot.targets import Target
from aot_runtime.arch import Arch
from kernels.products import gemm, gemm_f32, gemm_fp8, gemm_gated, grouped_gemm, grouped_gemm_gated
from kernels.sm90.product import Product
target, seen = Target.of(Arch.parse("sm_90a")), 0
for module in (gemm, gemm_f32, gemm_fp8, gemm_gated, grouped_gemm, grouped_gemm_gated):
    kernel = getattr(module, module.__name__.rpartition(".")[2])
    for variant in kernel.variants(target.arch):
        product = variant.spec.function
        if not isinstance(product, Product):
            continue
        tiling, seen = product.tiling, seen + 1
        groups = 2 if tiling.cooperative else 1
        assert tiling.own_rows * tiling.own_columns * groups == tiling.m * tiling.n, tiling
        assert tiling.written_columns * tiling.owners * tiling.sides == tiling.columns, tiling
        assert tiling.slice_columns * tiling.slices == tiling.written_columns, tiling
        assert product.stages >= 2, tiling
        used = product.stages * tiling.stage_bytes + product.epilogue.shared_bytes + tiling.partial_bytes
        assert used <= target.shared_memory, tiling
print(seen)
"""


def test_the_parts_of_every_declared_tile_cover_it_and_fit_into_shared_memory() -> None:
    done = subprocess.run([sys.executable, "-c", DECLARED], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 100
