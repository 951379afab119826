"""Mainloops of Hopper products: what they ask of a block."""

from __future__ import annotations

import subprocess
import sys

# The compiler stays out of this process: beside the stand-in it would find a driver.
REGISTERS = """
from kernels.products._exact import PiecesMainloop
from kernels.products._scales import BlockScales
from kernels.products._tf32 import Tf32Mainloop
from kernels.sm90.hardware import CONSUMERS, WARP_GROUP
from kernels.sm90.mainloop import Mainloop, PromotedMainloop
for mainloop in (Mainloop, PromotedMainloop, BlockScales, Tf32Mainloop, PiecesMainloop):
    groups, (producer, consumer) = mainloop.threads // WARP_GROUP, mainloop.registers
    given = 65536 // mainloop.threads // 8 * 8
    assert (groups - CONSUMERS) * producer + CONSUMERS * consumer <= groups * given, mainloop
    assert producer % 8 == consumer % 8 == 0, mainloop
"""


def test_warp_groups_ask_for_no_more_registers_than_their_block_has() -> None:
    """A block begins with an equal number for each thread, a multiple of 8. A warp group that asks for more waits for ever."""
    subprocess.run([sys.executable, "-c", REGISTERS], check=True)


STAGES = """
from aot.targets import Target
from aot_runtime.arch import Arch
from kernels.products import gemm_fp8
from kernels.products._scales import BlockScales
from kernels.sm90.hardware import NAMED_BARRIERS
target = Target.of(Arch.parse("sm_90a"))
for tiling in gemm_fp8.SM90_BLOCKS_TILINGS:
    mainloop = BlockScales(tiling)
    stages = mainloop.stages(target, 0)
    assert 2 <= stages and mainloop.barriers.free + stages <= NAMED_BARRIERS, tiling
"""


def test_every_stage_with_scales_of_blocks_has_a_named_barrier() -> None:
    subprocess.run([sys.executable, "-c", STAGES], check=True)
