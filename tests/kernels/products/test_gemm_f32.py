"""Exact products of f32 as far as they can be tested without a GPU: what is compiled, launched and refused."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import aot_runtime
import pytest
from standin import Standin

from kernels.contracts.products import gemm_f32 as contract


def multiply(bundle: aot_runtime.Bundle, cuda: Standin, m: int, n: int, k: int) -> tuple[str, int, int]:
    """The tiling of a product, its tiles, and the blocks that share each of them. TMA cannot store rows of its output."""
    tensors = [cuda.tensor(shape, "float32") for shape in ((m, k), (n, k))]
    tensors.append(cuda.tensor((m, n), "float32", strides=(n // 4 * 4 + 5, 1)))
    chosen = bundle.explain("gemm_f32", "9.0", *tensors).chosen
    bundle["gemm_f32"](*tensors)
    launch = cuda.launches[-1]
    assert chosen is not None
    return chosen.variant.rpartition("__")[2], launch.grid[0] // launch.cluster[0], launch.cluster[0]


def test_hardly_anything_spills_to_memory(path: Path) -> None:
    variants = json.loads((path / "details" / "sm_90a.json").read_text())["variants"]
    spilled = {variant["name"]: launch["local_memory"] for variant in variants for launch in variant["launches"]}
    assert len(spilled) > 1
    assert max(spilled.values()) <= 8 and list(spilled.values()).count(0) >= len(spilled) - 1, spilled


MULTIPROCESSORS = 132
WIDTHS = (512, 1024, 2048, 4096, 8192, 16_384, 32_768, 131_072)


@pytest.mark.parametrize("m", [12, 16, 24, 128, 200, 700])
def test_blocks_share_tiles_that_are_few_and_have_a_long_sum(m: int, bundle: aot_runtime.Bundle, cuda: Standin) -> None:
    """Which tile a product gets is measured and may change; that few tiles keep the GPU busy may not."""
    shared = 0
    for n in WIDTHS:
        _, tiles, blocks = multiply(bundle, cuda, m, n, 4096)
        if tiles <= MULTIPROCESSORS // 2:
            assert blocks > 1, (m, n, tiles)
            shared += 1
        assert tiles <= 4 * MULTIPROCESSORS or blocks == 1, "a last wave that is not full matters little"
    assert shared
    assert multiply(bundle, cuda, m, 2048, 252)[2] == 1, "a sum of few steps is not worth sharing"


def test_the_contract_reaches_every_tile_with_every_number_of_blocks(
    path: Path, bundle: aot_runtime.Bundle, cuda: Standin
) -> None:
    products = (*contract.FEW, *contract.LOW, *contract.SMALL, *contract.WIDE)
    reached = [multiply(bundle, cuda, *product) for product in products]
    variants = json.loads((path / "details" / "sm_90a.json").read_text())["variants"]
    labels = {variant["name"].rpartition("__")[2] for variant in variants}
    tiles = {label for label in labels if label.endswith("_contiguous")}
    numbers = {multiply(bundle, cuda, m, n, 4096)[2] for m in (16, 128, 700) for n in WIDTHS}
    expected = {*((label, 1) for label in labels if label.startswith("rows")), *itertools.product(tiles, numbers)}
    assert len(tiles) > 1 and len(numbers) > 1
    assert {(tiling, blocks) for tiling, _, blocks in reached} == expected


# The compiler stays out of this process: beside the stand-in it would find a driver.
IMPOSSIBLE = """
import aot
from aot.targets import Target
from aot_runtime.arch import Arch
from kernels.products._f32_contiguous import LowTiling
for m, n, warps, stages in ((8, 128, (1, 4), 4), (16, 64, (1, 16), 4), (32, 64, (2, 2), 1), (32, 64, (2, 2), 20)):
    try:
        LowTiling(m, n, warps, stages).validate(Target.of(Arch.parse("sm_90a")))
    except aot.DeclarationError as error:
        print(error.message)
"""


def test_impossible_low_tiles_are_refused_with_the_numbers() -> None:
    done = subprocess.run([sys.executable, "-c", IMPOSSIBLE], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "a tile of 8 x 128 for 1 x 4 warps",
        "a tile of 16 x 64 for 1 x 16 warps",
        "1 stages take 12288 bytes; a block of sm_90a has 232448",
        "20 stages take 245760 bytes; a block of sm_90a has 232448",
    ]


PIECES = """
import aot
from aot.targets import Target
from aot_runtime.arch import Arch
from kernels.products._exact import MMA_DEPTH, STEP, ExactBiasActivation, PiecesMainloop, element_at
from kernels.products.gemm_f32 import SM90_EXACT_TILINGS
from kernels.sm90.product import Product
from kernels.sm90.tiling import Tiling
target = Target.of(Arch.parse("sm_90a"))
for step in range(0, STEP, MMA_DEPTH):
    for lane in range(4):  # what it has of an instruction, in the order of its registers
        print([element_at(step + 2 * lane + place) for place in (0, 1, 8, 9)])
for tiling in SM90_EXACT_TILINGS:
    # Steps from one part that a warp cuts to the next: no more than there are stages.
    loop, bytes = PiecesMainloop(tiling), ExactBiasActivation(tiling, ()).shared_bytes
    apart = max((i + loop.cutting_warps) // loop.cut_parts - i // loop.cut_parts for i in range(loop.cut_parts))
    assert apart <= loop.cut_stages <= loop.stages(target, bytes), tiling
settings = {"promoted": 1, "operand_bytes": 4, "out_bytes": 4, "cooperative": True, "tall_stores": False}
for changed in ({"m": 256, "n": 64}, {"m": 128, "n": 128, "split_k": 2, "buffers": 1, "own_partials": True}):
    tiling = Tiling(**settings, **changed)
    try:
        Product(PiecesMainloop(tiling), ExactBiasActivation(tiling, ()), target)
    except aot.DeclarationError as error:
        print(error.message)
"""


def test_a_lane_has_neighbours_of_a_and_pieces_of_b_are_in_the_same_order() -> None:
    done = subprocess.run([sys.executable, "-c", PIECES], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[:4] == ["[0, 1, 2, 3]", "[8, 9, 10, 11]", "[16, 17, 18, 19]", "[24, 25, 26, 27]"]
    assert lines[4:8] == ["[4, 5, 6, 7]", "[12, 13, 14, 15]", "[20, 21, 22, 23]", "[28, 29, 30, 31]"]
    assert lines[8:] == [
        "128 rows for one warp group",
        "2 stages as they are loaded and 3 of pieces",
    ]
