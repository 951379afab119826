"""The shipped GEMM as far as it can be tested without a GPU: what is compiled, chosen, launched and refused."""

from __future__ import annotations

import ctypes
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import aot_runtime
import pytest
from aot_runtime import ArgumentError, Device, TensorInfo
from aot_runtime.core.asking import variant_function
from standin import Standin

from aot.bundle.tables.models import Models, read_source
from aot.model.parts import known_parts
from kernels.contracts.products.gemm import LAID_OUT, LONG, SHAPES

ARCHS = ("sm_80", "sm_90a", "sm_100f")
TUNING = (Path(__file__).parents[3] / "kernels" / "tuning" / "products.json",)


def problem(m: int, n: int, k: int) -> tuple[TensorInfo, ...]:
    return TensorInfo("f16", (m, k)), TensorInfo("f16", (n, k)), TensorInfo("f16", (m, n)), TensorInfo("f16", (n,))


def takes(bundle: aot_runtime.Bundle, m: int, n: int, k: int) -> list[Any]:
    """The variants for sm_90a that take a product, whichever is chosen."""
    candidates = bundle.explain("gemm", "9.0", *problem(m, n, k)).candidates
    return [one for one in candidates if not one.reason and one.arch == "sm_90a"]


def tensors(cuda: Standin, m: int, n: int, k: int, **changed: Any) -> list[Any]:
    made = {
        "a": lambda: cuda.tensor((m, k), "float16"),
        "b": lambda: cuda.tensor((n, k), "float16"),
        "out": lambda: cuda.tensor((m, n), "float16"),
        "bias": lambda: cuda.tensor((n,), "float16"),
    }
    return [changed[name] if name in changed else make() for name, make in made.items()]


@pytest.mark.parametrize("arch", ARCHS)
def test_nothing_spills_to_memory(arch: str, path: Path) -> None:
    variants = json.loads((path / "details" / f"{arch}.json").read_text())["variants"]
    assert len(variants) > 1
    for variant in variants:
        assert [launch["local_memory"] for launch in variant["launches"]] == [0], variant["name"]


HOPPER = [Device(part.capability, part.name, part.multiprocessors, part.bandwidth) for part in known_parts()]


@pytest.mark.parametrize("device", ["8.0", "8.9", *HOPPER, "10.0", "10.3"])
@pytest.mark.parametrize("n", [1024, 8192])
def test_a_tile_is_hardly_higher_than_a_product_of_few_rows(
    device: str | Device, n: int, bundle: aot_runtime.Bundle
) -> None:
    """Rows that a tile has and the product has not are computed in vain: by the model, 64 of them are faster than 48 for 17."""
    heights = []
    for m in (1, 16, 17, 64, 65, 128, 161, 257, 1000, 8192):
        chosen = bundle.explain("gemm", device, *problem(m, n, 4096)).chosen
        assert chosen is not None
        heights.append((m, int(chosen.variant.rpartition("__tile")[2].partition("x")[0])))
    lowest = min(height for _, height in heights)
    assert all(height <= max(4 * m, 2 * lowest) for m, height in heights), heights


def tilings(path: Path) -> list[str]:
    """The variants for sm_90a that take matrices: one for each tiling."""
    variants = json.loads((path / "details" / "sm_90a.json").read_text())["variants"]
    return [variant["name"] for variant in variants if variant["point"]["batched"] == "matrix"]


def launched(cuda: Standin, bundle: aot_runtime.Bundle, name: str, m: int, n: int, k: int) -> Any:
    variant_function(bundle, "gemm", name)(*tensors(cuda, m, n, k))
    return cuda.launches[-1]


