"""While an exercise runs, torch has one device that answers for the architecture, and tensors without memory.

Custom operators run their bodies too, in which a library may compile.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import torch
from aot_runtime.arch import Arch
from aot.capture.standin import Notes, standin_device
from aot.compile.device.devices import Device

before = torch.cuda.get_device_properties, torch._ops.OpOverload.__call__, torch.library.Library.impl
with standin_device(Device.of(Arch.parse("sm_100f")), lambda name, error: print(name, type(error).__name__), Notes("?")):
    x = torch.empty(1 << 40, 8, dtype=torch.bfloat16, device="cuda")
    facts = torch.cuda.get_device_properties(x.device)
    print(x.device, torch.cuda.get_device_capability(), facts.multi_processor_count, facts.shared_memory_per_block_optin)
    print((x.narrow(1, 0, 4) * 2).shape, torch.cuda.current_stream().cuda_stream, torch.is_grad_enabled())

    @torch.library.custom_op("lib::outer", mutates_args=("out",), device_types="cuda")
    def outer(x: torch.Tensor, out: torch.Tensor, scale: float = 1.0) -> None:
        print("body", scale, inner(x).shape)

    @outer.register_fake
    def _(x, out, scale=1.0):
        print("fake")

    @torch.library.custom_op("lib::inner", mutates_args=())
    def inner(x: torch.Tensor) -> torch.Tensor:
        print("inner body")
        return x.clone()

    inner.register_fake(lambda x: x.new_empty(3))

    @torch.library.custom_op("lib::reads", mutates_args=())
    def reads(x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("what the body needs")

    reads.register_fake(torch.empty_like)

    library = torch.library.Library("lib", "FRAGMENT")
    library.define("defined(Tensor x, *, int times=2) -> Tensor")
    library.impl("defined", lambda x, *, times: print("defined body", times) or x.clone(), "CUDA")
    library.impl("defined", lambda x, *, times=2: torch.empty_like(x), "Meta")

    y = torch.empty(4, device="cuda")
    outer(y, y)
    torch.ops.lib.outer(y, y, scale=2.0)
    print(torch.ops.lib.defined.default(y).shape, torch.ops.lib.defined(y, times=3).shape, reads(y).shape)
now = torch.cuda.get_device_properties, torch._ops.OpOverload.__call__, torch.library.Library.impl
print(torch.cuda.is_available(), now == before)
"""


@pytest.mark.torch
def test_torch_answers_for_the_architecture_and_operators_run_their_bodies_within_the_context() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    environment["CUDA_VISIBLE_DEVICES"] = ""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "cuda:0 (10, 0) 148 232448", "torch.Size([1099511627776, 4]) 0 False",
        "inner body", "body 1.0 torch.Size([3])", "fake", "inner body", "body 2.0 torch.Size([3])", "fake",
        "defined body 2", "defined body 3", "lib::reads NotImplementedError",
        "torch.Size([4]) torch.Size([4]) torch.Size([4])", "False True",
    ]  # fmt: skip
