"""``examples/llama_block`` without a GPU: it traces with fake tensors, and agrees with torch if torch plays the kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from aot_runtime.description.kernel_records import Choice, KernelRecord, Parameter
from modules import module_at
from places import PROJECT

torch: Any = None
operators: Any = None
with suppress(ImportError):
    import torch
    from aot_runtime import torch as operators


def tensor(name: str, **fields: Any) -> Parameter:
    return Parameter(name, type=fields.pop("type", "tensor"), **fields)


def output(name: str, shape: str, dtype: str) -> Parameter:
    return Parameter(name, output=True, shape=shape, dtype=dtype, type="tensor")


# As the shipped kernels declare them.
EPS = Parameter("eps", has_default=True, default=1e-6, type="float")
RECORDS = {
    "rmsnorm_residual": KernelRecord(
        "rmsnorm_residual", "",
        (
            tensor("x"), tensor("residual"), tensor("weight"), output("out", "x.shape", "x.dtype"),
            output("residual_out", "x.shape", "x.dtype"), EPS,
        ),
        (), ("rmsnorm_residual",), (), 1,
    ),
    "gemm_gated": KernelRecord(
        "gemm_gated", "",
        (tensor("a"), tensor("b"), output("out", "(a.shape[0], b.shape[0] // 2)", "a.dtype")), (), ("gemm_gated",), (), 1,
    ),
    "gemm": KernelRecord(
        "gemm", "",
        (
            tensor("a"), tensor("b"), output("out", "(*a.shape[:-1], b.shape[-2])", "a.dtype"),
            tensor("bias", has_default=True, default=None, type="tensor?"),
        ),
        (Choice("epilogue", ("identity",), "identity"),), ("gemm__identity",), (), 1,
    ),
}  # fmt: skip


def residual(x: Any, residual: Any, weight: Any, out: Any, residual_out: Any, eps: float) -> None:
    residual_out.copy_(x + residual)
    out.copy_(torch.nn.functional.rms_norm(residual_out, x.shape[-1:], weight, eps))


def gated(a: Any, b: Any, out: Any) -> None:
    gate, up = torch.nn.functional.linear(a, b).chunk(2, dim=-1)
    out.copy_(torch.nn.functional.silu(gate) * up)


PLAYED: dict[str, Callable[..., Any]] = {
    "rmsnorm_residual": residual,
    "gemm_gated": gated,
    "gemm__identity": lambda a, b, out, bias: out.copy_(torch.nn.functional.linear(a, b, bias)),
}


class Played:
    name, path, kernels = "llama_played", Path("here"), tuple(RECORDS)

    def _replace(self, functions: dict[str, Any]) -> None:
        self.__dict__.update(functions)

    def _record(self, name: str) -> KernelRecord:
        return RECORDS[name]

    def _symbol(self, name: str) -> Callable[..., Any]:
        return PLAYED[name]

    def _call(self, name: str) -> int:
        assert name == "aot__protocol"
        return 0  # from before dispatchers checked calls that are traced


@pytest.fixture(scope="module")
def example() -> ModuleType:
    if torch is None:
        pytest.skip("the example needs torch")
    return module_at("llama_block_tested", "examples", "llama_block", "block.py")


@pytest.fixture(scope="module")
def ops() -> Iterator[Any]:
    if torch is None:
        pytest.skip("the example needs torch")
    registered = operators.register(Played())
    library = torch.library.Library("llama_played", "FRAGMENT")
    for name in registered:
        library.impl(name, getattr(registered, name).__globals__["_functional_kernel"], "CPU")
    yield registered


SMALL = {"hidden": 64, "heads": 4, "key_heads": 2, "feed_forward": 96, "head": 16}


def blocks(example: ModuleType, ops: Any) -> tuple[Any, Any, Any]:
    """The block in plain torch, the same with operators, and their arguments: two sequences of five tokens."""
    model = example.Model("small", bias=True, **SMALL)
    plain = example.Block(model, example.TorchLayers(), 2)
    ours = example.Block(model, example.BundleLayers(ops), 2)
    ours.load_state_dict(plain.state_dict())
    return plain, ours, example.inputs(model, 2, 5, dtype=torch.float32)


@pytest.mark.torch
def test_both_blocks_compute_the_same(example: ModuleType, ops: Any) -> None:
    plain, ours, arguments = blocks(example, ops)
    with torch.no_grad():
        for got, exact in zip(ours(*arguments), plain(*arguments), strict=True):
            torch.testing.assert_close(got, exact)


@pytest.mark.torch
def test_attention_is_causal_and_sequences_are_apart(example: ModuleType, ops: Any) -> None:
    plain, _, (x, residual, cosine, sine) = blocks(example, ops)
    with torch.no_grad():
        before, _ = plain(x, residual, cosine, sine)
        x[7] += 1  # the third token of the second sequence
        after, _ = plain(x, residual, cosine, sine)
    changed = (before != after).any(-1)
    assert not changed[:7].any() and changed[7:].all()


@pytest.mark.torch
def test_the_block_with_operators_is_one_graph_with_fake_tensors_of_a_gpu(example: ModuleType, ops: Any) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), torch.no_grad():
        model, options = example.Model("small", bias=True, **SMALL), {"device": "cuda", "dtype": torch.bfloat16}
        ours = example.Block(model, example.BundleLayers(ops), 2, **options)
        out, total = ours(*example.inputs(model, 2, 5, **options))
    assert (out.shape, out.dtype, out.device.type) == ((10, 64), torch.bfloat16, "cuda")
    assert total.shape == (10, 64)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch warns about parts of itself
def test_the_block_with_operators_is_compiled_whole_and_exported(example: ModuleType, ops: Any) -> None:
    plain, ours, arguments = blocks(example, ops)
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    with torch.no_grad():
        for got, exact in zip(
            torch.compile(ours, fullgraph=True, backend=backend)(*arguments), plain(*arguments), strict=True
        ):
            torch.testing.assert_close(got, exact)
        exported = torch.export.export(ours, arguments)
    assert len(graphs) == 1
    called = [str(node.target) for node in exported.graph.nodes if "llama_played" in str(node.target)]
    assert len(called) == 6 and called.count("llama_played.gemm.default") == 3
    assert called.count("llama_played.gemm_gated.default") == 1


# The benchmark.


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PROJECT / "benchmarks"))
        yield module_at("llama_block_benchmark", "benchmarks", "llama_block.py")


def test_the_summary_has_the_geometric_mean_and_the_worst(benchmark: ModuleType) -> None:
    def medians(ours: float) -> dict[str, float]:
        names = ("torch.compile", "max-autotune", "torch.compile, eager")
        return {"ours": ours, "ours, eager": ours, **dict.fromkeys(names, 1.0)}

    summary = benchmark.summarize([benchmark.speedups(medians(0.25)), benchmark.speedups(medians(1.0))])
    assert summary["speedup over torch.compile, mean"] == pytest.approx(2.0)
    assert summary["speedup over max-autotune, worst"] == 1.0
    assert len(summary) == 6


@pytest.mark.torch
def test_every_model_of_the_benchmark_can_be_made(benchmark: ModuleType, example: ModuleType, ops: Any) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), torch.no_grad():
        for name, batch, length in (shape for shape in benchmark.SHAPES if shape.length == 1):
            model = example.Model(name, *benchmark.MODELS[name])
            block = example.Block(model, example.BundleLayers(ops), batch, device="cuda", dtype=torch.bfloat16)
            arguments = example.inputs(model, batch, length, device="cuda", dtype=torch.bfloat16)
            assert block(*arguments)[0].shape == (batch * length, model.hidden)
