"""The shipped kernels on a real GPU, against their references.

Needs torch, a GPU, and a bundle: ``pytest tests/gpu --bundle dist/kernels``. CuTe DSL is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import aot_runtime
import pytest

from aot.bundle.contracts import Contract, load_contracts
from aot.bundle.details import VariantDetails
from aot.bundle.manifest import Manifest
from aot.gpu.check import check, dtypes_of
from aot.gpu.running import calls_of, find_gpu, make_outputs, variants_of

pytestmark = pytest.mark.gpu


class Part(NamedTuple):
    """What one test checks of a bundle: a kernel in one dtype, or one function of it. Nothing: all of them."""

    kernel: str
    dtypes: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    variants: int = 0

    def __str__(self) -> str:
        return "-".join((*(self.functions or (self.kernel,)), *self.dtypes)) or "no bundle"


MANY_VARIANTS = 50  # a kernel that has more of them in a dtype is checked in several tests


def parts_of(variants: Sequence[VariantDetails]) -> Iterator[Part]:
    """The parts of a bundle, so that processes can share them: all together take minutes."""
    for kernel, own in _by(variants, lambda variant: variant.kernel):
        several = len({variant.point.get("dtype") for variant in own}) > 1
        for dtype, listed in _by(own, lambda variant: variant.point.get("dtype", "")):
            part = Part(kernel, (dtype,) if several else (), variants=len(listed))
            if len(listed) <= MANY_VARIANTS:
                yield part
                continue
            for function, chosen in _by(listed, lambda variant: variant.function):
                yield part._replace(functions=(function,), variants=len(chosen))


def _by(
    variants: Iterable[VariantDetails], key: Callable[[VariantDetails], str]
) -> list[tuple[str, list[VariantDetails]]]:
    return [(name, list(own)) for name, own in groupby(sorted(variants, key=key), key)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each part of the bundle, those of most variants first: they take longest."""
    if "part" not in metafunc.fixturenames:
        return
    path = Path(metafunc.config.getoption("--bundle", default="dist/kernels"))
    found: list[Part] = []
    if (path / "manifest.json").is_file():
        variants = variants_of(path, Manifest.read(path))
        found = sorted(parts_of([one for listed in variants.values() for one in listed]), key=lambda one: -one.variants)
    metafunc.parametrize("part", found or [Part("")], ids=str)


@pytest.fixture(scope="module")
def contracts(bundle: aot_runtime.Bundle) -> dict[str, Contract]:
    return load_contracts(bundle.path, bundle.manifest, bundle.kernels)


def test_the_parts_have_every_variant(bundle: aot_runtime.Bundle) -> None:
    variants = [one for listed in variants_of(bundle.path, bundle.manifest).values() for one in listed]
    assert sum(part.variants for part in parts_of(variants)) == len(variants)


@pytest.mark.usefixtures("busy")
def test_every_variant_agrees_with_its_reference(
    bundle: aot_runtime.Bundle,
    contracts: dict[str, Contract],
    part: Part,
    record_property: Callable[[str, object], None],
) -> None:
    """What ``python -m aot check --every`` asks, beside a process that keeps the GPU busy."""
    report = check(
        bundle, contracts, [part.kernel], find_gpu("check"), part.dtypes, every=True, functions=part.functions
    )
    record_property("calls", len(report.outcomes))  # for --junitxml
    failed = [outcome for outcome in report.outcomes if outcome.problem]
    assert not failed, "\n".join(f"{o.variant} {o.choices} {o.arguments}: {o.problem}" for o in failed)
    assert len(report.outcomes) > 10
    assert report.unreached == ()


def test_every_kernel_has_a_contract(bundle: aot_runtime.Bundle, contracts: dict[str, Contract]) -> None:
    assert set(contracts) == set(bundle.kernels)


# Of no rows, or of no queries, their sums are zeros, which must be written.
SUMS_OVER_ROWS = {
    "rmsnorm_backward", "rmsnorm_residual_backward", "layernorm_backward", "attention_backward", "grouped_gemm_weights",
    "grouped_gemm_accumulate", "linear_cross_entropy",
}  # fmt: skip


def test_no_rows_launch_nothing(bundle: aot_runtime.Bundle, contracts: dict[str, Contract], torch: Any) -> None:
    """Every kernel succeeds without elements to compute. A profiler sees no kernel then, but one for a call that has some."""
    variants = variants_of(bundle.path, bundle.manifest)
    calls = []
    for kernel, contract in contracts.items():
        record = bundle.manifest.kernels[kernel]
        for dtype, choices, arguments in calls_of(record, contract.inputs, dtypes_of(variants, kernel)[:1], "cuda"):
            outputs = make_outputs(record, arguments, "cuda", picked=dtype)
            if all(output.numel() == 0 for output in outputs.values()):
                calls.append((kernel, {**arguments, **outputs, **choices}))
                break
    assert set(contracts) - {kernel for kernel, _ in calls} <= SUMS_OVER_ROWS
    x = torch.ones(8, device="cuda")
    torch.cuda.synchronize()
    # Without acc_events torch warns that it forgets events of earlier cycles, and there is only one.
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as seen:
        for kernel, arguments in calls:
            bundle[kernel](**arguments)
        bundle["add"](x, x, torch.empty_like(x))
        torch.cuda.synchronize()
    launched = [event.name for event in seen.events() if event.name.startswith("kernel_cutlass")]
    assert len(launched) == 1 and "Add" in launched[0]


