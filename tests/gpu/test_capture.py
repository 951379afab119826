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
