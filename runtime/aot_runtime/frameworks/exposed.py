"""What the modules for frameworks share: a bundle's kernels as attributes of one object, registered once.

Frameworks keep what is registered with them for the life of the process, under a name. So a second registration of the
same bundle gives the first one's object, and another bundle under the same name is refused.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar

from ..description.kernel_records import KernelRecord, Parameter
from ..dtypes import ALLOCATED, find_dtype
from ..errors import AotError
from .outputs import first_dtype

if TYPE_CHECKING:  # the builder reads signatures here without TVM-FFI
    from ..core.bundle import Bundle

__all__ = ["ExposeError", "Exposed", "expose", "split_parameters"]


class ExposeError(AotError):
    """A kernel cannot be offered to a framework."""


class Exposed(ABC):
    """Functions of a framework by kernel. Iterating gives the names of the kernels that could be offered."""

    def __init__(self, bundle: Bundle, name: str) -> None:
        self._bundle = bundle
        self._name = name
        self._refused: dict[str, str] = {}
        for kernel in bundle.kernels:
            try:
                self.__dict__[kernel] = self._make(bundle._record(kernel))
            except ExposeError as error:
                self._refused[kernel] = error.message

    @abstractmethod
    def _make(self, record: KernelRecord) -> Any:
        """The function of one kernel; :class:`ExposeError` says why there can be none."""

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__.get("_refused", {}):
            raise ExposeError(f"{name} cannot be offered here: {self._refused[name]}")
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(f"{self._name!r} has no kernel {name!r}; it has: {', '.join(self) or 'none'}")

    def __iter__(self) -> Iterator[str]:
        return (name for name in self.__dict__ if not name.startswith("_"))

    def __dir__(self) -> list[str]:
        return sorted(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Exposed:
        """The same object, so that models that keep it can be copied: a framework has its functions once per process."""
        return self

    def __copy__(self) -> Exposed:
        return self

    def __reduce__(self) -> Any:
        raise TypeError(f"{self!r} cannot be pickled: register the bundle in the process that loads the pickle")

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__name__} {self._name!r}: {', '.join(self)}>"


_registering = RLock()  # of one thread: what is made may register another bundle
_E = TypeVar("_E", bound=Exposed)


def expose(known: dict[str, _E], bundle: Bundle, name: str, make: Callable[[Bundle, str], _E]) -> _E:
    """What was registered under a name, made now if nothing was. Other threads wait until it is made."""
    with _registering:
        registered = known.get(name)
        if registered is None:
            registered = known[name] = make(bundle, name)
    if problem := _difference(registered._bundle, bundle):
        raise ExposeError(
            f"the name {name!r} belongs to {problem}", hint=f'pass another name: register(bundle, name="{name}_2")'
        )
    return registered


def _difference(registered: Bundle, bundle: Bundle) -> str:
    """What owns a name if another bundle asks for it; "" if it is the same one."""
    if registered.path != bundle.path:
        return f"`{registered.path}`, so `{bundle.path}` cannot have it"
    # The digest of an entry library stands for all code: the library contains the digests of the kernels.
    if registered is not bundle and registered.manifest.hosts != bundle.manifest.hosts:
        return f"`{bundle.path}` as it was before it was rebuilt; this process keeps those kernels"
    return ""


def split_parameters(record: KernelRecord, types: tuple[str, ...]) -> tuple[list[Parameter], list[Parameter]]:
    """Inputs and outputs of a kernel whose inputs are all of those types, and whose outputs can be allocated.

    A workspace is neither: frameworks supply it. If the caller of the kernel picks the dtype of an output, a framework
    allocates the first one that was built.
    """
    inputs = [parameter for parameter in record.parameters if not parameter.output and parameter.workspace is None]
    outputs = [parameter for parameter in record.parameters if parameter.output]
    if not outputs:
        raise ExposeError("it has no output")
    if not any(parameter.type == "tensor" for parameter in inputs):
        raise ExposeError("no input is a tensor, so its device is not known")
    for parameter in inputs:
        if parameter.type not in types:
            raise ExposeError(f"`{parameter.name}` is of type {parameter.type or 'unknown'}")
    for parameter in outputs:
        if parameter.shape is None or parameter.dtype is None:
            raise ExposeError(f"the shape or dtype of `{parameter.name}` is not declared")
        own = find_dtype(parameter.dtype)
        if "." not in parameter.dtype and (own is None or own.name not in ALLOCATED):
            raise ExposeError(f"`{parameter.name}` has the dtype {parameter.dtype}, which frameworks cannot allocate")
    return inputs, [_with_dtype(parameter) for parameter in outputs]


def _with_dtype(parameter: Parameter) -> Parameter:
    if parameter.dtype != f"{parameter.name}.dtype":
        return parameter
    dtype = first_dtype(parameter.accepts)
    if dtype is None:
        raise ExposeError(f"callers pick the dtype of `{parameter.name}`, and the bundle does not list any")
    return parameter.replace(dtype=dtype)
