"""From a call of ``cute.compile`` to the arguments of a spec.

CuTe DSL itself says what the compiled entry of a call will take, parameter by parameter. A library may have changed
how it does that, and so it is asked rather than imitated.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from ..declare.arguments import Argument, Constant, Dim, Pointer, Scalar, Stream, Tensor, Tuple
from ..errors import DeclarationError
from ..kinds import DTYPES

__all__ = ["HostCodeError", "translate"]


class HostCodeError(DeclarationError):
    """A call works on the memory of the CPU, or launches nothing: it is host code, and no kernel."""


_SHORT = {(dtype.code, dtype.bits, dtype.lanes): name for name, dtype in DTYPES.items()}
_CONSTANTS = {"ConstInt": "i64", "ConstBool": "bool", "ConstFloat": "f64"}


def translate(parameters: list[Any], values: Mapping[str, Any]) -> dict[str, Argument]:
    """The arguments of a spec, by the names of the callable's own parameters.

    :class:`DeclarationError` says which parameter cannot be declared.
    """
    return {item.name: _argument(item, values.get(item.name), item.name) for item in parameters}


def _argument(parameter: Any, value: Any, where: str) -> Any:
    kind = type(parameter).__name__
    if kind == "Tensor":
        return _tensor(parameter, where)
    if kind == "Var":
        return _scalar(parameter, where)
    if kind in _CONSTANTS:  # callers pass the value, and the entry compares it
        return Scalar(_CONSTANTS[kind])
    if kind == "DataPointer":
        return Pointer(_short_name(getattr(value, "dtype", None)))
    if kind in ("Stream", "EnvStream"):
        return Stream(explicit=kind == "Stream")
    if kind == "ConstNone":
        return None if value is None or ("[" not in where and "." not in where) else Constant(value)
    if kind == "TupleParam":
        elements = zip(parameter.params, _elements(value), strict=True)
        return Tuple(tuple(_argument(item, one, item.name) for item, one in elements))
    if kind == "Shape":
        return Tuple(tuple(_extent_argument(extent, where) for extent in parameter.shape))
    raise DeclarationError(f"argument {where} is a {kind}, which cannot be declared")


def _elements(value: Any) -> Iterator[Any]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return iter([getattr(value, field.name) for field in dataclasses.fields(value)])
    return iter(value)


def _tensor(parameter: Any, where: str) -> Tensor:
    if parameter.dlpack_device_type == _CPU:
        raise HostCodeError(f"argument {where} is a tensor in the memory of the CPU")
    strides = parameter.strides
    return Tensor(
        _dtype(parameter.dtype, where),
        tuple(_extent(extent) for extent in parameter.shape),
        tuple(_extent(stride) for stride in strides) if strides is not None else None,
        align=parameter.data_alignment,
    )


_CPU = 1  # DLPack's number


def _extent(extent: Any) -> int | Dim:
    if isinstance(extent, int):
        return extent
    return Dim(extent.name, extent.divisibility or 1, extent.dtype.bits)


def _extent_argument(extent: Any, where: str) -> Any:
    if isinstance(extent, int):
        return Scalar("i64")
    if type(extent).__name__ == "Shape":
        return Tuple(tuple(_extent_argument(inner, where) for inner in extent.shape))
    return _scalar(extent, where)


def _scalar(parameter: Any, where: str) -> Scalar | Pointer:
    if str(parameter.dtype) == "handle":
        return Pointer("u8")
    return Scalar(_dtype(parameter.dtype, where))


def _dtype(dtype: Any, where: str) -> str:
    found = _SHORT.get((int(dtype.type_code), dtype.bits, dtype.lanes))
    if found is None:
        raise DeclarationError(f"argument {where} has the dtype {dtype}, which cannot be declared")
    return found


def _short_name(dtype: Any) -> str:
    names = {item.cutlass: name for name, item in DTYPES.items()}
    return names.get(getattr(dtype, "__name__", ""), "u8")
