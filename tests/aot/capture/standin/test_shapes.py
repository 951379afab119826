"""Operators that torch has no shapes for give tensors of the right shape."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import torch
from aot_runtime.arch import Arch
from aot.capture.standin import Notes, standin_device
from aot.compile.device.devices import Device

with standin_device(Device.of(Arch.parse("sm_100a")), print, Notes(__file__)):
    def empty(*shape):
        return torch.empty(shape, device="cuda", dtype=torch.float8_e4m3fn)
    offs = torch.tensor([3, 5, 8, 16], dtype=torch.int32, device="cuda")
    def product(a, b, offs=None):
        scales = [[torch.empty(4, device="cuda")], [0], [0]]
        given = (torch.bfloat16, [], False)
        return torch.ops.aten._scaled_grouped_mm_v2(a, b, *scales, *scales, offs, None, *given)
    print(*product(empty(16, 32), empty(4, 32, 64), offs).shape)
    print(*product(empty(48, 16), empty(16, 64), offs).shape)
    print(*product(empty(4, 48, 32), empty(4, 32, 64)).shape)
    made = product(empty(16, 32), empty(4, 32, 64), offs)
    print(made.dtype, made.device)
"""


@pytest.mark.torch
def test_a_product_of_groups_has_a_shape() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    done = subprocess.run([sys.executable, "-c", f"__file__ = 'x'\n{CODE}"], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["16 64", "4 48 64", "4 48 64", "torch.bfloat16 cuda:0"], done.stderr[-2000:]
