"""The arguments of a compiled kernel, as a declaration writes them.

There is one type per kind of argument; ``None`` stands for itself. They only describe: ``selection/requirements.py``
derives from them what a call must satisfy, and ``compile/cute_dsl.py`` what CuTe DSL compiles against.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import DeclarationError
from ..kinds import DTYPES, dtype_of

__all__ = [
    "ActiveClusters",
    "Argument",
    "Constant",
    "Dim",
    "Multiprocessors",
    "Pointer",
    "Scalar",
    "Stream",
    "Tensor",
    "Tuple",
]

SCALAR_DTYPES = tuple(name for name, dtype in DTYPES.items() if dtype.is_scalar)


def _set_dtype(argument: Tensor | Scalar | Pointer, known: Sequence[str]) -> None:
    """Whatever its name in the declaration, an argument has a dtype by our name."""
    found = dtype_of(argument.dtype, known)
    if found is None:
        raise DeclarationError(f"unknown dtype: {argument.dtype!r}", hint="known: " + ", ".join(known))
    object.__setattr__(argument, "dtype", found.name)


def _check_power_of_two(value: int, what: str) -> None:
    if value < 1 or value & (value - 1):
        raise DeclarationError(f"{what} must be a power of two, got {value}")


@dataclass(frozen=True)
class Dim:
    """A named extent or stride. Within one spec, the same name is the same value.

    ``divisible_by`` is a condition on the value. ``bits`` is the width in which compiled code holds it: with 32, calls
    with larger values do not take the variant.
    """

    name: str
    divisible_by: int = 1
    bits: int = 32

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise DeclarationError(f"not a name for an extent: {self.name!r}")
        if self.divisible_by < 1 or self.bits not in (32, 64):
            raise DeclarationError(f"extent {self.name}: divisible_by must be >= 1 and bits 32 or 64")


Extent = int | str | Dim
MAX_MADE = 8  # optional and single tensors of a spec, and their dimensions: AOT_MAX_MADE of runtime/src/aot_tables.h


def _dims(items: Sequence[Extent]) -> tuple[int | Dim, ...]:
    if isinstance(items, str):
        raise DeclarationError(f"expected a tuple, got the string {items!r}", hint=f"write ({items!r},)")
    return tuple(_dim(item) for item in items)


def _dim(item: Extent) -> int | Dim:
    if isinstance(item, str):
        return Dim(item)
    if isinstance(item, Dim) or (isinstance(item, int) and not isinstance(item, bool)):
        return item
    raise DeclarationError(f"not an extent or a stride: {item!r}", hint="use a number, a name, or aot.Dim")


@dataclass(frozen=True)
class Tensor:
    """A tensor on the GPU.

    ``shape`` contains numbers and names. Without ``strides`` the layout is row-major: the last stride is 1 and the
    others are free, so a slice of a larger tensor is accepted. The address must be a multiple of ``align`` bytes; the
    default is the size of one element.

    An ``optional`` tensor may be None: the jit function then gets a tensor without elements, so one variant serves both
    cases. Its extents have names and no numbers, and its layout is row-major.
    """

    dtype: str
    shape: tuple[Any, ...]
    strides: tuple[Any, ...] | None = None
    align: int | None = None
    optional: bool = False

    def __post_init__(self) -> None:
        _set_dtype(self, tuple(DTYPES))
        object.__setattr__(self, "shape", _dims(self.shape))
        if any(isinstance(extent, int) and extent < 0 for extent in self.shape):
            raise DeclarationError(f"an extent is negative: {self.shape}")
        if self.strides is not None:
            object.__setattr__(self, "strides", _dims(self.strides))
            if len(self.strides) != len(self.shape):
                raise DeclarationError(f"a tensor of rank {len(self.shape)} was given {len(self.strides)} strides")
        if self.align is not None:
            _check_power_of_two(self.align, "align")
        if self.optional:
            self._check_optional()

    def _check_optional(self) -> None:
        named = all(isinstance(extent, Dim) for extent in self.shape)
        if self.strides is not None or not named or not 1 <= len(self.shape) <= MAX_MADE:
            raise DeclarationError(
                f"an optional tensor of shape {self.shape} and strides {self.strides}",
                hint=f"name its extents, at most {MAX_MADE}, and leave out `strides`; or declare a spec with None",
            )

    def single(self) -> Tensor:
        """One tensor, for code that takes a batch of them: this tensor without its first dimension.

        Callers pass one tensor, and dispatch passes it on as a batch of one. So one code serves both.
        """
        if self.optional or not 2 <= len(self.shape) <= MAX_MADE:
            raise DeclarationError(
                f"a single one of {self!r}", hint=f"`single` is for tensors of 2 to {MAX_MADE} dimensions, not optional"
            )
        strides = self.strides[1:] if self.strides is not None else None
        return Single(self.dtype, self.shape[1:], strides, self.align, batch=self)

    @property
    def element_bytes(self) -> int:
        return DTYPES[self.dtype].element_bytes

    @property
    def alignment(self) -> int:
        return self.align or self.element_bytes


@dataclass(frozen=True)
class Single(Tensor):
    """What :meth:`Tensor.single` returns. Declarations have no other use for it."""

    batch: Tensor = field(kw_only=True)


def is_made(argument: object) -> bool:
    """Whether dispatch may pass another tensor than the caller."""
    return isinstance(argument, Single) or (isinstance(argument, Tensor) and argument.optional)


def compiled_tensor(tensor: Tensor) -> Tensor:
    """What the jit function takes for a tensor of the caller."""
    return tensor.batch if isinstance(tensor, Single) else tensor


def layout_of(tensor: Tensor, name: str) -> tuple[int | Dim, ...]:
    """The strides of a tensor; those that the declaration leaves free get names of their own.

    ``name`` is what the argument is called: ``x``, or ``inputs[0]`` for an element of a tuple.
    """
    if tensor.strides is not None:
        return tensor.strides
    name = name.replace("[", "__").replace("]", "")
    strides: list[int | Dim] = []
    step: int | None = 1
    divisor = 1
    for index, extent in reversed(list(enumerate(tensor.shape))):
        strides.append(step if step is not None else Dim(f"{name}_stride_{index}", divisor, 64))
        fixed = isinstance(extent, int)
        divisor *= extent if isinstance(extent, int) else extent.divisible_by
        step = step * extent if step is not None and fixed else None
    return tuple(reversed(strides))


@dataclass(frozen=True)
class Scalar:
    """A number passed by value."""

    dtype: str

    def __post_init__(self) -> None:
        _set_dtype(self, SCALAR_DTYPES)


@dataclass(frozen=True)
class Pointer:
    """An address on the GPU, without a shape. ``align`` is promised to the compiler and not checked."""

    dtype: str
    align: int | None = None

    def __post_init__(self) -> None:
        _set_dtype(self, tuple(DTYPES))
        if self.align is not None:
            _check_power_of_two(self.align, "align")


@dataclass(frozen=True)
class Stream:
    """The stream to launch on: the framework's current one; if ``explicit``, one that the caller passes."""

    explicit: bool = False


