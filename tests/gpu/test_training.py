"""Steps of training on a real GPU: gradients that are added up in f32.

Needs a bundle with the family `training`: ``python -m aot build --arch sm90 --family all``.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import aot_runtime
import pytest

torch: Any = None
with suppress(ImportError):
    import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("torch"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning"),
]
BOUND = 8e-3  # relative to the norm of a gradient: two roundings to bf16


@pytest.fixture(scope="module")
def ops(request: pytest.FixtureRequest, torch: Any) -> Any:
    path = Path(request.config.getoption("--bundle", default="dist/kernels"))
    if not path.is_dir():
        pytest.skip(f"there is no bundle at {path}: build one, or give --bundle")
    bundle = aot_runtime.load(path)
    if "gemm_accumulate" not in bundle.kernels:
        pytest.skip(f"{path} has no `gemm_accumulate`: build it with --family all")
    from aot_runtime import torch as operators

    return operators.register(bundle)


def leaf(*shape: int, scale: float = 1.0) -> Any:
    return (scale * torch.randn(*shape, device="cuda")).bfloat16().requires_grad_()


def assert_close(got: Any, want: Any, bound: float = BOUND) -> None:
    assert float((got.double() - want).norm()) <= bound * float(want.norm())


@pytest.mark.parametrize("kernel", ["gemm", "gemm_gated"])
def test_products_add_to_the_main_grad_of_a_weight(ops: Any, kernel: str) -> None:
    x, weight = leaf(300, 256), leaf(512, 256, scale=0.1)
    wide = [tensor.detach().double().requires_grad_() for tensor in (x, weight)]
    product = wide[0] @ wide[1].mT
    if kernel == "gemm_gated":
        gate, up = product.chunk(2, -1)
        product = torch.nn.functional.silu(gate) * up
    product.square().sum().backward()
    weight.main_grad = torch.zeros(512, 256, device="cuda")
    for _ in range(3):
        getattr(ops, kernel)(x, weight).float().square().sum().backward()
    assert weight.grad is None
    assert_close(weight.main_grad, 3 * wide[1].grad, 1.6e-2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        getattr(ops, kernel)(x, weight).float().square().sum().backward()
    weight.main_grad.zero_()
    graph.replay()
    graph.replay()
    assert_close(weight.main_grad, 2 * wide[1].grad, 1.6e-2)
