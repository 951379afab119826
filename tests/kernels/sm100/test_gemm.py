"""The description of a Blackwell tile: what it refuses."""

from __future__ import annotations

import subprocess
import sys

# The compiler stays out of this process: beside the stand-in it would find a driver.
REFUSED = """
import aot
from aot.targets import Target
from aot_runtime.arch import Arch
from kernels.sm100.gemm import Tiling
for tiling in (Tiling(512), Tiling(96), Tiling(128, k=128)):
    try:
        tiling.validate(Target.of(Arch.parse("sm_100f")))
    except aot.DeclarationError as error:
        print(error.message)
"""


def test_what_tensor_memory_cannot_hold_is_refused_with_the_numbers() -> None:
    done = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "a tile of 128 x 512 x 64",
        "a tile of 128 x 96 x 64",
        "a tile of 128 x 128 x 128",
    ]
