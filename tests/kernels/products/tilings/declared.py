"""Tilings that no shipped product has: each feature of a tile with operands for which it is not tuned.

``test_tilings.py`` compiles them. On a GPU: ``python -m aot build --kernels tests/kernels/products/tilings --name tilings --arch
sm90`` and ``python -m aot check dist/tilings``.
"""

from functools import partial

import aot
from kernels.products import gemm, gemm_f32, gemm_fp8
from kernels.products._bias_activation import Gemm
from kernels.products._tf32 import F32BiasActivation, Tf32Gemm, Tf32Mainloop
from kernels.sm90.tiling import Tiling

from .contracts import gemm_fp8_tilings as fp8_contract
from .contracts import gemm_tf32_tilings as f32_contract
from .contracts import gemm_tilings as gemm_contract

BF16 = (
    Tiling(128, 256, cooperative=True, side_by_side=True, cluster_m=2),
    Tiling(128, 128, cluster_m=2, cluster_n=2, lines=2),
    Tiling(64, 128, cooperative=True, split_k=2, own_partials=True),
)
F8 = partial(Tiling, operand_bytes=1, promoted=1)
F8_TILINGS = (
    F8(128, 128, cluster_n=2, cooperative=True),
    F8(64, 128),
    F8(64, 64, rows=16),
    F8(64, 88, swapped=True, cluster_m=2),
    F8(128, 96, cooperative=True, split_k=2),
)
F32 = partial(Tiling, operand_bytes=4, out_bytes=4, promoted=2)
TF32_TILINGS = (
    F32(64, 64),
    F32(128, 64, cooperative=True, cluster_n=2),
    F32(64, 64, lines=2, promoted=1, cooperative=True),
)
ACTIVATIONS = tuple(gemm.EPILOGUES.values())


def few(tiling):
    rows = (f"m <= {tiling.rows}",) if tiling.rows else ()
    return ("k > 0", f"k >= {tiling.least_k}", *rows)


def supplied():
    return {"clusters": aot.ActiveClusters(), "stream": aot.Stream()}


@aot.kernel(
    parameters=gemm.gemm.parameters,
    archs=("sm_90a",),
    choices={"epilogue": {"identity": 0}},
    choice_defaults={"epilogue": "identity"},
    contract=gemm_contract,
    tuned_by=("m", "n", "k"),
)
def gemm_tilings(target, epilogue):
    extents = {"a": ("m", "k"), "b": ("n", "k"), "out": ("m", "n")}
    arguments = {
        **{name: gemm.matrix(name, "bf16", *shape, True, False) for name, shape in extents.items()},
        "bias": aot.Tensor("bf16", ("n",), optional=True),
        "which": aot.Constant(epilogue),
        **supplied(),
    }
    return [aot.Spec(Gemm(one, target, ACTIVATIONS), arguments, few(one), f"t{i}") for i, one in enumerate(BF16)]


@aot.kernel(
    parameters=gemm_fp8.gemm_fp8.parameters,
    archs=("sm_90a",),
    axes={"dtype": ("bf16",)},
    contract=fp8_contract,
    tuned_by=("m", "n", "k"),
)
def gemm_fp8_tilings(target, dtype):
    arguments = {
        "a": gemm_fp8.rows_of("a", "f8e4m3", "m", "k"),
        "b": gemm_fp8.rows_of("b", "f8e4m3", "n", "k"),
        "out": gemm_fp8.rows_of("out", dtype, "m", "n"),
        "a_scale": aot.Tensor("f32", ("a_scales",)),
        "b_scale": aot.Tensor("f32", ("b_scales",)),
        "offsets": aot.Constant(None),
        **supplied(),
    }
    fitting = ("a_scales == m or a_scales == 1", "b_scales == n or b_scales == 1")
    functions = [gemm_fp8.product(one, target, "rows") for one in F8_TILINGS]
    return [
        aot.Spec(function, arguments, (*few(one), *fitting), f"t{i}")
        for i, (one, function) in enumerate(zip(F8_TILINGS, functions, strict=True))
    ]


@aot.kernel(
    parameters=gemm_f32.gemm_f32.parameters,
    archs=("sm_90a",),
    choices={"epilogue": {"identity": 0}, "precision": {"tf32": True}},
    choice_defaults={"epilogue": "identity", "precision": "tf32"},
    contract=f32_contract,
    tuned_by=("m", "n", "k"),
)
def gemm_tf32_tilings(target, epilogue, precision):
    arguments = {
        "a": gemm_f32.contiguous("a", "m"),
        "b": gemm_f32.contiguous("b", "n"),
        "out": gemm_f32.aligned_rows("out", "m", "n"),
        "bias": aot.Tensor("f32", ("n",), optional=True),
        "which": aot.Constant(epilogue),
        **supplied(),
    }
    activations = tuple(gemm_f32.EPILOGUES.values())
    functions = [Tf32Gemm(Tf32Mainloop(one), F32BiasActivation(one, activations), target) for one in TF32_TILINGS]
    return [
        aot.Spec(function, arguments, few(one), f"t{i}")
        for i, (one, function) in enumerate(zip(TF32_TILINGS, functions, strict=True))
    ]
