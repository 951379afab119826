"""The cross entropy of the logits of each row and the class that the row belongs to.

The tolerance is that of every output in f32: an error of 2^-18 of the largest loss, or 2^-20 by norm. Each power has a
relative error of a few 2^-23 (the rounded exponent weighs less than its power falls), and so has their sum, in whose
logarithm that is an error of a few 2^-23, not relative to anything. The logarithm itself adds 2^-23 of its value, and the
difference of two logits 2^-24 of it. So losses of about one or more are within some 2^-21. All calls have rows of such
losses: a class is chosen at random, and seldom is the most likely one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aot

from .._layouts import BENCH, ROWS, SHORT_ROWS, SPECIAL, Layout, special_rows

IGNORED = -100


def reference(x: Any, target: Any, ignore_index: int = IGNORED) -> Any:
    import torch
    from torch.nn import functional

    inside = (target >= 0) & (target < x.shape[1])
    loss = functional.cross_entropy(x.double(), target.where(inside, 0), reduction="none")
    loss = loss.where(inside, torch.nan)  # torch stops the process
    return loss.where(target != ignore_index, 0.0)


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for layout in (*ROWS, *SHORT_ROWS):
        yield _call(make, layout.make(make, dtype))
    for columns in (24, 40_000):
        x = make.tensor((8, columns), dtype)
        x[0, 3], x[1, 5], x[2, 7], x[3] = float("nan"), float("inf"), float("-inf"), float("-inf")
        x[4, : columns // 2] = float("-inf")
        x[5] *= 1000
        call = _call(make, x)
        call["target"][2] = 7  # a class that is impossible
        yield call
        yield {"x": x, "target": call["target"].clamp_min(0), "ignore_index": 0}
    for columns, positions in SPECIAL:
        yield _call(make, special_rows(make, dtype, columns, positions))


def _call(make: Any, x: Any) -> dict[str, Any]:
    # Classes far apart, not at random: the same ones on every machine.
    rows, columns = x.shape
    classes = make.torch.arange(rows, device=make.device) * 7919 % max(columns, 1)
    if rows > 4:
        classes[4] = IGNORED
    return {"x": x, "target": classes}


def cost(x: Any, **_: Any) -> aot.Cost:
    return aot.Cost(operations=4 * x.numel(), bytes=x.numel() * x.element_size() + 12 * x.shape[0])


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for layout in (*BENCH, Layout((4096, 128_256))):
        yield _call(make, layout.make(make, dtype))


def torch_equivalent(x: Any, target: Any, ignore_index: int = IGNORED) -> Any:
    from torch.nn import functional

    return functional.cross_entropy(x.float(), target, reduction="none", ignore_index=ignore_index)
