"""While an exercise runs, ``torch.compile`` runs operators as they are, and Inductor writes code for FlashAttention-4."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

DEVICE = """
import torch
from aot_runtime.arch import Arch
from aot.capture.standin import Notes, standin_device
from aot.compile.device.devices import Device

with standin_device(Device.of(Arch.parse("sm_90a")), print, Notes("?")):
    from torch.nn.attention.flex_attention import flex_attention
    q, k, v = (torch.randn(1, 4, 256, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
"""
HIGHER_ORDER = """
    x = torch.randn(4, 8, device="cuda")
    chosen = torch.compile(lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,)))
    print(*chosen(x).shape, *flex_attention(q, k, v).shape, *torch.compile(flex_attention)(q, k, v).shape)
"""
FLASH = """
    bias = torch.randn(4, device="cuda")
    @torch.compile
    def attend(q, k, v):
        options = {"BACKEND": "FLASH"}
        plain = flex_attention(q * 2, k, v, kernel_options=options)
        return plain + flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + bias[h], kernel_options=options)
    print(*attend(q, k, v).shape)
    attend(q, k, v)
"""
# What the code calls that Inductor writes.
LIBRARY = """
def _flash_attn_fwd(q, k, v, score_mod=None, aux_tensors=None, out=None, lse=None, **settings):
    modified = None if score_mod is None else score_mod.__name__
    print("compiles", *q.shape, modified, len(aux_tensors or ()), out.device, lse.dtype)
"""


@pytest.mark.torch
def test_operators_of_higher_order_are_known_by_the_shapes_of_their_results(tmp_path: Path) -> None:
    assert run(tmp_path, DEVICE + HIGHER_ORDER) == ["4 8 1 4 256 64 1 4 256 64"]


@pytest.mark.torch
def test_inductor_writes_the_code_of_flex_attention_that_calls_flash_attention_4(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("torch._inductor.kernel.flex.flex_flash_attention", reason="this torch does not write it")
    package = tmp_path / "flash_attn" / "cute"
    package.mkdir(parents=True)
    for path in (package.parent / "__init__.py", package / "__init__.py", package / "block_sparsity.py"):
        path.write_text("BlockSparseTensorsTorch = None\n")
    (package / "interface.py").write_text(LIBRARY)
    plain, modified = (
        "compiles 1 256 4 64 None 0 cuda:0 torch.float32",
        "compiles 1 256 4 64 score_mod 1 cuda:0 torch.float32",
    )
    assert run(tmp_path, DEVICE + FLASH) == [plain, modified, "1 4 256 64", plain, modified]


def run(folder: Path, program: str) -> list[str]:
    pytest.importorskip("torch", reason="torch is not installed")
    (folder / "program.py").write_text(program)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TORCHINDUCTOR_CACHE_DIR": str(folder / "written")}
    command = [sys.executable, str(folder / "program.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
