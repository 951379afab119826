"""Calls that torch traces are refused as calls on a GPU are. Nothing is launched, so that no GPU is needed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import aot_runtime
import pytest
from aot_runtime import ArgumentError
from aot_runtime.frameworks.fakes import make_check, tensor_facts

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
torch: Any = None
with suppress(ImportError):
    import aot_runtime.torch
    import torch


@pytest.fixture(autouse=True)
def _needs_torch() -> None:
    if torch is None:
        pytest.skip("operators of torch need torch")


@pytest.fixture
def plain_demo(plain_demo_path: Path) -> aot_runtime.Bundle:
    return aot_runtime.load(plain_demo_path)


@pytest.fixture
def ops(plain_demo: aot_runtime.Bundle) -> Any:
    return aot_runtime.torch.register(plain_demo)


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(ArgumentError) as caught:
        call()
    return str(caught.value)


def vector(extent: int, dtype: str = "f32") -> Any:
    return tensor_facts(dtype, (extent,))


def expected(bundle: aot_runtime.Bundle, *facts: Any) -> str:
    """What the dispatcher says of a call of ``axpy``."""
    return refusal(lambda: make_check(bundle)("axpy", -1, *facts, 1.0))


def test_meta_tensors(ops: Any, plain_demo: aot_runtime.Bundle) -> None:
    x, half = torch.empty(8, device="meta"), torch.empty(8, device="meta", dtype=torch.float16)
    assert ops.axpy(x, x).shape == (8,)
    said = expected(plain_demo, vector(8), vector(8, "f16"), vector(8))
    for call in (
        lambda: ops.axpy(x, half),
        lambda: torch.ops.plain_demo.axpy(x, half),
        lambda: ops.axpy.out(x, half, out=x),
        lambda: plain_demo.axpy(x, half, x),
    ):
        assert refusal(call) == said


@pytest.mark.parametrize(("started", "indices"), [(False, [-1, -1, -1]), (True, [3, 1, -1])])
def test_a_device_is_known_once_cuda_was_started(
    started: bool, indices: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from aot_runtime.frameworks.torch_fakes import _index

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: started)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert [_index(torch.device(name)) for name in ("cuda", "cuda:1", "meta")] == indices


def test_choices(ops: Any) -> None:
    half = torch.empty(8, device="meta", dtype=torch.float16)
    assert "activate__clamp: no variant" in refusal(lambda: ops.activate(half, kind="clamp"))


def test_fake_tensors_of_a_gpu(ops: Any, plain_demo: aot_runtime.Bundle) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x, longer = torch.empty(8, device="cuda"), torch.empty(9, device="cuda")
        assert ops.axpy(x, x).shape == (8,)
        said = refusal(lambda: ops.axpy(x, longer))
    assert said == expected(plain_demo, vector(8), vector(9), vector(8))


def test_compiling(ops: Any) -> None:
    """With symbolic extents, of which no check may be a guard: the graph still takes other extents."""
    graphs = []
    compiled = torch.compile(
        lambda x, y: ops.axpy(x, y),
        backend=lambda graph, _: graphs.append(graph) or graph,
        fullgraph=True,
        dynamic=True,
    )
    for extent in (8, 12):
        assert compiled(*2 * [torch.empty(extent, device="meta")]).shape == (extent,)
    assert len(graphs) == 1
    with pytest.raises(Exception, match=r"y\.shape\[0\] is 9, must equal x\.shape\[0\], which is 8"):
        torch.compile(lambda x, y: ops.axpy(x, y), backend="eager", fullgraph=True)(
            torch.empty(8, device="meta"), torch.empty(9, device="meta")
        )


def test_exporting(ops: Any) -> None:
    class Model(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any, y: Any) -> Any:
            return ops.axpy(x, y)

    rows = torch.export.Dim("rows", min=2)
    given = (torch.empty(8, device="meta"), torch.empty(8, device="meta"))
    exported = torch.export.export(Model(), given, dynamic_shapes=({0: rows}, {0: rows}))
    assert "plain_demo.axpy" in str(exported.graph)
    halves = tuple(tensor.half() for tensor in given)
    with pytest.raises(Exception, match=r"x\.dtype is float16, must be float32"):
        torch.export.export(Model(), halves)


def test_extents_that_depend_on_data(ops: Any) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    shapes = ShapeEnv(allow_dynamic_output_shape_ops=True)
    rows = shapes.create_unbacked_symint()
    torch._check(rows >= 0)
    with FakeTensorMode(shape_env=shapes):
        found = torch.empty(rows, device="cuda")
        assert ops.axpy(found, found).dim() == 1
        assert "x.dtype is float16" in refusal(lambda: ops.axpy(found.half(), found))