def test_nan_and_infinity_travel_as_in_the_reference(bundle: aot_runtime.Bundle, torch: Any) -> None:
    x = torch.randn(7, 33, device="cuda", dtype=torch.float32)
    x[0, 0], x[1, 5], x[2, 32] = float("nan"), float("inf"), float("-inf")
    y, out = torch.ones_like(x), torch.empty_like(x)
    bundle["add"](x, y, out)
    assert torch.equal(torch.isnan(out), torch.isnan(x))
    assert torch.equal(out[1:], (x + y)[1:])
    for op in ("relu", "gelu", "gelu_tanh", "silu"):
        bundle["activation"](x, out, op=op)
        assert torch.isnan(out[0, 0])
        assert out[1, 5] == float("inf")


def test_a_graph_replays_after_preload(bundle: aot_runtime.Bundle, torch: Any) -> None:
    bundle.preload(device=0)
    x, y = torch.randn(2, 512, 512, device="cuda").unbind(0)
    out = torch.zeros_like(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        bundle["add"](x, y, out)
    x.normal_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, x + y)


@pytest.mark.parametrize("rows", [1, 64, 8192])
def test_each_kernel_sees_what_the_one_ahead_wrote(bundle: aot_runtime.Bundle, torch: Any, rows: int) -> None:
    """Kernels are launched before the one ahead has ended: here each reads what it wrote, and overwrites what it read."""
    bundle.preload(0)
    columns = 512
    weight = torch.full((columns, columns), 2.0**-9, device="cuda", dtype=torch.bfloat16)
    x, y = torch.zeros(2, rows, columns, device="cuda", dtype=torch.bfloat16).unbind(0)
    one = torch.ones_like(x)

    def chain() -> None:
        for _ in range(20):
            bundle["add"](x, one, y)  # one more
            bundle["gemm"](y, weight, x)  # their mean, which is the same
            x.mul_(1.0)  # a kernel that knows nothing of this, ahead and behind
            bundle["activation"](x, y, op="relu")
            bundle["add"](y, one, x)

    chain()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain()
    for _ in range(4):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(x, torch.full_like(x, 200.0))


@pytest.mark.parametrize("captured", [False, True])
def test_what_is_ahead_need_not_be_a_kernel(bundle: aot_runtime.Bundle, torch: Any, captured: bool) -> None:
    """A copy, a memset, another stream, several of these at once: each is over before a kernel reads what it wrote."""
    bundle.preload(0)
    x, y, out, source = torch.randn(4, 1 << 22, device="cuda").unbind(0)
    beside = torch.cuda.Stream()

    def chain() -> None:
        x.copy_(source)
        bundle["add"](x, x, out)
        y.zero_()
        bundle["add"](out, y, x)
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            y.copy_(source)
            bundle["add"](y, y, y)
        bundle["add"](x, source, out)
        torch.cuda.current_stream().wait_stream(beside)
        bundle["add"](out, y, x)

    expected = 2 * source + source + 2 * source
    if captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            chain()
        chain = graph.replay
    for _ in range(5):
        x.fill_(float("nan"))
        chain()
        torch.cuda.synchronize()
        assert torch.equal(x, expected)


def test_calls_follow_torchs_current_stream(bundle: aot_runtime.Bundle, torch: Any) -> None:
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


def test_wrong_calls_are_refused_before_anything_runs(bundle: aot_runtime.Bundle, torch: Any) -> None:
    x = torch.ones(8, device="cuda")
    out = torch.zeros(8, device="cuda")
    with pytest.raises(aot_runtime.ArgumentError, match=r"y\.shape\[0\] is 7, must equal x\.shape\[0\]"):
        bundle["add"](x, x[:7], out)
    with pytest.raises(aot_runtime.ArgumentError, match="none of the tensors lies on a CUDA device"):
        bundle["add"](x.cpu(), x.cpu(), out.cpu())
    with pytest.raises(aot_runtime.ArgumentError, match=r"x\.dtype is float64"):
        bundle["add"](x.double(), x, out)
    assert not out.any()


@pytest.mark.parametrize("columns", [40, 512, 4096, 4097, 40_000])
def test_a_residual_is_updated_in_place(bundle: aot_runtime.Bundle, torch: Any, columns: int) -> None:
    x, residual = torch.randn(2, 33, columns, device="cuda", dtype=torch.bfloat16).unbind(0)
    weight = torch.randn(columns, device="cuda", dtype=torch.bfloat16)
    out, total = torch.empty_like(x), torch.empty_like(x)
    bundle["rmsnorm_residual"](x, residual, weight, out, total)
    bundle["rmsnorm_residual"](x, residual, weight, x, residual)
    assert torch.equal(x, out)
    assert torch.equal(residual, total)


