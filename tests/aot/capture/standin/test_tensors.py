"""Tensors of an exercise have no memory: small integers keep their values, and comparisons of results hold."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

VALUES = """
import torch, numpy
from aot_runtime.arch import Arch
from aot.capture.standin import Notes, standin_device
from aot.compile.device.devices import Device
from torch._dynamo.device_interface import CudaInterface  # keeps functions of torch.cuda

notes = Notes(__file__)
with standin_device(Device.of(Arch.parse("sm_90a")), print, notes):
    x = torch.randn(8, 64).to("cuda")
    assert torch.ones(2).to(0).device == torch.ones(2, device=0).device == x.device
    print(x.device, x[0].shape, x[None, 2:4].cuda().device, x.to(torch.float16).permute(1, 0).stride())
    x[1] = 0.0
    class Shown(torch.Tensor):
        pass
    assert x.as_subclass(Shown).shape == x.shape
    from torch._subclasses import fake_tensor
    from torch._subclasses.fake_tensor import FakeTensor
    assert not isinstance(x, (FakeTensor, torch._subclasses.FakeTensor, fake_tensor.FakeTensor))
    assert not hasattr(x, "fake_mode") and x.device.type == "cuda"
    lengths = torch.tensor([3, 5, 8], dtype=torch.int32, device="cuda")
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    print(offsets.tolist(), lengths.max().item(), int(lengths.sum()), (lengths > 4).nonzero().flatten().tolist())
    y = x * 2
    torch.testing.assert_close(x, y)
    numpy.testing.assert_allclose(x.cpu().numpy(), y.cpu().numpy() + 1)
    assert torch.allclose(x, y) and not torch.isnan(x).any() and (x - y).abs().max().item() < 1e-6
    none = (x - y).float().abs().max().item()
    assert none == 0.0 == none and not none != 0 and not none > 0 and none <= 0 and none < 1e-6 and 1 / none > 1
    assert (x.max() * 2).item() > 0 and (x - 1).max().item() > 0, "other values are as before"
    assert (x.data_ptr() % 256, x[1].data_ptr() - x.data_ptr()) == (0, 256)
    stream, start, end = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(stream):
        start.record(stream)
        x.record_stream(stream)
        x.narrow(0, 0, 4).record_stream(torch.cuda.current_stream())
    with torch.cuda.device(x.device), CudaInterface.device(0):
        assert not isinstance(x.device, torch.cuda.device) and CudaInterface.get_device_properties(x.device).major == 9
    torch.cuda.nvtx.range_push("x")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        graph.replay()
    print(start.elapsed_time(end) > 0, torch.cuda.mem_get_info()[1] > 0, torch.accelerator.current_accelerator())
    torch.manual_seed(0)
    with torch.random.fork_rng(devices=[0]):
        torch.cuda.set_rng_state(torch.cuda.get_rng_state())
        torch.cuda.set_rng_state_all(torch.cuda.get_rng_state_all())
    print(torch.randn(3, device="cuda", generator=torch.Generator(device="cuda")).device)
    with torch.inference_mode():
        assert torch.tensor(1.0, device="cuda").device == x.new_tensor([1.0]).device == x.device
print(*sorted(line.partition(": ")[2] for line in notes.lines), sep=chr(10))
try:
    torch.empty(3, device="cuda")
except (RuntimeError, AssertionError):
    print("as before")
"""


@pytest.mark.torch
def test_tensors_have_no_memory_and_comparisons_hold_with_a_note(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    (tmp_path / "script.py").write_text(VALUES)
    command = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "cuda:0 torch.Size([64]) cuda:0 (1, 64)", "[0, 3, 8, 16] 8 16 [1, 2]", "True True cuda", "cuda:0",
        "results were not compared: there are none", "values of a tensor without memory were made up", "as before",
    ]  # fmt: skip
