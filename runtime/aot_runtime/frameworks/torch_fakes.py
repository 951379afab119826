"""Calls that torch traces, with fake tensors or meta tensors: what a kernel would refuse is refused then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .fakes import UNKNOWN, make_check, tensor_facts

__all__ = ["make_traced_check"]

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def make_traced_check(bundle: Any) -> Callable[..., None]:
    """A function of a symbol and the arguments of a call, which raises what the call would raise on a GPU.

    Tensors on the CPU pass: somebody else may have implemented the operator for them.
    """
    check = make_check(bundle)

    def check_traced(symbol: str, *arguments: Any) -> None:
        devices = [argument.device for argument in arguments if isinstance(argument, torch.Tensor)]
        if devices and all(device.type in ("cuda", "meta") for device in devices):
            check(symbol, _index(devices[0]), *map(_facts, arguments))

    return check_traced


def _index(device: Any) -> int:
    """-1 for a device that is not known. Tracing does not start CUDA: processes could not be forked afterwards."""
    if device.type != "cuda" or not torch.cuda.is_initialized():
        return -1
    return int(torch.cuda.current_device() if device.index is None else device.index)


def _facts(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor):
        if argument.layout is not torch.strided:
            return UNKNOWN
        return tensor_facts(argument.dtype, [*map(_number, argument.shape)], [*map(_number, argument.stride())])
    number = _number(argument)
    return UNKNOWN if number is None and argument is not None else number


def _number(value: Any) -> Any:
    """A number as the traced call has it, which is no guard; None if it depends on data."""
    if not isinstance(value, _SYMBOLIC):
        return value
    hint = value.node.hint
    return hint if isinstance(hint, (bool, int, float)) else None
