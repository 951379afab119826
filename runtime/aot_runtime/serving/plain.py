"""Compiled functions without TVM-FFI: a bundle's function that is called as CuTe DSL's own convention has it.

Callers pass tensors of CuTe DSL (``from_dlpack``), pointers, typed numbers and streams. A bundle's function takes all of
these but the first as they are, or by their value. It checks what CuTe DSL does not in this convention, static strides
among it. Static extents are not checked, as CuTe DSL does not: a library compiles for 16 rows and calls with four, which
its kernel is told in another argument.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import ArgumentError
from .values.forms import ByClass
from .values.named import base_names

__all__ = ["PlainFunction"]

_BYTE = 8
_KEPT = "_aot_tensor"  # the attribute of a tensor of CuTe DSL that holds it as one of TVM-FFI


class PlainFunction:
    """What ``cute.compile`` gives without TVM-FFI, as far as callers use it; ``function`` is that of the bundle.

    ``parameters`` are the names of what it takes, with the tensors that it accepts.
    """

    def __init__(self, function: Callable[..., Any], parameters: Mapping[str, Sequence[str]]) -> None:
        self._function, self.parameters = function, list(parameters)
        fixed = ((place, _extents(*accepts)) for place, accepts in enumerate(parameters.values()) if len(accepts) == 1)
        self._fixed = [(place, extents) for place, extents in fixed if any(extents)]
        self.__name__ = self.__qualname__ = self.function_name = function.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> int:
        if kwargs or len(args) != len(self.parameters):
            args = self._in_order(args, kwargs)
        self._function(*self._as_compiled(args))
        return 0

    def _as_compiled(self, args: tuple[Any, ...]) -> list[Any]:
        """Arguments as a bundle's function takes them, tensors with the extents that it was compiled for."""
        taken = [_ways[type(value)](value) for value in args]
        for place, extents in self._fixed:
            shape: Any = getattr(taken[place], "shape", None) or getattr(args[place], "shape", ())
            if shape != extents and (shape := _with_fixed(shape, extents)):
                from .views import View

                taken[place] = View(args[place], shape)
        return taken

    def generate_execution_args(self, *args: Any, **kwargs: Any) -> tuple[list[Any], list[Any]]:
        """What :meth:`run_compiled_program` takes, and what must live as long."""
        given = self._in_order(args, kwargs)
        return self._as_compiled(given), list(given)

    def _in_order(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        rest = self.parameters[len(args) :]
        unknown = [name for name in kwargs if name not in rest]
        if unknown or len(args) > len(self.parameters):
            raise ArgumentError(
                f"{self.__name__} takes {', '.join(self.parameters)}, and got {len(args)} arguments and {', '.join(kwargs)}"
            )
        return (*args, *(kwargs.get(name) for name in rest))

    def run_compiled_program(self, exe_args: list[Any]) -> int:
        """Launch it; 0 is CUDA's success."""
        self._function(*exe_args)
        return 0

    def to(self, device: Any = None) -> PlainFunction:
        """The same function: a bundle finds the device of each call by its tensors, or takes the current one."""
        return self

    def export_to_c(self, *args: Any, **kwargs: Any) -> None:
        """Libraries export what they compiled into a disk cache. The bundle takes the place of such a cache."""


def _extents(accepts: str) -> tuple[int, ...]:
    """The extents in ``float16[:, 128]``, 0 for one that is not fixed; nothing if an element is several numbers."""
    dtype, _, shape = accepts.rstrip("]").partition("[")
    return () if "x" in dtype else tuple(int(extent) if extent.isdigit() else 0 for extent in shape.split(", "))


def _with_fixed(shape: Sequence[int], extents: Sequence[int]) -> tuple[int, ...]:
    """A shape with the extents that are fixed, if it has others there; else nothing."""
    if len(shape) != len(extents):
        return ()
    found = tuple(fixed or extent for extent, fixed in zip(shape, extents, strict=True))
    return found if found != tuple(shape) else ()


def _taken(value: Any) -> Any:
    """An argument as a bundle's function takes it."""
    return _ways[type(value)](value)


def _way(kind: Any) -> Callable[[Any], Any]:
    """How the objects of a class are passed."""
    if hasattr(kind, "dynamic_shapes_mask"):
        return _tensor
    if "Numeric" in base_names(kind):
        return lambda value: value.value
    if issubclass(kind, (tuple, list)):
        return lambda value: tuple(map(_taken, value))
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
        return lambda value: tuple(_taken(getattr(value, name)) for name in names)
    if hasattr(kind, "cuda_stream"):  # torch's
        return lambda value: value.cuda_stream
    return lambda value: value


_ways = ByClass(_way)


def _tensor(value: Any) -> Any:
    """A tensor of CuTe DSL as one of TVM-FFI, which is kept beside it: callers pass the same one again.

    One of bytes that are used as another type is shown again each time: what shows it must outlive the call alone.
    """
    kept = value.__dict__.get(_KEPT)
    if kept is not None and kept[0] is value._dtype:
        return kept[1]
    if hasattr(value, "_tvm_ffi_tensor"):
        return value._tvm_ffi_tensor
    # What CuTe DSL reads of the capsule it reads here, since the capsule may be used up below.
    dtype = value.element_type
    if kept is not None or dtype.width <= _BYTE:
        from .views import View  # its imports take longer than a first look-up, and few libraries need it

        return View(value)
    found = sys.modules["tvm_ffi"].from_dlpack(_Capsule(value._dlpack_data))
    value.__dict__[_KEPT] = dtype, found
    return found


class _Capsule:
    """The memory of a tensor of CuTe DSL, to be moved: who takes it must live as long as the tensor."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **options: Any) -> Any:
        return self._capsule
