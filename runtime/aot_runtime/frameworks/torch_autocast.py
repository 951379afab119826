"""Operators under ``torch.autocast``.

A tensor of a dtype that its parameter does not take is cast to the dtype of autocast. So is a tensor in f32 beside others that
have that dtype, such as a weight of a norm whose rows come from a product. Kernels of rows compute in f32 whatever they
read, so nothing else needs a rule. Parameters that only take f32, such as the angles of ``rope``, keep it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch

from ..description.kernel_records import Parameter
from ..dtypes import find_dtype

__all__ = ["is_autocast", "register_autocast"]


def is_autocast(device: str = "cuda") -> bool:
    return torch.is_autocast_enabled(device)  # type: ignore[no-any-return]


def register_autocast(library: Any, name: str, operator: Any, inputs: list[Parameter], device: str = "cuda") -> None:
    """Tell torch what an operator does with its tensors while autocast is on for that kind of device."""
    cast = _casting([_taken(parameter) for parameter in inputs], device)

    def call(*given: Any, **choices: Any) -> Any:
        arguments = cast(given)
        with torch.autocast(device, enabled=False):
            return operator(*arguments, **choices)

    library.impl(name, call, f"Autocast{device.upper()}")


def _casting(taken: list[Collection[Any]], device: str) -> Callable[[tuple[Any, ...]], list[Any]]:
    """``taken``: the dtypes of each parameter."""

    def cast(given: tuple[Any, ...]) -> list[Any]:
        dtype = torch.get_autocast_dtype(device)
        mixed = any(isinstance(item, torch.Tensor) and item.dtype == dtype for item in given)
        pairs = zip(given, taken, strict=False)
        return [item.to(dtype) if _is_cast(item, dtypes, dtype, mixed) else item for item, dtypes in pairs]

    return cast


def _is_cast(item: Any, taken: Collection[Any], dtype: Any, mixed: bool) -> bool:
    if not isinstance(item, torch.Tensor) or not item.is_floating_point() or dtype not in taken:
        return False
    return item.dtype not in taken or (mixed and item.dtype == torch.float32)


def _taken(parameter: Parameter) -> Collection[Any]:
    found = {find_dtype(text.partition("[")[0]) for text in parameter.accepts}
    return {getattr(torch, dtype.torch) for dtype in found if dtype is not None and hasattr(torch, dtype.torch)}