@pytest.mark.parametrize("multiprocessors", [132, 78])
def test_every_tiling_fills_the_device_and_starts_no_cluster_without_a_tile(
    multiprocessors: int, path: Path, cuda: Standin, tmp_path: Path
) -> None:
    cuda.reset(capabilities=[(9, 0)], sm_counts=[multiprocessors])
    # A copy: a bundle asks a device once.
    bundle = aot_runtime.load(shutil.copytree(path, tmp_path / "bundle"))
    many_rows, few_rows, one_tile = (8192, 8192, 512), (16, 32768, 512), (16, 16, 512)
    takes_many = {one.variant for one in takes(bundle, *many_rows)}
    for name in tilings(path):
        large = launched(cuda, bundle, name, *(many_rows if name in takes_many else few_rows))
        small = launched(cuda, bundle, name, *one_tile)
        blocks, together = math.prod(large.grid), math.prod(large.cluster)
        fitting = multiprocessors // together * together
        assert math.prod(small.grid) == together, name
        if (parts := name.rpartition("_splitk")[2]) == name:
            assert blocks == fitting, name  # they share the tiles
        else:
            assert blocks > fitting and together == int(parts), name  # a cluster shares the sums of one tile


def test_the_contract_has_a_product_for_every_tiling(path: Path, bundle: aot_runtime.Bundle) -> None:
    variants = json.loads((path / "details" / "sm_90a.json").read_text())["variants"]
    taken = {one.variant for m, n, k in SHAPES if m for one in takes(bundle, m, n, k)}
    assert taken == {variant["name"] for variant in variants if variant["point"]["batched"] == "matrix"}


@pytest.mark.compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of CuTe DSL
def test_the_contract_has_a_product_for_every_tiling_of_gradients() -> None:
    from kernels.products.gemm import SM90_BY_WEIGHT, SM90_BY_X

    extents = [dict(zip("mnk", shape, strict=True)) for shape in (*LAID_OUT, LONG)]
    for choice in (*SM90_BY_X, *SM90_BY_WEIGHT):
        assert any(all(eval(guard, {}, one) for guard in choice.guards) for one in extents), choice.tiling.label


@pytest.mark.compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of CuTe DSL
def test_gradients_of_many_tiles_take_one_tiling_alone_by_the_length_of_their_sums() -> None:
    from kernels.products.gemm import SM90_BY_WEIGHT, SM90_BY_X, SM90_GENERAL, SM90_LONG

    for k, only in ((8191, SM90_GENERAL), (8192, SM90_LONG)):
        large = {"m": 8192, "n": 2048, "k": k}
        for choices in (SM90_BY_X, SM90_BY_WEIGHT):
            taking = [choice.tiling for choice in choices if all(eval(guard, {}, large) for guard in choice.guards)]
            assert taking == [only]


@pytest.mark.compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of CuTe DSL
def test_gradients_of_weights_load_columns_by_32_or_more() -> None:
    from kernels.products.gemm import SM90_BY_WEIGHT

    assert not [one.tiling.label for one in SM90_BY_WEIGHT if one.tiling.m % 32 or one.tiling.n % 32]


@pytest.mark.parametrize(("capability", "early"), [((8, 0), False), ((9, 0), True), ((10, 0), True)])
def test_it_is_launched_before_the_kernel_ahead_has_ended_where_that_can_be(
    capability: tuple[int, int], early: bool, path: Path, cuda: Standin, tmp_path: Path
) -> None:
    cuda.reset(capabilities=[capability])
    bundle = aot_runtime.load(shutil.copytree(path, tmp_path / "bundle"))
    bundle["gemm"](*tensors(cuda, 256, 640, 64))
    assert [launch.early for launch in cuda.launches] == [early]


def test_a_bias_may_be_left_out(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    """The same code runs with and without a bias; without one, it gets a bias without elements."""
    a, b, out, bias = tensors(cuda, 256, 640, 64)
    bundle["gemm"](a, b, out, bias)
    bundle["gemm"](a, b, out)
    with_bias, without = cuda.launches
    assert (with_bias.kernel, with_bias.grid) == (without.kernel, without.grid)


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (10, 0)])
def test_a_matrix_is_a_batch_of_one(capability: tuple[int, int], path: Path, cuda: Standin, tmp_path: Path) -> None:
    cuda.reset(capabilities=[capability])
    bundle = aot_runtime.load(shutil.copytree(path, tmp_path / "bundle"))
    shapes = ((600, 64), (640, 64), (600, 640))
    chosen = bundle.explain("gemm", capability, *(TensorInfo("f16", (2, *shape)) for shape in shapes)).chosen
    assert chosen is not None
    matrix = variant_function(bundle, "gemm", chosen.variant.replace("__batch__", "__matrix__"))
    matrix(*(cuda.tensor(shape, "float16") for shape in shapes))
    bundle["gemm"](*(cuda.tensor((2, *shape), "float16") for shape in shapes))
    single, batch = cuda.launches
    assert single.kernel == batch.kernel and single.grid[0] < batch.grid[0]


