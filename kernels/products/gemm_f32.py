"""``out = epilogue(a @ b.T + bias)``, one or a batch of them, in f32, whatever the strides.

``gemm`` is the same for f16 and bf16, and much faster: its numbers are half as wide, and the tensor cores take them as
they are. This one multiplies f32 exactly, or rounds both inputs to TF32 if the caller asks for that. On sm_90a the tensor cores
compute exact products too, of pieces of the numbers: see ``_exact``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import aot

from .._activations import EpilogueSilu, Gelu, Identity, Relu
from .._device import ARCHS, TMA, VECTOR_BYTES, forward
from ..contracts.products import gemm_f32 as contract
from ..sm90 import tiling as sm90
from . import _f32_contiguous, _f32_few_rows
from ._exact import ExactBiasActivation, ExactGemm, PiecesMainloop
from ._f32_portable import Gemm, Tiling
from ._tf32 import DirectBiasActivation, F32BiasActivation, Tf32Gemm, Tf32Mainloop

FAMILY = "f32"

EPILOGUES = {"identity": Identity, "relu": Relu, "gelu": Gelu, "silu": EpilogueSilu}
TILING = Tiling()
# For exact products of few rows, of which the first that takes a product computes it.
FEW_ROWS = tuple(_f32_few_rows.Tiling(m, n, ahead) for m, n, ahead in ((1, 2, 4), (2, 4, 2), (4, 4, 2)))
# For inputs that are contiguous along k.
SMALL = _f32_contiguous.Tiling(64, 64, warps=(2, 2), stages=4)
LARGE = _f32_contiguous.Tiling(128, 128, warps=(4, 2), stages=4)
# Times of a multiprocessor for a step along k of a small tile, and of a half of a large one, of exact products on an H200.
SMALL_TIME, HALF_LARGE_TIME = 38, 54  # nanoseconds
# For exact products of few rows, too: lower tiles, which TF32 does not have.
LOW = (
    _f32_contiguous.LowTiling(16, 128, warps=(1, 4), stages=4),
    _f32_contiguous.LowTiling(32, 64, warps=(2, 2), stages=4),
)

# For products of TF32 on sm_90a. As in f8, few rows of ``a`` are columns of a tile, and split-K is for few tiles with a long k.
# A table for each kind of device chooses among them, as for `gemm`.
_F32 = {"operand_bytes": 4, "out_bytes": 4, "cooperative": True, "tall_stores": False, "own_partials": True}
_T = partial(sm90.Tiling, promoted=2, **_F32)
SM90_TF32_TILINGS = (
    _T(128, 128, cluster_m=2),
    _T(128, 16, split_k=4, swapped=True),
    _T(128, 32, swapped=True),
    _T(128, 32, split_k=2, buffers=1, swapped=True),
    _T(128, 32, split_k=4, swapped=True),
    _T(128, 48, split_k=3, swapped=True),
    _T(64, 64, split_k=4),
    _T(64, 96),
    _T(128, 64, buffers=1, swapped=True),
    *(_T(128, 64, split_k=blocks, swapped=True) for blocks in (3, 4)),
    _T(128, 96, cluster_m=2),
    _T(128, 96, split_k=2, swapped=True),
    _T(128, 96, split_k=4, buffers=1, swapped=True),
    _T(128, 112, swapped=True),
    _T(128, 128, split_k=2),
    _T(128, 128, split_k=4, buffers=1, swapped=True),
    _T(128, 144, split_k=3, buffers=1, swapped=True),
    _T(128, 160, cluster_m=2, buffers=1),
    *(_T(128, columns, cluster_m=2, buffers=1, swapped=True) for columns in (128, 144, 160, 192)),
    _T(128, 160, split_k=2, buffers=1, swapped=True),
    _T(128, 176, buffers=1, swapped=True),
    _T(128, 256, side_by_side=True, cluster_m=2),
)
# If rows of the output are not contiguous, or not aligned.
SM90_TF32_DIRECT = (
    (_T(64, 64), ("m <= 64",)),
    (_T(128, 128), ()),
)

# For exact products on sm_90a, chosen in the same way. Fewer rows than these are multiplied without tiles.
_E = partial(sm90.Tiling, promoted=1, **_F32)
SM90_EXACT_ROWS = 1 + max(few.m for few in FEW_ROWS)
SM90_EXACT_TILINGS = (
    _E(128, 96, buffers=1),
    *(_E(128, 32, split_k=blocks, swapped=True) for blocks in (2, 3, 4, 8)),
    _E(128, 48, split_k=3, swapped=True),
    _E(128, 64, swapped=True),
    *(_E(128, 64, split_k=blocks, swapped=True) for blocks in (2, 4)),
    _E(128, 80, swapped=True),
    _E(128, 96, swapped=True),
    *(_E(128, 96, split_k=blocks, buffers=1, swapped=True) for blocks in (2, 3)),
    *(_E(128, columns, buffers=1, swapped=True) for columns in (112, 128, 144, 160)),
    _E(128, 160, buffers=1),
)
SM90_EXACT_PASSES = 3  # products of pieces of half the width: see `_exact`


def matrix(name: str, *shape: str) -> aot.Tensor:
    return aot.Tensor("f32", shape, tuple(aot.Dim(f"{name}_stride_{i}", bits=64) for i in range(len(shape))))


def contiguous(name: str, *rows: str) -> aot.Tensor:
    """Matrices that are read in chunks along k."""
    chunk = _f32_contiguous.Tiling.chunk
    strides = tuple(aot.Dim(f"{name}_stride_{i}", divisible_by=chunk, bits=64) for i in range(len(rows)))
    return aot.Tensor("f32", (*rows, aot.Dim("k", divisible_by=chunk)), (*strides, 1), align=VECTOR_BYTES)


def aligned_rows(name: str, *shape: str) -> aot.Tensor:
    """A matrix whose rows TMA can write."""
    chunk = _f32_contiguous.Tiling.chunk
    return aot.Tensor("f32", shape, (aot.Dim(f"{name}_stride_0", divisible_by=chunk, bits=64), 1), align=VECTOR_BYTES)


@aot.kernel(
    parameters=(
        aot.In("a", "m x k, or a batch of such"),
        aot.In("b", "n x k, or as many"),
        aot.Out("out", "m x n", shape="(*a.shape[:-1], b.shape[-2])", dtype="a.dtype"),
        aot.In("bias", "n, or none", default=None),
    ),
    archs=ARCHS,
    choices={
        "epilogue": {name: index for index, name in enumerate(EPILOGUES)},
        "precision": {"exact": False, "tf32": True},
    },
    choice_defaults={"epilogue": "identity", "precision": "exact"},
    axes={"batched": {"matrix": False, "batch": True}},
    contract=contract,
    tuned_by=("m", "n", "k"),
    backward=aot.Composed(
        a="gemm_f32(grad_out, b.mT, precision=precision)",
        b="gemm_f32(grad_out.mT, a.mT, precision=precision)",
        bias="column_sums(grad_out.rows)[0]",
        split="activation(gemm_f32(a, b, bias, precision=precision).rows, op=epilogue)",
        whole={"epilogue": "identity"},
    ),
)
def gemm_f32(target: aot.Target, epilogue: int, precision: bool, batched: bool) -> list[aot.Spec]:
    """``out = epilogue(a @ b.T + bias)`` of f32 with any strides; ``precision="tf32"`` rounds ``a`` and ``b`` to TF32."""
    matrices = {
        "a": matrix("a", "batch", "m", "k"),
        "b": matrix("b", "batch", "n", "k"),
        "out": matrix("out", "batch", "m", "n"),
    }
    aligned = {"a": contiguous("a", "batch", "m"), "b": contiguous("b", "batch", "n")}
    epilogues = tuple(EPILOGUES.values())
    arguments = {
        **{name: batch if batched else batch.single() for name, batch in matrices.items()},
        "bias": aot.Tensor("f32", ("n",), optional=True),
        "which": aot.Constant(epilogue),  # the code has all epilogues, and dispatch passes this number
        "stream": aot.Stream(),
    }
    chunked = {**arguments, **{name: batch if batched else batch.single() for name, batch in aligned.items()}}
    wgmma = not batched and TMA[target.written_for]
    specs = []
    if not precision:
        for few in FEW_ROWS:
            function = _f32_few_rows.FewRowsGemm(few, target, epilogues)
            specs.append(aot.Spec(function, chunked, ("k > 0", f"m <= {few.m}"), few.label))
    if wgmma:
        specs += tf32_specs(target, arguments) if precision else exact_specs(target, arguments)
    for tiling, guards in () if wgmma and precision else contiguous_tilings(precision, batched):
        function = _f32_contiguous.ContiguousGemm(tiling, target, epilogues, rounded=precision)
        code = "sm_80" if precision else ""  # exact products share a tile among the blocks of a cluster
        specs.append(aot.Spec(function, chunked, ("k > 0", *guards), tiling.label, written_for=code))
    general = Gemm(TILING, target, epilogues, rounded=precision)
    return [*specs, aot.Spec(general, arguments, ("k > 0",), TILING.label, written_for="sm_80")]


def contiguous_tilings(rounded: bool, batched: bool) -> list[tuple[_f32_contiguous.Tiling, tuple[str, ...]]]:
    """Tilings with their guards. Of exact products, small tiles compute those that they finish earlier."""
    if rounded:
        return [(SMALL, (f"m <= {SMALL.m}",)), (LARGE, ())]
    small, large = (tiles_of(tiling, batched) for tiling in (SMALL, LARGE))
    # Each multiprocessor has one large tile at a time, or half of one: see `ContiguousGemm.split`.
    large_time = f"{waves_of(f'{large} * 2', _f32_contiguous.MULTIPROCESSORS)} * {HALF_LARGE_TIME}"
    small_time = f"{waves_of(small, _f32_contiguous.MULTIPROCESSORS)} * {SMALL_TIME}"
    low = [(tiling, (f"m <= {tiling.m}",)) for tiling in LOW]
    return [*low, (SMALL, (f"m <= {SMALL.m} or {small_time} < {large_time}",)), (LARGE, ())]


def waves_of(tiles: str, at_once: int) -> str:
    """How many waves the ``tiles`` take if ``at_once`` of them are computed at once, as an expression."""
    return f"(({tiles} + {at_once - 1}) // {at_once})"


def tiles_of(tiling: _f32_contiguous.Tiling, batched: bool) -> str:
    tiles = f"((m + {tiling.m - 1}) // {tiling.m}) * ((n + {tiling.n - 1}) // {tiling.n})"
    return f"{tiles} * batch" if batched else tiles


def copied(arguments: dict[str, Any], out: aot.Tensor) -> dict[str, Any]:
    """Arguments whose inputs TMA can load."""
    return {
        "a": contiguous("a", "m"),
        "b": contiguous("b", "n"),
        "out": out,
        **{name: arguments[name] for name in ("bias", "which")},
        "clusters": aot.ActiveClusters(),
        "stream": aot.Stream(),
    }


def stored_specs(
    gemm: Callable[[sm90.Tiling], Any],
    tilings: Sequence[sm90.Tiling],
    arguments: dict[str, Any],
    *guards: str,
    passes: int = 1,
) -> list[aot.Spec]:
    """Products whose output TMA stores."""
    stored = copied(arguments, aligned_rows("out", "m", "n"))
    aligned = forward(stored, "a", "b", "out")
    specs = []
    for tiling in tilings:
        own = (*guards, f"k >= {tiling.least_k}", *aligned)
        specs.append(aot.Spec(gemm(tiling), stored, own, tiling.label, work=tiling.work(passes)))
    return specs


def exact_specs(target: aot.Target, arguments: dict[str, Any]) -> list[aot.Spec]:
    activations, few = tuple(EPILOGUES.values()), f"m >= {SM90_EXACT_ROWS}"

    def gemm(tiling: sm90.Tiling) -> ExactGemm:
        return ExactGemm(PiecesMainloop(tiling), ExactBiasActivation(tiling, activations), target)

    return stored_specs(gemm, SM90_EXACT_TILINGS, arguments, few, passes=SM90_EXACT_PASSES)


def tf32_specs(target: aot.Target, arguments: dict[str, Any]) -> list[aot.Spec]:
    activations = tuple(EPILOGUES.values())

    def gemm(tiling: sm90.Tiling, epilogue: type[F32BiasActivation] = F32BiasActivation) -> Tf32Gemm:
        return Tf32Gemm(Tf32Mainloop(tiling), epilogue(tiling, activations), target)

    specs = stored_specs(gemm, SM90_TF32_TILINGS, arguments)
    direct = copied(arguments, matrix("out", "m", "n"))
    for tiling, prefer in SM90_TF32_DIRECT:
        function, label = gemm(tiling, DirectBiasActivation), f"{tiling.label}_direct"
        specs.append(aot.Spec(function, direct, ("k > 0", *forward(direct, "a", "b"), *prefer), label))
    return specs