@dataclass(frozen=True)
class Constant:
    """A compile-time value: a number, a class, a function. The caller does not pass it.

    For a parameter of the jit function that is not annotated with ``Constexpr``, the value is None or a number. Code is
    then compiled for any value of that type, and dispatch passes this one.
    """

    value: Any


@dataclass(frozen=True)
class Fixed:
    """A constant for a parameter that is not ``Constexpr``: the compiled entry takes it, and dispatch passes it.

    Declarations write :class:`Constant`; the signature of the jit function tells the two apart.
    """

    value: bool | int | float | None


@dataclass(frozen=True)
class Tuple:
    """A tuple of arguments. If the jit function is annotated with a ``NamedTuple``, ``type`` is that class.

    An element may be a :class:`Constant`, as libraries use them whose tuples have fields that are ``Constexpr``. The
    code is compiled with the value, and callers pass None in its place.
    """

    elements: tuple[Any, ...]
    type: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "elements", tuple(self.elements))
        for element in self.elements:
            if is_made(element):
                raise DeclarationError(
                    f"{element!r} cannot be an element of a tuple", hint="leave out `optional` and `single`"
                )
            if not isinstance(element, (Tensor, Scalar, Pointer, Tuple, Constant, type(None))):
                raise DeclarationError(
                    f"{element!r} cannot be an element of a tuple",
                    hint="use aot.Tensor, Scalar, Pointer, Tuple, Constant or None",
                )


@dataclass(frozen=True)
class Multiprocessors:
    """Filled in at run time: the number of multiprocessors of the device, as an i32."""


@dataclass(frozen=True)
class ActiveClusters:
    """Filled in at run time: how many clusters of this kernel the device runs at once, as an i32."""


Argument = Tensor | Scalar | Pointer | Stream | Tuple | Constant | Fixed | Multiprocessors | ActiveClusters | None
ARGUMENT_TYPES = (Tensor, Scalar, Pointer, Stream, Tuple, Constant, Multiprocessors, ActiveClusters, type(None))
