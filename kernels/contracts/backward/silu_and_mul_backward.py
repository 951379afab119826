"""The gradient of a gate: silu of the left half of each row, times the right half."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aot

from .._layouts import BENCH, ROWS, SPECIAL, Layout, special_rows


def reference(grad_out: Any, x: Any) -> Any:
    return torch_equivalent(grad_out.double(), x.double())


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for layout in (Layout((3, 0)), *ROWS):
        rows, columns = layout.shape
        stride = None if layout.stride is None else 2 * layout.stride
        x = make.tensor((rows, 2 * columns), dtype, stride=stride, offset=layout.offset)
        yield {"grad_out": make.tensor(layout.shape, dtype), "x": x}
        yield {"grad_out": layout.make(make, dtype), "x": make.tensor((rows, 2 * columns), dtype)}
    for columns, positions in SPECIAL:
        x = special_rows(make, dtype, columns, positions)[:, : columns // 2 * 2]
        yield {"grad_out": make.tensor((x.shape[0], columns // 2), dtype), "x": x}


def cost(x: Any, **_: Any) -> aot.Cost:
    return aot.Cost(operations=6 * x.numel(), bytes=5 * x.numel() // 2 * x.element_size())


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for layout in BENCH:
        rows, columns = layout.shape
        yield {"grad_out": make.tensor((rows, columns // 2), dtype), "x": layout.make(make, dtype)}


def torch_equivalent(grad_out: Any, x: Any) -> Any:
    import torch

    gate, up = x.chunk(2, dim=-1)
    by_up = grad_out * torch.nn.functional.silu(gate)
    return torch.cat((torch.ops.aten.silu_backward(grad_out * up, gate), by_up), dim=-1)
