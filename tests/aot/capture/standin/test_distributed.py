"""While an exercise runs, groups of processes can be made, and collectives return without another process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import torch, torch.distributed as dist
from aot_runtime.arch import Arch
from aot.capture.standin import Notes, standin_device
from aot.compile.device.devices import Device

before = dist.init_process_group, dist.new_group
notes = Notes("?")
with standin_device(Device.of(Arch.parse("sm_90a")), print, notes):
    dist.init_process_group(backend="nccl", init_method="env://", device_id=torch.device("cuda", 0))
    print(dist.get_rank(), dist.get_world_size(), dist.is_nccl_available())
    control, devices = dist.new_group([0, 1], backend="gloo"), dist.new_group([0, 1], backend="nccl")
    x = torch.ones(4, device="cuda")
    dist.all_reduce(x, group=devices)
    dist.barrier(group=control)
    gathered = [None, None]
    dist.all_gather_object(gathered, "mine", group=control)
    mesh = dist.device_mesh.init_device_mesh("cuda", (2,))
    print(gathered, tuple(mesh.shape), x.device)
print(before == (dist.init_process_group, dist.new_group), notes.lines[0].rpartition(": ")[2])
"""


@pytest.mark.torch
def test_groups_of_processes_need_no_other_process(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "WORLD_SIZE": "2", "RANK": "1"}
    command = [sys.executable, str(tmp_path / "program.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    ranks, gathered, after = done.stdout.splitlines()
    assert ranks == "1 2 True" and gathered == "['mine', 'mine'] (2,) cuda:0"
    assert after == "True collectives of torch.distributed did nothing"