def test_a_bias_is_no_address(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    a, b, out, _ = tensors(cuda, 256, 640, 64)
    with pytest.raises(ArgumentError, match="bias is a pointer"):
        bundle["gemm"](a, b, out, ctypes.c_void_p(16))


def test_a_problem_without_rows_launches_nothing(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    bundle["gemm"](*tensors(cuda, 0, 64, 64))
    assert cuda.launches == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"bias": ((63,), "float16")}, "bias.shape[0] is 63, must equal b.shape[0], which is 64"),
        ({"bias": ((0,), "float16")}, "bias.shape[0] is 0, must equal b.shape[0], which is 64"),
        ({"bias": ((64,), "bfloat16")}, "bias.dtype is bfloat16"),
        ({"bias": ((64, 1), "float16")}, "bias.ndim is 2"),
        ({"b": ((64, 72), "float16")}, "b.shape[1] is 72, must equal a.shape[1], which is 64"),
        ({"a": ((256, 64), "bfloat16")}, "a.dtype is bfloat16"),
        ({"out": ((256, 65), "float16")}, "out.shape[1] is 65"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    changed: dict[str, Any], said: str, cuda: Standin, bundle: aot_runtime.Bundle
) -> None:
    made = {name: cuda.tensor(*made) for name, made in changed.items()}
    with pytest.raises(ArgumentError) as caught:
        bundle["gemm"](*tensors(cuda, 256, 64, 64, **made))
    assert said in str(caught.value)
    assert cuda.launches == []


def test_rows_that_are_not_16_bytes_apart_are_refused(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    with pytest.raises(ArgumentError, match=r"a\.strides\[0\] is 60, must be divisible by 8"):
        bundle["gemm"](*tensors(cuda, 256, 64, 60))


def test_a_product_over_nothing_is_refused(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    with pytest.raises(ArgumentError, match=r"k > 0|a\.shape\[1\] is 0"):
        bundle["gemm"](
            *tensors(
                cuda,
                256,
                64,
                0,
                a=cuda.tensor((256, 0), "float16", strides=(8, 1)),
                b=cuda.tensor((64, 0), "float16", strides=(8, 1)),
            )
        )


# The compiler stays out of this process: beside the stand-in it would find a driver.
DECLARED = """
import json
from kernels.products import gemm, gemm_f32, gemm_fp8
tilings = {
    "gemm": gemm.SM90_TILINGS, "tf32": gemm_f32.SM90_TF32_TILINGS, "exact": gemm_f32.SM90_EXACT_TILINGS,
    "rows": gemm_fp8.SM90_ROWS_TILINGS, "blocks": gemm_fp8.SM90_BLOCKS_TILINGS,
}
# A misspelt label would leave a tiling out, and a call that no other takes would be refused.
labels = [choice.tiling.label for choice in gemm.SM90_CHOICES if choice.core]
assert gemm.SM90_GENERAL.label in labels and sorted(labels) == sorted(gemm.SM90_CORE), labels
print(json.dumps({name: [tiling.label for tiling in own] for name, own in tilings.items()}))
"""


def test_the_shipped_models_are_of_the_tilings_that_are_declared() -> None:
    """A tiling without a model is in no table."""
    done = subprocess.run([sys.executable, "-c", DECLARED], capture_output=True, text=True, check=True)
    models = read_source(TUNING[0])
    assert isinstance(models, Models)
    found = {
        one.point.get("scales") or one.point.get("precision") or kernel.kernel: sorted(one.numbers)
        for kernel in models.models
        for one in kernel.sets
    }
    assert found == {name: sorted(labels) for name, labels in json.loads(done.stdout).items()}
