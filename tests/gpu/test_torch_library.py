"""The shipped kernels as operators from C, on a real GPU: ``pytest tests/gpu --bundle dist/kernels``.

Torch keeps operators for the life of a process, and other tests register the same names from Python. So each test here is
a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("torch")]

SETUP = """
import sys
from pathlib import Path
import torch
import aot_runtime, aot_runtime.torch

bundle = aot_runtime.load(sys.argv[1])
aot_runtime.torch.load_library(bundle)
ops = getattr(torch.ops, bundle.name)

def bf16(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

def flat(value):
    return [t.view(torch.uint8) for t in (value if isinstance(value, tuple) else (value,))]
"""

EAGER = """
python = aot_runtime.torch.register(bundle, name="from_python")
CALLS = {
    "add": ((64, 256), (64, 256)), "activation": ((64, 256),), "silu_and_mul": ((64, 512),), "rmsnorm": ((64, 256), (256,)),
    "rmsnorm_residual": ((64, 256), (64, 256), (256,)), "layernorm": ((64, 256), (256,), (256,)), "softmax": ((64, 256),),
    "reduce": ((64, 256),), "quantize_fp8": ((64, 256),), "gemm": ((64, 256), (128, 256)), "gemm_gated": ((64, 256), (256, 256)),
    "argmax": ((64, 256),), "cross_entropy": ((64, 256), torch.arange(64, device="cuda")),
    "rope": ((64, 4, 128), torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")),
    "top_k": ((64, 256), 8),
}
CHOICES = {"activation": {"op": "gelu"}, "reduce": {"op": "sum"}, "gemm": {"epilogue": "silu"}}
for name, shapes in CALLS.items():
    choices = CHOICES.get(name, {})
    tensors = [bf16(*shape) if isinstance(shape, tuple) else shape for shape in shapes]
    native = getattr(ops, name)(*tensors, **choices)
    for one, other in zip(flat(native), flat(getattr(python, name)(*tensors, **choices)), strict=True):
        assert torch.equal(one, other), name
    schemas = [str(getattr(space, name).out._schema) for space in (ops, torch.ops.from_python)]
    assert schemas[0] == schemas[1].replace("from_python::", f"{bundle.name}::")

x, weight = bf16(64, 256), bf16(256)
try:
    ops.rmsnorm(x, weight.double())
except RuntimeError as error:
    assert "weight" in str(error), error
else:
    raise AssertionError("a dtype that was not built was accepted")
try:
    ops.rmsnorm(x, weight.clone().requires_grad_())
except RuntimeError as error:
    assert "computes no gradient if it is called from C" in str(error), error
else:
    raise AssertionError("a gradient was lost")
try:
    ops.rmsnorm(x, weight.cpu())
except RuntimeError as error:
    print(error)
else:
    raise AssertionError("a CPU tensor was accepted")
"""

STREAM = """
large = bf16(4096, 4096)
expected = torch.relu(large * 3)
side = torch.cuda.Stream()
torch.cuda.synchronize()
with torch.cuda.stream(side):
    torch.cuda._sleep(20_000_000)  # what is launched on another stream would run before this ends
    y = large * 3
    out = ops.activation(y, op="relu")
    del y
side.synchronize()
assert torch.equal(out, expected)

x, weight = bf16(64, 256), bf16(256)
bundle.preload(0)
graph = torch.cuda.CUDAGraph()
with torch.no_grad(), torch.cuda.graph(graph):
    captured = ops.rmsnorm(x, weight)
x.copy_(bf16(64, 256))
graph.replay()
torch.cuda.synchronize()
assert torch.equal(captured, ops.rmsnorm(x, weight))
"""

LEAKS = """
x, weight = bf16(64, 256), bf16(256)
out, wrong = torch.empty_like(x), weight.double()
def calls(count):
    for _ in range(count):
        ops.rmsnorm(x, weight)
        ops.rmsnorm.out(x, weight, out=out)
        try:
            ops.rmsnorm(x, wrong)
        except RuntimeError:
            pass
with torch.no_grad():
    calls(10)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    calls(10_000)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before
"""

MODEL = """
traceable = aot_runtime.torch.register(bundle)
torch.set_grad_enabled(False)
def model(x, weight):
    return ops.activation(ops.rmsnorm(x, weight) * 2, op="silu") + 1
x, weight = bf16(64, 256), bf16(256)

def check(compiled, rows):
    x = bf16(rows, 256)
    difference = (compiled(x, weight).float() - model(x, weight).float()).norm()
    assert difference < 0.02 * model(x, weight).float().norm()
"""

COMPILED = """
compiled = torch.compile(model, fullgraph=True, dynamic=True)
check(compiled, 64)
check(compiled, 100)
"""

# The headers of torch would be compiled for one package alone, which takes as long as the package.
PACKAGED = """
class Model(torch.nn.Module):
    def forward(self, x, weight):
        return model(x, weight)

rows = {0: torch.export.Dim("rows", min=2, max=4096)}
exported = torch.export.export(Model(), (x, weight), dynamic_shapes={"x": rows, "weight": None})
path = torch._inductor.aoti_compile_and_package(
    exported, package_path=sys.argv[2], inductor_configs={"aot_inductor.precompile_headers": False}
)
package = torch._inductor.aoti_load_package(path)
check(package, 100)
check(package, 333)
"""

CHECKS = {
    "eager": EAGER,
    "stream": STREAM,
    "leaks": LEAKS,
    "compiled": MODEL + COMPILED,
    "packaged": MODEL + PACKAGED,
}


@pytest.mark.parametrize("checks", CHECKS.values(), ids=CHECKS)
def test_operators_from_c(checks: str, request: pytest.FixtureRequest, torch: Any, tmp_path: Path) -> None:
    bundle = Path(request.config.getoption("--bundle", default="dist/kernels"))
    if not bundle.is_dir():
        pytest.skip(f"there is no bundle at {bundle}: build one, or give --bundle")
    command = [sys.executable, "-c", SETUP + checks, str(bundle), str(tmp_path / "model.pt2")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
