"""The loss of hidden states and a vocabulary, ``cross_entropy(x @ weight.T, target)``, and its gradients.

All logits at once would take far more memory than everything else: 8192 tokens and 128,256 words 2.1 GB in bf16. So there
are steps, each with the logits of some tokens. The gradients are computed in the same step, because to compute the logits
again would take a third more time. Three products are the limit. The code is in ``_linear_loss``.
"""

from __future__ import annotations

import aot

from .._device import chunk_elements, forward
from ..contracts.training import linear_cross_entropy as contract
from ..products.gemm import CHUNK, matrix
from ..sm90.tiling import Tiling
from ._linear_loss import ELEMENTS, FEW, HEAD, ROWS, LinearCrossEntropy

# Of the logits, of the gradient by x, of that by the weight.
TILINGS = (
    Tiling(128, 192, cluster_m=2, buffers=1, swizzle=16),
    Tiling(256, 128, swapped=True, cooperative=True, cluster_m=2, buffers=1, swizzle=8),
    Tiling(128, 192, cluster_m=2, buffers=1),
)

_HALF = f"max((x.shape[0] // 2 + {ROWS - 1}) // {ROWS} * {ROWS}, {FEW} // max(weight.shape[0], 1) // {ROWS} * {ROWS})"
_STEP = f"min(x.shape[0], max({ROWS}, min({_HALF}, {ELEMENTS} // max(weight.shape[0], 1) // {ROWS} * {ROWS})))"
_FLOATS = f"{HEAD} + (x.shape[0] + {HEAD - 1}) // {HEAD} * {HEAD}"


@aot.kernel(
    parameters=(
        aot.In("x", "hidden states: tokens x k"),
        aot.In("weight", "of the vocabulary: words x k"),
        aot.In("target", "the word of each token, below the number of words; others give NaN"),
        aot.Out("loss", "one number", shape="(1,)", dtype="f32"),
        aot.Out("by_x", "the gradient of the loss by `x`; or none", shape="x.shape", dtype="x.dtype", default=None),
        aot.Out("by_weight", "that by `weight`; or none", shape="weight.shape", dtype="weight.dtype", default=None),
        aot.In("ignore_index", "a token of this word has neither loss nor gradient", default=-100),
        aot.In("label_smoothing", "the part of a target that is spread over all words", default=0.0),
        aot.In("z_loss", "times the square of the logarithm of the sum of exp(logit) is added to a loss", default=0.0),
        aot.Workspace("scratch", "logits of some tokens", bytes=f"4 * ({_FLOATS}) + 2 * {_STEP} * weight.shape[0]"),
    ),
    archs=("sm_90a",),
    choices={"reduction": {"mean": 1, "sum": 0}},
    choice_defaults={"reduction": "mean"},
    axes={"dtype": ("bf16",), "gradients": {"gradients": True, "loss": False}},
    contract=contract,
    backward=aot.Backward("linear_cross_entropy_backward", saves=("by_x", "by_weight"), gradients=("x", "weight")),
)
def linear_cross_entropy(target: aot.Target, reduction: int, dtype: str, gradients: bool) -> aot.Spec:
    """The loss of ``x @ weight.T`` and its gradients, without all logits in memory. Logits are rounded to the dtype of ``x``.

    Sums are f32. Tokens are in steps of some: ``by_weight`` is rounded to its dtype after each of them. There is no f16: the
    gradients of a mean are too small for it, and are scaled only after they were rounded.
    """
    words, k = aot.Dim("words", divisible_by=CHUNK), aot.Dim("k", divisible_by=CHUNK)
    tensors = {
        "x": matrix("x", dtype, "tokens", k, True, False),
        "weight": matrix("weight", dtype, words, k, True, False),
        "target": aot.Tensor("i64", ("tokens",)),
        "loss": aot.Tensor("f32", (1,)),
        "by_x": matrix("by_x", dtype, "tokens", k, True, False) if gradients else None,
        "by_weight": matrix("by_weight", dtype, words, k, True, False) if gradients else None,
    }
    arguments = {
        **tensors,
        "ignore_index": aot.Scalar("i64"),
        "label_smoothing": aot.Scalar("f32"),
        "z_loss": aot.Scalar("f32"),
        "reduction": aot.Constant(reduction),
        "scratch": aot.Tensor("f32", (aot.Dim("length", bits=64),), align=128),
        "multiprocessors": aot.Multiprocessors(),
        "stream": aot.Stream(),
    }
    guards = ("words > 0", "k > 0", *forward(tensors, "x", "weight", *(("by_x", "by_weight") if gradients else ())))
    return aot.Spec(LinearCrossEntropy(TILINGS, target, chunk_elements(dtype, True), gradients), arguments, guards)