IN_PLACE = {
    "softmax": {},
    "rmsnorm": {"weight": 1},
    "layernorm": {"weight": 1, "bias": 1},
    "activation": {"op": "gelu"},
    "add": {"y": 2},
}


@pytest.mark.parametrize("columns", [40, 4096, 4097, 40_000])
@pytest.mark.parametrize("kernel", IN_PLACE)
def test_a_tensor_is_replaced_in_place(bundle: aot_runtime.Bundle, torch: Any, kernel: str, columns: int) -> None:
    x = torch.randn(33, columns, device="cuda", dtype=torch.bfloat16)
    shapes = {1: (columns,), 2: (33, columns)}
    others = {
        name: torch.randn(shapes[item], device="cuda", dtype=torch.bfloat16) if item in shapes else item
        for name, item in IN_PLACE[kernel].items()
    }
    out = torch.empty_like(x)
    bundle[kernel](x=x, out=out, **others)
    bundle[kernel](x=x, out=x, **others)
    assert torch.equal(x, out)


@pytest.mark.parametrize("elements", [128, 6])
def test_heads_are_turned_in_place(bundle: aot_runtime.Bundle, torch: Any, elements: int) -> None:
    x = torch.randn(33, 7, elements, device="cuda", dtype=torch.bfloat16)
    cos, sin = torch.randn(2, 33, elements // 2, device="cuda").unbind(0)
    out = torch.empty_like(x)
    bundle["rope"](x, cos, sin, out)
    bundle["rope"](x, cos, sin, x)
    assert torch.equal(x, out)


def test_a_class_that_does_not_exist_has_no_loss_and_reads_nothing(bundle: aot_runtime.Bundle, torch: Any) -> None:
    classes = torch.tensor([0, 511, 512, -1, -100, 1 << 40], device="cuda")
    loss = torch.empty(6, device="cuda")
    bundle["cross_entropy"](torch.zeros(6, 512, device="cuda", dtype=torch.bfloat16), classes, loss)
    uniform = torch.log(torch.tensor(512.0))
    assert loss[:2].cpu().allclose(uniform)
    assert loss.isnan().tolist() == [False, False, True, True, False, True]
    assert loss[4] == 0


@pytest.mark.parametrize("shape", [(1, 8192), (64, 18_432), (3, 50_257), (1, 128_256)])
def test_blocks_that_share_a_row_give_the_same_bits_every_time(
    bundle: aot_runtime.Bundle, torch: Any, shape: tuple[int, int]
) -> None:
    """Launched in a row, each over what the one before wrote, so that a block that runs ahead is noticed."""
    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    weight = torch.ones(shape[1], device="cuda", dtype=torch.bfloat16)
    first, out = torch.empty_like(x), torch.empty_like(x)
    bundle["rmsnorm"](x, weight, first)
    bundle["rmsnorm"](first, weight, first)
    for _ in range(100):
        out.copy_(x)
        bundle["rmsnorm"](out, weight, out)
        bundle["rmsnorm"](out, weight, out)
        assert torch.equal(out, first)


def test_an_output_that_overlaps_an_input_is_refused(bundle: aot_runtime.Bundle, torch: Any) -> None:
    both = torch.randn(9, 512, device="cuda", dtype=torch.bfloat16)
    before = both.clone()
    with pytest.raises(aot_runtime.ArgumentError, match="out starts 1024 bytes after x and shares memory with it"):
        bundle["softmax"](both[:8], both[1:])
    with pytest.raises(aot_runtime.ArgumentError, match="out starts 0 bytes after weight and shares memory with it"):
        bundle["rmsnorm"](both[:1], both[8], both[8:])
    torch.cuda.synchronize()
    assert torch.equal(both, before)


def test_halves_of_the_columns_of_one_matrix_do_not_overlap(bundle: aot_runtime.Bundle, torch: Any) -> None:
    both = torch.randn(300, 1024, device="cuda")
    left, right = both[:, :512], both[:, 512:]
    expected = left.double().softmax(-1)
    bundle["softmax"](left, right)
    assert torch.allclose(right.double(), expected, atol=1e-6)


def test_shapes_that_make_no_sense_are_refused(bundle: aot_runtime.Bundle, torch: Any) -> None:
    x, out = torch.ones(4, 16, device="cuda"), torch.zeros(4, device="cuda")
    with pytest.raises(aot_runtime.ArgumentError, match=r"x\.shape\[1\] is 0, must be 1 to"):
        bundle["reduce"](x[:, :0], out, op="max")
    with pytest.raises(aot_runtime.ArgumentError, match=r"both == \(2 \* n\)"):
        bundle["silu_and_mul"](x, torch.zeros(4, 7, device="cuda"))
    with pytest.raises(aot_runtime.ArgumentError, match=r"weight\.shape\[0\] is 15"):
        bundle["layernorm"](x, torch.ones(15, device="cuda"), torch.ones(16, device="cuda"), torch.empty_like(x))
    assert not out.any()
