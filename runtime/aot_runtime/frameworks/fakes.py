"""Calls without memory: ``torch.compile``, ``torch.export``, meta tensors and JAX's ``eval_shape``.

A framework that traces a call has shapes and dtypes only. The compiled dispatcher compares these with what variants
require, so that a call that would be refused is refused while it is traced, with the same message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..dtypes import Dtype, find_dtype

if TYPE_CHECKING:
    from ..core.bundle import Bundle

__all__ = ["UNKNOWN", "make_check", "tensor_facts"]

UNKNOWN = "?"  # an argument of which nothing is known: the dispatcher takes any string for one
_CHECKS = 1006  # the protocol of the first bundles that can be asked
_UNKNOWN_EXTENT = -(2**63)
_ALIGNMENT = 256  # bytes, of an address that nobody knows yet; allocators of frameworks align at least so


class _Tensor(NamedTuple):
    dtype: Dtype
    shape: tuple[int | None, ...]
    strides: tuple[int | None, ...]


def tensor_facts(dtype: Any, shape: Sequence[int | None], strides: Sequence[int | None] | None = None) -> Any:
    """A tensor that is traced, for a check. None is an extent that is not known; without strides it is row-major."""
    known = find_dtype(str(dtype))
    if known is None:
        return UNKNOWN
    return _Tensor(known, tuple(shape), _row_major(shape) if strides is None else tuple(strides))


def _row_major(shape: Sequence[int | None]) -> tuple[int | None, ...]:
    strides: list[int | None] = []
    step: int | None = 1
    for extent in reversed(shape):
        strides.insert(0, step)
        step = None if step is None or extent is None else step * max(extent, 1)
    return tuple(strides)


def make_check(bundle: Bundle) -> Callable[..., None]:
    """A function of a symbol, a device and the arguments, which raises what the call would raise.

    The device is an index, or -1 if it is not known: then a call passes that any GPU takes for which there is code.
    """
    if bundle._call("aot__protocol") < _CHECKS:
        return lambda symbol, device, *arguments: None
    check, describe = bundle._symbol("aot__check"), bundle._symbol("aot__describe")

    def described(argument: Any) -> Any:
        if not isinstance(argument, _Tensor):
            return argument
        dtype, numbers = argument.dtype, (*argument.shape, *argument.strides)
        known = (_UNKNOWN_EXTENT if number is None else number for number in numbers)
        return describe(dtype.code, dtype.bits, dtype.lanes, _ALIGNMENT, len(argument.shape), *known)

    def run(symbol: str, device: int, *arguments: Any) -> None:
        check(symbol, device, *(described(argument) for argument in arguments))

    return run
