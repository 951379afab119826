"""While an exercise runs, functions under ``torch.compile`` run their operators, and no code is made of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import torch
from aot_runtime.arch import Arch
from aot.capture.standin import Notes, standin_device
from aot.compile.devices import Device

with standin_device(Device.of(Arch.parse("sm_90a")), print, Notes("?")):
    @torch.library.custom_op("lib::scale", mutates_args=())
    def scale(x: torch.Tensor) -> torch.Tensor:
        print("body", tuple(x.shape))
        return x * 2

    scale.register_fake(torch.empty_like)

    @torch.compile(fullgraph=True, mode="reduce-overhead")
    def both(x):
        return scale(x @ x.mT) if torch.compiler.is_compiling() else x

    print(both(torch.randn(4, 8, device="cuda")).shape)
"""


@pytest.mark.torch
def test_a_function_under_the_compiler_of_torch_runs_its_operators(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(tmp_path / "program.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["body (4, 4)", "torch.Size([4, 4])"]
