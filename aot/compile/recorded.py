"""Recorded arguments as what CuTe DSL compiles against: fakes, made of their description."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor, make_ptr
from cutlass.cute.typing import AddressSpace, SymInt

from .objects import rebuilt, rebuilt_fields

__all__ = ["ArgumentMaker"]


class ArgumentMaker:
    """Makes the arguments of one call; a symbol that several of them share is one object."""

    def __init__(self) -> None:
        self._symbols: dict[int, Any] = {}

    def make(self, data: dict[str, Any]) -> Any:
        (kind,) = [name for name in _KINDS if name in data]
        return getattr(self, f"_make_{kind}")(data)

    def _make_number(self, data: dict[str, Any]) -> Any:
        return data["number"]

    def _make_constant(self, data: dict[str, Any]) -> Any:
        return rebuilt(data["constant"])

    def _make_integer(self, data: dict[str, Any]) -> Any:
        return self._mode(data["integer"])

    def _make_scalar(self, data: dict[str, Any]) -> Any:
        return getattr(cutlass, data["scalar"])(0)

    def _make_stream(self, data: dict[str, Any]) -> Any:
        return make_fake_stream(use_tvm_ffi_env_stream=data["stream"])

    def _make_pointer(self, data: dict[str, Any]) -> Any:
        dtype, align = getattr(cutlass, data["pointer"]), data["align"]
        return make_ptr(dtype, align, AddressSpace[data["space"]], assumed_align=align)

    def _make_tensor(self, data: dict[str, Any]) -> Any:
        shape, strides = (tuple(map(self._mode, data[name])) for name in ("shape", "strides"))
        dtype, space = getattr(cutlass, data["tensor"]), AddressSpace[data["space"]]
        return make_fake_tensor(dtype, shape, strides, memspace=space, assumed_align=data["align"])

    def _make_tuple(self, data: dict[str, Any]) -> Any:
        return tuple(map(self.make, data["tuple"]))

    def _make_list(self, data: dict[str, Any]) -> Any:
        return list(map(self.make, data["list"]))

    def _make_fields(self, data: dict[str, Any]) -> Any:
        return rebuilt_fields(data["class"], {name: self.make(item) for name, item in data["fields"].items()})

    def _mode(self, mode: Any) -> Any:
        if isinstance(mode, int):
            return mode
        made = SymInt(width=mode["width"], divisibility=mode["divisibility"])
        return self._symbols.setdefault(mode["symbol"], made) if "symbol" in mode else made


_KINDS = ("number", "constant", "integer", "scalar", "stream", "pointer", "tensor", "tuple", "list", "fields")
