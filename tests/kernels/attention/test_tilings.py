"""Tilings of attention: what they refuse, and that what is declared fits into a block."""

from __future__ import annotations

import subprocess
import sys

# The compiler stays out of this process: beside the stand-in it would find a driver.
REFUSED = """
import aot
from aot.targets import Target
from aot_runtime.arch import Arch
from kernels.attention.decoding import _decode
from kernels.attention.gradients import _backward_sm80, _backward_sm90, _backward_split_sm90, _backward_wide_sm90
from kernels.attention.prompts import _attention_sm80, _attention_sm90
target = Target.of(Arch.parse("sm_90a"))
for tiling, widths in (
    (_attention_sm90.Tiling(100, 128, 128, 128), ()),
    (_attention_sm90.Tiling(128, 120, 128, 128), ()),
    (_attention_sm90.Tiling(192, 256, 256, 256), ()),
    (_attention_sm80.Tiling(128, 32, 100, 128), ()),
    (_attention_sm80.Tiling(128, 256, 256, 256), ()),
    (_backward_sm80.Tiling(64, 24, 128, 128), ()),
    (_backward_sm80.Tiling(128, 128, 256, 256), ()),
    (_backward_sm90.Tiling(40, 64, 64), ()),
    (_backward_sm90.Tiling(64, 96, 96), ()),
    (_backward_sm90.Tiling(96, 128, 128), ()),
    (_backward_split_sm90.Tiling(40, 128, 128), ()),
    (_backward_split_sm90.Tiling(128, 256, 256), ()),
    (_backward_wide_sm90.Tiling(320, 256), ()),
    (_backward_wide_sm90.Tiling(384, 256), ()),
    (_decode.Tiling(row_warps=1, teams=4, tokens=24, stages=3, blocks=1), (128, 128)),
    (_decode.Tiling(row_warps=4, teams=1, tokens=64, stages=9, blocks=1), (128, 128)),
):
    try:
        tiling.validate(target, *widths)
    except aot.DeclarationError as error:
        print(error.message.partition(";")[0])
"""


def test_what_a_block_cannot_hold_is_refused_with_the_numbers() -> None:
    done = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "a tile of 100 rows and 128 tokens",
        "a tile of 128 rows and 120 tokens",
        "two stages of 262144 bytes beside 98304 of queries",
        "32 tokens of 100 and 128 elements for 256 threads",
        "queries and 2 stages take 589824 bytes",
        "24 columns of 128 and 128 elements for 128 threads",
        "rows and 2 stages take 393216 bytes",
        "40 queries of 64 elements",
        "64 queries of 96 elements",
        "keys and 2 stages take 263936 bytes",
        "40 columns of 128 and 128 elements",
        "rows and 2 stages take 400640 bytes",
        "320 elements",
        "rows and 2 stages take 279808 bytes",
        "128 threads with 3 stages of 24 tokens of 128 elements",
        "9 stages take 295424 bytes",
    ]


FITTING = """
from aot.targets import Target
from aot_runtime.arch import Arch
from kernels.attention.decoding._wide_sm90 import ROWS, WideDecode
target = Target.of(Arch.parse("sm_90a"))
for dim in (64, 128):
    wide = WideDecode(target, dim, 64)
    used = ROWS * dim * 2 + 2 * wide.stages * wide.stage_bytes + 4 * wide.stages * 8
    assert wide.stages >= 2 and used <= target.shared_memory, (dim, used)
"""


def test_wide_heads_have_two_stages_of_keys_and_of_values() -> None:
    subprocess.run([sys.executable, "-c", FITTING], check=True)


REGISTERS = """
from kernels.attention.decoding._wide_sm90 import WideDecode
from kernels.attention.gradients._backward_sm90 import FEWER_REGISTERS, MORE_REGISTERS
from kernels.attention.latent._latent_f8_sm90 import NarrowLatentDecode
from kernels.attention.latent._latent_packed_sm90 import PackedLatentDecode, PackedSparseLatentDecode
from kernels.attention.latent._latent_sm90 import LatentDecode
from kernels.attention.latent._latent_sparse_sm90 import SparseLatentDecode
from kernels.attention.prompts._attention_sm90 import REGISTERS
from kernels.sm90.hardware import CONSUMER_REGISTERS, PRODUCER_REGISTERS
decodes = LatentDecode, NarrowLatentDecode, PackedLatentDecode, PackedSparseLatentDecode, SparseLatentDecode, WideDecode
blocks = [(one.registers[0],) * one.producers + (one.registers[1],) * 2 for one in decodes]
blocks += [(producer,) + (consumer,) * consumers for consumers, (producer, consumer) in REGISTERS.items()]
for consumers in ((CONSUMER_REGISTERS,) * 2, (MORE_REGISTERS, FEWER_REGISTERS)):
    blocks.append((PRODUCER_REGISTERS, *consumers))
for groups in blocks:
    given = 65536 // 128 // len(groups) // 8 * 8
    assert sum(groups) <= len(groups) * given and not [asked for asked in groups if asked % 8], groups
"""


def test_warp_groups_ask_for_no_more_registers_than_their_block_has() -> None:
    """A block begins with an equal number for each thread, a multiple of 8. A warp group that asks for more waits for ever."""
    subprocess.run([sys.executable, "-c", REGISTERS], check=True)


FEW_ROWS = """
from aot.targets import Target
from aot_runtime.arch import Arch
from kernels.attention.latent._latent_few_packed_sm90 import FewPackedDecode
from kernels.attention.latent._latent_few_sm90 import BLOCKS, TOKENS, FewLatentDecode
target = Target.of(Arch.parse("sm_90a"))
RESERVED = 1024  # of a multiprocessor's shared memory, for each block
for decode in (FewLatentDecode(target), FewPackedDecode(target)):
    assert BLOCKS * (decode.shared_bytes + RESERVED) <= target.shared_memory + RESERVED, decode.shared_bytes
    for first in range(0, TOKENS, 8):
        starts = [token // 2 * decode.pair_pitch + token % 2 * decode.width for token in range(first, first + 8)]
        banks = {(2 * start // 4 + word) % 32 for start in starts for word in range(4)}
        assert len(banks) == 32, (decode, first)
"""


def test_few_rows_leave_room_for_another_block_and_read_eight_tokens_from_different_banks() -> None:
    subprocess.run([sys.executable, "-c", FEW_ROWS], check=True)
