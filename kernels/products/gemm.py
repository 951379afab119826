"""``out = epilogue(a @ b.T + bias)``, one or a batch of them, in f16 or bf16, summed in f32.

The tensor cores are the limit if a tile of the output is large: a tile of ``m`` x ``n`` takes ``2 * m * n * k``
operations and reads ``(m + n) * k`` elements. With few rows, reading ``b`` is the limit, and tiles must be so small that
every multiprocessor has one to load. So there are several tilings, and the shape of the problem chooses among them. The
code of each architecture is in its own file: ``_gemm_sm80``, ``_bias_activation`` on top of ``sm90``, ``sm100.gemm``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import aot

from .._activations import Identity, Relu, RoundedGelu, RoundedSilu
from .._device import forward
from ..contracts.products import gemm as contract
from ..sm80 import operands as sm80
from ..sm90.tiling import Tiling
from ..sm100 import gemm as sm100
from . import _bias_activation, _gemm_sm80

FAMILY = "gemm"

ALIGNMENT = 16  # bytes; TMA and the widest copies need it for addresses and strides
CHUNK = ALIGNMENT // 2  # elements


EPILOGUES = {"identity": Identity, "relu": Relu, "gelu": RoundedGelu, "silu": RoundedSilu}


class Choice(NamedTuple):
    """A tiling, the guards of its variants, and the terms of the model that predicts its time."""

    tiling: Any
    guards: tuple[str, ...] = ()
    work: aot.Work | None = None
    core: bool = True  # whether it is built without `--tilings all`


# The tilings for sm_90a. If a product has one tile more than the device has multiprocessors, it takes two waves, as long as
# with twice as many tiles. So there are tiles of many widths and heights, and a table for each kind of device chooses
# among them. The tables are computed from the models in `kernels/tuning/products.json`.
_T = Tiling
SM90_GENERAL = _T(128, 128, cluster_m=2)
SM90_TILINGS = (
    SM90_GENERAL,
    _T(64, 64, lines=2, rows=16),
    _T(64, 48, rows=16),
    *(_T(64, columns, lines=2, rows=16) for columns in (32, 48)),
    *(_T(64, 64, rows=16, split_k=blocks) for blocks in (2, 4)),
    _T(64, 80, rows=32),
    _T(64, 48, rows=32),
    _T(64, 64, rows=32, split_k=4),
    _T(64, 64),
    _T(64, 64, lines=2, cluster_n=4),
    _T(64, 128, split_k=4),
    *(_T(64, rows, swapped=True, cluster_m=4) for rows in (24, 48, 72, 88, 96)),
    *(_T(64, rows, swapped=True, cluster_m=4, buffers=1) for rows in (112, 128, 160)),
    *(_T(64, rows, swapped=True) for rows in (24, 40)),
    _T(64, 88, swapped=True, cluster_m=2),
    _T(64, 72, swapped=True, split_k=3),
    _T(64, 80, swapped=True, split_k=2),
    _T(64, 128, swapped=True, split_k=4, buffers=1),
    _T(128, 80, cooperative=True, cluster_n=4),
    _T(128, 96, cooperative=True, cluster_n=4),
    _T(128, 160, cluster_m=2),
    _T(128, 192, cluster_m=2, buffers=1),
    _T(128, 224, cooperative=True, cluster_m=2, buffers=1),
    *(_T(128, rows, swapped=True, cluster_m=2, buffers=1) for rows in (144, 160, 176, 192)),
    _T(128, 24, swapped=True, cooperative=True, split_k=5),
    _T(128, 48, swapped=True, cooperative=True, split_k=3),
    *(_T(128, rows, swapped=True, cooperative=True, split_k=4) for rows in (96, 160)),
    _T(128, 192, swapped=True, cooperative=True, split_k=3),
    _T(128, 96, swapped=True, cluster_n=2),
    *(_T(128, rows, swapped=True, cooperative=True, cluster_n=2) for rows in (80, 88, 104, 120, 136)),
    _T(128, 112, swapped=True, cooperative=True, cluster_n=2, buffers=1),
    *(_T(128, rows, swapped=True, cooperative=True, buffers=1) for rows in (112, 128, 136, 152)),
    _T(128, 200, swapped=True, cooperative=True),
    *(_T(128, rows, swapped=True, cooperative=True, cluster_m=2) for rows in (120, 184, 216)),
    _T(128, 208, swapped=True, cooperative=True, cluster_m=2, buffers=1),
    _T(192, 112, swapped=True, cluster_m=2, buffers=1),
    _T(192, 144, swapped=True, cooperative=True, side_by_side=True),
    *(_T(192, rows, swapped=True, cooperative=True, side_by_side=True, buffers=1) for rows in (176, 224)),
    _T(256, 128, swapped=True, cooperative=True, cluster_m=2, buffers=1),
    _T(256, 144, swapped=True, cooperative=True, cluster_n=2, buffers=1),
    _T(256, 192, swapped=True, cooperative=True, cluster_m=2, buffers=1),
    _T(64, 80, swapped=True, cluster_m=4),
    _T(64, 144, swapped=True, cluster_m=4),
    _T(64, 112, cluster_m=2, cluster_n=4),
    _T(128, 112, swapped=True, cluster_m=4, buffers=1),
    _T(128, 152, swapped=True, cluster_m=2, buffers=1),
    _T(128, 168, swapped=True, cluster_m=2),
    *(_T(192, rows, swapped=True, cluster_n=2, buffers=1) for rows in (80, 88, 104)),
    _T(192, 120, swapped=True),
    _T(192, 96, cluster_n=2, buffers=1),
    _T(256, 120, swapped=True, cooperative=True, buffers=1),
    _T(64, 32, rows=16),
    *(_T(64, rows, swapped=True, split_k=2) for rows in (32, 40, 72, 112)),
    _T(64, 96, swapped=True, split_k=4),
    *(_T(128, rows, swapped=True, cooperative=True, split_k=2) for rows in (48, 96)),
    *(_T(64, rows, swapped=True, cluster_m=4) for rows in (56, 104)),
    _T(64, 128, cluster_n=2),
    _T(128, 256, cooperative=True, cluster_m=2, buffers=1),
    _T(256, 112, swapped=True, cooperative=True, cluster_m=2, buffers=1),
    *(_T(64, rows, swapped=True, cluster_m=2) for rows in (80, 96)),
    *(_T(64, 120, swapped=True, cluster_m=blocks, buffers=1) for blocks in (2, 4)),
    _T(64, 136, swapped=True, cluster_m=4, buffers=1),
    *(_T(128, rows, swapped=True, cluster_m=2) for rows in (88, 104)),
    *(_T(128, rows, swapped=True, cluster_m=4) for rows in (88, 96)),
    *(_T(128, rows, swapped=True, cluster_m=4, buffers=1) for rows in (120, 144, 160)),
)

# The tilings that are built without `--tilings all`. `benchmarks/core_tilings.py` chose them by the model. Then 1000 random
# products were timed on an H200. Seven of them were slower than 0.85 of cuBLAS with these tilings, and faster than cuBLAS
# with all tilings, so some tilings were exchanged or added. Another set, chosen by 260 timed products, lost more on others.
SM90_CORE = frozenset((
    "tile128x128_cluster2x1", "tile16x64_k128", "tile32x48", "tile32x64_splitk4", "tile64x64_k128_cluster1x4",
    "tile64x128_splitk4", "tile48x64_swapped_cluster1x4", "tile96x64_swapped_cluster1x4", "tile128x64_swapped_cluster1x4",
    "tile160x64_swapped_cluster1x4", "tile72x64_swapped_splitk3", "tile80x64_swapped_splitk2",
    "tile128x96_cooperative_cluster1x4", "tile144x128_swapped_cluster1x2", "tile160x128_swapped_cluster1x2",
    "tile176x128_swapped_cluster1x2", "tile88x128_swapped_cooperative_cluster2x1",
    "tile112x128_swapped_cooperative_cluster2x1", "tile152x128_swapped_cooperative",
    "tile208x128_swapped_cooperative_cluster1x2", "tile64x64", "tile88x192_swapped_cluster2x1",
    "tile16x48",
))  # fmt: skip


def sm90_choice(tiling: Tiling) -> Choice:
    """A tiling as a choice. If several choices take a product, a table picks one."""
    return Choice(tiling, tiling.guards, tiling.work(), tiling.label in SM90_CORE)


# A product takes the first tiling whose conditions hold.
SM80_CHOICES = (
    Choice(sm80.Tiling(64, 64, warps=(2, 2), stages=4), ("m <= 64",)),
    Choice(sm80.Tiling(128, 128, warps=(2, 4), stages=3), ("m > 64",)),
)
SM90_CHOICES = tuple(sm90_choice(tiling) for tiling in SM90_TILINGS)
SM100_CHOICES = (
    Choice(sm100.Tiling(64), ("m <= 128",)),
    Choice(sm100.Tiling(256), ("m * n >= 8388608",)),  # two tiles for each multiprocessor, or more
    Choice(sm100.Tiling(128), ("m > 128",)),
)


def matrix(name: str, dtype: str, rows: Any, columns: Any, row_major: bool, batched: bool) -> aot.Tensor:
    """A matrix, or a batch of matrices, whose rows or columns are a multiple of 16 bytes apart."""
    leading = aot.Dim(f"{name}_stride", divisible_by=CHUNK, bits=64)
    shape, strides = (rows, columns), (leading, 1) if row_major else (1, leading)
    if batched:
        apart = aot.Dim(f"{name}_batch_stride", divisible_by=CHUNK, bits=64)
        shape, strides = ("batch", *shape), (apart, *strides)
    return aot.Tensor(dtype, shape, strides, align=ALIGNMENT)


class Code(NamedTuple):
    """The code for an architecture and its tilings."""

    gemm: type
    choices: tuple[Choice, ...]
    general: Any  # the tiling that suits most shapes
    supplied: dict[str, Any]  # arguments that dispatch fills in from facts of the device
    tma: bool  # whether TMA loads the operands; else threads do
    by_x: tuple[Choice, ...] = ()  # `a` row-major, `b` column-major: gradients of activations
    by_weight: tuple[Choice, ...] = ()  # both column-major: gradients of weights

    def choices_of(self, a: bool, b: bool, epilogue: int) -> tuple[Choice, ...]:
        """The tilings for operands that are row-major (True) or column-major. In forward passes, both are row-major."""
        if a and b:
            return self.choices
        gradients = {(True, False): self.by_x, (False, False): self.by_weight} if not epilogue else {}
        return gradients.get((a, b)) or (Choice(self.general),)


# The tilings for gradients. A table chooses among them. The model selected them for the products of networks. Gradients of
# activations have as many rows as the forward product; gradients of weights have many. Tiles of 144 columns of `a` were left
# out: 144 is no multiple of 32, and they took up to 1.7 times as long as the model predicts.
SM90_BY_X_LABELS = frozenset((
    "tile24x64_swapped_cluster1x4", "tile48x64_swapped_cluster1x4", "tile96x64_swapped_cluster1x4",
    "tile128x64_swapped_cluster1x4", "tile160x64_swapped_cluster1x4", "tile128x64_swapped_splitk4",
    "tile24x128_swapped_cooperative_splitk5", "tile96x128_swapped_cluster2x1", "tile112x128_swapped_cooperative_cluster2x1",
    "tile160x128_swapped_cluster1x2", "tile192x128_swapped_cluster1x2", "tile128x256_swapped_cooperative_cluster1x2",
))  # fmt: skip
SM90_BY_WEIGHT_LABELS = frozenset(("tile160x64_swapped_cluster1x4", "tile192x128_swapped_cluster1x2"))


LARGE, LONG = 2**24, 2**13  # elements of an output, and of its sums
SM90_LONG = _T(128, 256, cooperative=True, cluster_m=2, buffers=1)


def general_and(labels: frozenset[str]) -> tuple[Choice, ...]:
    """The general tiling, and others for small outputs.

    For large outputs, one of two is left: in steps of training a decoder on an H200, the larger tiles were 4% faster where
    sums are long, and the general ones 5% faster where they are not.
    """
    others = (sm90_choice(tiling) for tiling in SM90_TILINGS if tiling.label in labels)
    few = (one._replace(guards=(*one.guards, f"m * n < {LARGE}")) for one in others)
    general = sm90_choice(SM90_GENERAL)._replace(guards=(f"m * n < {LARGE} or k < {LONG}",))
    long = sm90_choice(SM90_LONG)._replace(guards=(f"m * n >= {LARGE}", f"k >= {LONG}"), core=True)
    return (general, long, *few)


SM90_BY_X, SM90_BY_WEIGHT = general_and(SM90_BY_X_LABELS), general_and(SM90_BY_WEIGHT_LABELS)
SM80 = Code(_gemm_sm80.Gemm, SM80_CHOICES, SM80_CHOICES[-1].tiling, {}, tma=False)
SM90 = Code(
    _bias_activation.Gemm,
    SM90_CHOICES,
    SM90_GENERAL,
    {"clusters": aot.ActiveClusters()},
    tma=True,
    by_x=SM90_BY_X,
    by_weight=SM90_BY_WEIGHT,
)
SM100 = Code(sm100.Gemm, SM100_CHOICES, SM100_CHOICES[-1].tiling, {"multiprocessors": aot.Multiprocessors()}, tma=True)
CODE = {"sm_80": SM80, "sm_90a": SM90, "sm_100f": SM100}


@aot.kernel(
    parameters=(
        aot.In("a", "m x k, or a batch of such"),
        aot.In("b", "n x k, or as many"),
        aot.Out("out", "m x n", shape="(*a.shape[:-1], b.shape[-2])", dtype="a.dtype"),
        aot.In("bias", "n, or none", default=None),
    ),
    archs=tuple(CODE),
    choices={"epilogue": {name: index for index, name in enumerate(EPILOGUES)}},
    choice_defaults={"epilogue": "identity"},
    axes={
        "dtype": ("f16", "bf16"),
        "batched": {"matrix": False, "batch": True},
        "a": {"a_rows": True, "a_columns": False},
        "b": {"b_rows": True, "b_columns": False},
    },
    contract=contract,
    tuned_by=("m", "n", "k"),
    variant_budget=240,  # 101 tilings that tables choose from, in two dtypes
    backward=aot.Composed(
        a="gemm(grad_out, b.mT)",
        b="gemm(grad_out.mT, a.mT)",
        bias="column_sums(grad_out.rows)[0]",
        split="activation(gemm(a, b, bias).rows, op=epilogue)",
        whole={"epilogue": "identity"},
        adds={"b": "gemm_accumulate(grad_out.mT, a.mT, main_grad)"},
    ),
)
def gemm(target: aot.Target, epilogue: int, dtype: str, batched: bool, a: bool, b: bool) -> list[aot.Spec]:
    """``out = epilogue(a @ b.T + bias)``; ``a`` and ``b`` row- or column-major, ``out`` row-major, summed in f32.

    On sm_100f, rows of ``out`` are stored in chunks of 16 bytes. If n is no multiple of 8 and there is room between the rows,
    the elements from the end of a row to the end of its last chunk become zero.
    """
    code = CODE[target.written_for]
    # TMA fills in elements outside of a matrix. If threads copy, each chunk is completely inside or outside.
    m = aot.Dim("m", divisible_by=1 if code.tma or a else CHUNK)
    n = aot.Dim("n", divisible_by=1 if code.tma else CHUNK)
    k = aot.Dim("k", divisible_by=CHUNK if not code.tma and (a or b) else 1)
    matrices = {
        "a": matrix("a", dtype, m, k, a, True),
        "b": matrix("b", dtype, n, k, b, True),
        "out": matrix("out", dtype, m, n, True, True),
    }
    arguments: dict[str, Any] = {
        **{name: batch if batched else batch.single() for name, batch in matrices.items()},
        "bias": aot.Tensor(dtype, (n,), optional=True),
        "which": aot.Constant(epilogue),  # the code has all epilogues, and dispatch passes this number
        **code.supplied,
        "stream": aot.Stream(),
    }
    choices = (Choice(code.general),) if batched else code.choices_of(a, b, epilogue)
    copied = forward(arguments, *matrices) if code.tma else ()
    specs = []
    for choice in choices:
        choice.tiling.validate(target)
        function = code.gemm(choice.tiling, target, tuple(EPILOGUES.values()))
        guards = ("k > 0", *copied, *choice.guards)
        specs.append(aot.Spec(function, arguments, guards, choice.tiling.label, work=choice.work, core=choice.core))
    return specs
