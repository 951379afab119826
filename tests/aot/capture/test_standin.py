"""While an exercise runs, torch has one device that answers for the architecture, and tensors without memory."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import torch
from aot_runtime.arch import Arch
from aot.capture.standin import standin_device
from aot.compile.devices import Device

before = torch.cuda.get_device_properties
with standin_device(Device.of(Arch.parse("sm_100f"))):
    x = torch.empty(1 << 40, 8, dtype=torch.bfloat16, device="cuda")
    facts = torch.cuda.get_device_properties(x.device)
    print(x.device, torch.cuda.get_device_capability(), facts.multi_processor_count, facts.shared_memory_per_block_optin)
    print((x.narrow(1, 0, 4) * 2).shape, torch.cuda.current_stream().cuda_stream, torch.is_grad_enabled())
print(torch.cuda.is_available(), torch.cuda.get_device_properties is before)
"""


@pytest.mark.torch
def test_torch_answers_for_the_architecture_within_the_context() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    environment["CUDA_VISIBLE_DEVICES"] = ""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "cuda:0 (10, 0) 148 232448", "torch.Size([1099511627776, 4]) 0 False", "False True",
    ]  # fmt: skip
