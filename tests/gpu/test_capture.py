"""Libraries that nobody edited, served from bundles on a real GPU: right results, and not one compile.

Needs torch, CuTe DSL, a GPU, the library, and the bundle that its script in ``examples/capture`` gives:
``python -m aot capture examples/capture/quack_kernels.py --arch sm90 --name quack``.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu

QUACK = """
import sys, torch, aot_runtime
serving = aot_runtime.serve(sys.argv[1])
from quack.rmsnorm import layernorm_fwd, rmsnorm_fwd
from quack.softmax import softmax_fwd
x = torch.randn(333, 4096, device="cuda", dtype=torch.bfloat16)
w = torch.randn(4096, device="cuda", dtype=torch.float32)
expected = torch.nn.functional.rms_norm(x.float(), (4096,), w, 1e-6)
torch.testing.assert_close(rmsnorm_fwd(x, w)[0].float(), expected, atol=0.1, rtol=0.02)
torch.testing.assert_close(softmax_fwd(x).float(), x.float().softmax(-1), atol=1e-3, rtol=0.02)
assert (serving.hits, serving.misses) == (2, 0), serving.report()
print("ok")
"""
FLASH_ATTENTION = """
import sys, torch, aot_runtime
serving = aot_runtime.serve(sys.argv[1])
from flash_attn.cute.interface import flash_attn_func
q, k, v = (torch.randn(2, 1000, 8, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
out = flash_attn_func(q, k, v, causal=True)
out = out[0] if isinstance(out, tuple) else out
heads = [item.transpose(1, 2).float() for item in (q, k, v)]
expected = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2)
torch.testing.assert_close(out.float(), expected, atol=0.03, rtol=0.02)
assert (serving.hits, serving.misses) == (1, 0), serving.report()
print("ok")
"""


@pytest.mark.parametrize(
    ("library", "bundle", "program"),
    [("quack-kernels", "dist/quack", QUACK), ("flash-attn-4", "dist/fa4", FLASH_ATTENTION)],
)
def test_an_unmodified_library_is_served_and_right(library: str, bundle: str, program: str, torch: Any) -> None:
    try:
        importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{library} is not installed")
    if not Path(bundle).is_dir():
        pytest.skip(f"there is no bundle at {bundle}: capture it with the script in examples/capture")
    done = subprocess.run([sys.executable, "-c", program, bundle], capture_output=True, text=True)
    assert done.stdout.strip() == "ok", done.stdout + done.stderr


CUTLASS = """
import math, sys, torch, aot_runtime
bundle = aot_runtime.load(sys.argv[1])
kernels = {name.rpartition("_")[0]: bundle[name] for name in bundle.kernels}
m, n, k, batch = 333, 520, 272, 3
rows = lambda *shape: torch.randn(*shape, device="cuda").bfloat16().permute(1, 2, 0)
a, b = rows(batch, m, k), rows(batch, n, k)
expected = torch.einsum("mkl,nkl->mnl", a.float(), b.float())
for name in ("hopper_wgmma_gemm_kernel", "hopper_wgmma_gemm_persistent_kernel"):
    c = torch.zeros(batch, m, n, device="cuda", dtype=torch.bfloat16).permute(1, 2, 0)
    kernels[name](a, b, c)
    torch.testing.assert_close(c.float(), expected, atol=0.5, rtol=0.02)
batch, length, heads, group = 2, 500, 2, 4
make = lambda group: torch.randn(batch, length, heads, group, 128, device="cuda").bfloat16()
q, key, value, out = make(group), make(1), make(1), torch.empty_like(make(group))
sums = torch.empty(batch, length, heads, group, 1, device="cuda")
order, scale = (1, 4, 3, 2, 0), 1 / math.sqrt(128)
tensors = [item.permute(order) for item in (q, key, value, out, sums)]
kernels["hopper_fused_multi_head_attention_forward"](*tensors, scale * math.log2(math.e), scale, 1.0, None, 0)
flat = [item.flatten(2, 3).transpose(1, 2).float() for item in (q, key, value)]
exact = torch.nn.functional.scaled_dot_product_attention(*flat, is_causal=True, enable_gqa=True).transpose(1, 2)
torch.testing.assert_close(out.flatten(2, 3).float(), exact, atol=0.03, rtol=0.02)
assert not any(name.partition(".")[0] == "cutlass" for name in sys.modules)
print("ok")
"""


def test_examples_of_cutlass_are_right_without_cute_dsl(torch: Any) -> None:
    bundle = "dist/cutlass"
    if not Path(bundle).is_dir():
        pytest.skip(f"there is no bundle at {bundle}: capture it with the script in examples/capture")
    done = subprocess.run([sys.executable, "-c", CUTLASS, bundle], capture_output=True, text=True)
    assert done.stdout.strip() == "ok", done.stdout + done.stderr


def test_a_file_with_its_own_reference_is_checked(torch: Any) -> None:
    bundle, file = "dist/contract", "examples/capture/kernel_contract.py"
    if not Path(bundle).is_dir():
        pytest.skip(f"there is no bundle at {bundle}: capture {file}")
    done = subprocess.run(
        [sys.executable, "-m", "aot", "check", bundle, "--exercise", file], capture_output=True, text=True
    )
    assert done.returncode == 0 and "1 call, 0 failed" in done.stdout + done.stderr, done.stdout + done.stderr


PACKED = """
import sys, torch, aot_runtime
bundle = aot_runtime.load(sys.argv[1])
(name,) = bundle.kernels
x = torch.randint(0, 256, (77, 64), dtype=torch.uint8, device="cuda")
out = torch.zeros_like(x)
bundle[name](x.view(torch.float4_e2m1fn_x2), out.view(torch.float4_e2m1fn_x2))
assert torch.equal(x, out)
try:
    bundle[name](x, out)
except aot_runtime.ArgumentError as error:
    print("ok" if "float4_e2m1fnx2" in str(error) else error)
"""


def test_numbers_of_four_bits_are_passed_in_pairs(torch: Any) -> None:
    """Capture `tests/foreign/packed.py` with `--name packed`."""
    if not Path("dist/packed").is_dir():
        pytest.skip("there is no bundle at dist/packed: capture tests/foreign/packed.py")
    done = subprocess.run([sys.executable, "-c", PACKED, "dist/packed"], capture_output=True, text=True)
    assert done.stdout.strip() == "ok", done.stdout + done.stderr


TWO_VERSIONS = """
import sys, torch, aot_runtime
class NoCuteDsl:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("cutlass", "rowlib"):
            raise AssertionError(f"{name} is imported")
sys.meta_path.insert(0, NoCuteDsl())
bundles = [aot_runtime.load(path) for path in sys.argv[1:]]
versions = {bundle.manifest.toolchain["nvidia-cutlass-dsl"] for bundle in bundles}
assert len(versions) == len(bundles), versions
x = torch.randn(333, 64, device="cuda", dtype=torch.float16)
found = 0
for bundle in bundles:
    for name in bundle.kernels:
        call = bundle._record(name).captured["call"]
        if call["callable"].endswith("Scale.__call__") and "Float16 (?0, 64)" in call["arguments"]["x"]:
            out = torch.empty_like(x)
            bundle[name](x=x, weight=None, out=out, alpha=0.5)
            torch.testing.assert_close(out, x * 0.5)
            found += 1
assert found == len(bundles), found
print("ok")
"""


def test_bundles_captured_with_two_versions_of_cute_dsl_run_in_a_process_that_has_neither(torch: Any) -> None:
    """Capture `tests/foreign/exercise.py` in two environments, with `--name rows_old` and `--name rows_new`."""
    bundles = ["dist/rows_old", "dist/rows_new"]
    if not all(Path(path).is_dir() for path in bundles):
        pytest.skip(f"there are no bundles at {' and '.join(bundles)}, captured with two versions of CuTe DSL")
    done = subprocess.run([sys.executable, "-c", TWO_VERSIONS, *bundles], capture_output=True, text=True)
    assert done.stdout.strip() == "ok", done.stdout + done.stderr


def test_a_script_that_calls_host_functions_is_served_by_its_own_bundle(torch: Any) -> None:
    bundle, script = Path("dist/direct"), "tests/foreign/direct.py"
    if not bundle.is_dir():
        pytest.skip(f"there is no bundle at {bundle}: capture {script}")
    command = [sys.executable, "-m", "aot_runtime", "serve", str(bundle), "--report", "--", sys.executable, script]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.strip() == "direct ok", done.stdout + done.stderr
    assert "4 kernels served" in done.stderr and " 0 not found" in done.stderr
