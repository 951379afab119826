"""The description of a portable tile: what it refuses."""

from __future__ import annotations

import subprocess
import sys

# The compiler stays out of this process: beside the stand-in it would find a driver.
REFUSED = """
import aot
from aot.targets import Target
from aot_runtime.arch import Arch
from kernels.sm80.operands import Tiling
for tiling in (
    Tiling(128, 128, warps=(2, 4), stages=6),
    Tiling(128, 128, warps=(2, 4), stages=1),
    Tiling(96, 128, warps=(2, 4), stages=3),
    Tiling(64, 192, warps=(2, 8), stages=2),
):
    try:
        tiling.validate(Target.of(Arch.parse("sm_80")))
    except aot.DeclarationError as error:
        print(error.message)
"""


def test_what_a_block_cannot_hold_or_share_is_refused_with_the_numbers() -> None:
    done = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "6 stages take 196608 bytes; a block of sm_80 has 166912",
        "1 stages take 32768 bytes; a block of sm_80 has 166912",
        "a tile of 96 x 128 for 2 x 4 warps",
        "a tile of 64 x 192 for 2 x 8 warps",
    ]
