"""The shipped kernels on a real GPU, against their references.

Needs torch, a GPU, and a bundle: ``pytest tests/gpu --bundle dist/kernels``. CuTe DSL is not needed.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import aot_runtime
import pytest

from aot.expressions import shape_of

torch = pytest.importorskip("torch", reason="GPU tests need torch")
from aot.inputs import InputMaker, torch_dtype  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here"),
]

CONTRACTS = Path(__file__).parents[2] / "kernels" / "contracts"
# Relative norm of the error, and worst element relative to the largest: rounding of one output.
TOLERANCE = {"f16": (2**-11, 2**-10), "bf16": (2**-8, 2**-7), "f32": (2**-20, 2**-18)}


def contract(name: str) -> ModuleType:
    """The reference, inputs and cost of a kernel: files that need no CuTe DSL."""
    package = "kernel_contracts"
    if package not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            package, CONTRACTS / "__init__.py", submodule_search_locations=[str(CONTRACTS)]
        )
        assert spec is not None and spec.loader is not None
        sys.modules[package] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[package])
    return importlib.import_module(f"{package}.{name}")


@pytest.fixture(scope="module")
def bundle(request: pytest.FixtureRequest) -> aot_runtime.Bundle:
    path = Path(request.config.getoption("--bundle", default="dist/kernels"))
    if not path.is_dir():
        pytest.skip(f"there is no bundle at {path}: build one, or give --bundle")
    return aot_runtime.load(path)


def cases(bundle: aot_runtime.Bundle, kernel: str, dtype: str) -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
    """Every input of a kernel with every combination of its choices."""
    record = bundle.manifest.kernels[kernel]
    names = [choice.name for choice in record.choices]
    for labels in product(*(choice.values for choice in record.choices)):
        for arguments in contract(kernel).inputs(InputMaker(), dtype):
            yield arguments, dict(zip(names, labels, strict=True))


def outputs(bundle: aot_runtime.Bundle, kernel: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Outputs of the declared shape and dtype, filled with what no kernel writes."""
    made = {}
    for parameter in bundle.manifest.kernels[kernel].parameters:
        if parameter.output:
            like = arguments[parameter.dtype.split(".")[0]].dtype
            made[parameter.name] = torch.full(
                shape_of(parameter.shape, arguments), float("nan"), dtype=like, device="cuda"
            )
    return made


def check(
    bundle: aot_runtime.Bundle, kernel: str, dtype: str, arguments: dict[str, Any], choices: dict[str, str]
) -> None:
    made = outputs(bundle, kernel, arguments)
    bundle[kernel](**arguments, **made, **choices)
    torch.cuda.synchronize()
    expected = contract(kernel).reference(**arguments, **choices).double()
    (result,) = made.values()
    assert result.shape == expected.shape
    assert_close(
        result.double(),
        expected,
        dtype,
        f"{kernel} {[tuple(a.shape) for a in arguments.values() if hasattr(a, 'shape')]} {choices}",
    )


def assert_close(result: Any, expected: Any, dtype: str, what: str) -> None:
    """Equal where the reference is not finite, close where it is; what was not written is not finite."""
    norm, worst = TOLERANCE[dtype]
    expected = expected.to(torch_dtype(dtype)).double() if not torch.isfinite(expected).all() else expected
    finite = torch.isfinite(expected)
    assert torch.equal(finite, torch.isfinite(result)), f"{what}: elements were not written, or should not be finite"
    assert torch.equal(torch.nan_to_num(result[~finite]), torch.nan_to_num(expected[~finite])), what
    if not finite.any():
        return
    error, size = (result - expected)[finite], expected[finite]
    assert float(error.norm()) <= norm * float(size.norm()) + 1e-30, what
    assert float(error.abs().max()) <= worst * float(size.abs().max()) + 1e-30, what


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("kernel", ["add", "activation", "rmsnorm"])
def test_kernel_agrees_with_its_reference(bundle: aot_runtime.Bundle, kernel: str, dtype: str) -> None:
    checked = 0
    for arguments, choices in cases(bundle, kernel, dtype):
        check(bundle, kernel, dtype, arguments, choices)
        checked += 1
    assert checked > 5


def test_every_variant_was_chosen_by_some_input(bundle: aot_runtime.Bundle) -> None:
    capability = torch.cuda.get_device_capability()
    for kernel in bundle.kernels:
        chosen, known = set(), set()
        for dtype in ("f16", "bf16", "f32"):
            for arguments, choices in cases(bundle, kernel, dtype):
                made = outputs(bundle, kernel, arguments)
                explanation = bundle.explain(kernel, capability, **arguments, **made, **choices)
                chosen.add(explanation.chosen.variant if explanation.chosen else None)
                known |= {c.variant for c in explanation.candidates if "not on" not in c.reason}
        assert chosen == known, kernel


def test_nan_and_infinity_travel_as_in_the_reference(bundle: aot_runtime.Bundle) -> None:
    x = torch.randn(7, 33, device="cuda", dtype=torch.float32)
    x[0, 0], x[1, 5], x[2, 32] = float("nan"), float("inf"), float("-inf")
    y, out = torch.ones_like(x), torch.empty_like(x)
    bundle["add"](x, y, out)
    assert torch.equal(torch.isnan(out), torch.isnan(x))
    assert torch.equal(out[1:], (x + y)[1:])
    for op in ("relu", "gelu", "silu"):
        bundle["activation"](x, out, op=op)
        assert torch.isnan(out[0, 0])
        assert out[1, 5] == float("inf")


def test_a_graph_replays_after_preload(bundle: aot_runtime.Bundle) -> None:
    bundle.preload(0)
    x, y = torch.randn(2, 512, 512, device="cuda").unbind(0)
    out = torch.zeros_like(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        bundle["add"](x, y, out)
    x.normal_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, x + y)


def test_calls_follow_torchs_current_stream(bundle: aot_runtime.Bundle) -> None:
    x = torch.randn(1 << 24, device="cuda")
    out = torch.empty_like(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(20):
            bundle["add"](x, x, x)
            x.mul_(0.5)
        bundle["add"](x, x, out)
    stream.synchronize()
    assert torch.allclose(out, 2 * x)


def test_wrong_calls_are_refused_before_anything_runs(bundle: aot_runtime.Bundle) -> None:
    x = torch.ones(8, device="cuda")
    out = torch.zeros(8, device="cuda")
    with pytest.raises(aot_runtime.ArgumentError, match=r"y\.shape\[0\] is 7, must equal x\.shape\[0\]"):
        bundle["add"](x, x[:7], out)
    with pytest.raises(aot_runtime.ArgumentError, match="none of the tensors lies on a CUDA device"):
        bundle["add"](x.cpu(), x.cpu(), out.cpu())
    with pytest.raises(aot_runtime.ArgumentError, match=r"x\.dtype is float64"):
        bundle["add"](x.double(), x, out)
    assert not out.any()
