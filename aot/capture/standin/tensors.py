"""Torch tensors without memory, and what they answer if a program looks at their values.

Small tensors of integers, and what is computed of constants for the CPU, keep their values: lengths, offsets and shapes
decide what a program compiles. All other values are made up so that comparisons of results hold, and a note is left for each.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
import torch._dynamo.config  # the mode imports it: before torch answers for a device
from torch._higher_order_ops import utils as higher_order
from torch._subclasses import fake_tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

from .guard import cuda_guard
from .notes import Notes
from .shapes import shape_rule

__all__ = ["without_memory"]

_MOST_VALUES = 1 << 16
_MADE_UP = {torch.bool: True, torch.int8: 1, torch.uint8: 1, torch.int16: 1, torch.int32: 1, torch.int64: 1}
_NO_DIFFERENCE = 1e-12  # of floats: below every tolerance, and one can divide by it
_FALSE = frozenset({"isnan", "isinf", "ne", "isposinf", "isneginf"})  # what tells results apart is not found
_UNWRITTEN = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
_ADDRESS, _ROOM = 1 << 40, 1 << 36
_READ = "values of a tensor without memory were made up"
_COMPARED = "results were not compared: there are none"


@contextmanager
def without_memory(notes: Notes) -> Iterator[None]:
    """Within the context, torch's tensors have no memory, and comparisons of their values hold."""
    values = _Values(notes)
    with ExitStack() as stack:
        # A torch with CUDA makes a real tensor before the first fake one, which takes a GPU.
        stack.enter_context(mock.patch.object(fake_tensor, "init_gpu_context", lambda device: None, create=True))
        stack.enter_context(torch.no_grad())  # fake CUDA tensors that require gradients abort a torch without CUDA
        stack.enter_context(cuda_guard())
        stack.enter_context(_comparisons_hold(notes))
        # A method of the class itself, which asks element by element.
        stack.enter_context(mock.patch.object(fake_tensor.FakeTensor, "tolist", torch.Tensor.tolist))
        # Torch refuses a stream of a class that it does not know before it asks anybody else.
        recorded = mock.patch.object(fake_tensor.FakeTensor, "record_stream", lambda tensor, s: None, create=True)
        stack.enter_context(recorded)
        # Torch's own kernels wrap a tensor in a class that exports it read-only. One without memory stays what it is.
        own_class = mock.patch.object(fake_tensor.FakeTensor, "as_subclass", lambda tensor, kind: tensor, create=True)
        stack.enter_context(own_class)
        stack.enter_context(_taken_for_real())
        stack.enter_context(_Tensors(values))
        stack.enter_context(_Contents(values))
        yield


@contextmanager
def _taken_for_real() -> Iterator[None]:
    """Within the context, libraries are not told that tensors are fake: for such, they compile other code, or none.

    Torch itself, and what stands in for a device, are told.
    """
    modules = [sys.modules["torch._subclasses"], fake_tensor]
    kinds = [type(module) for module in modules]
    for module in modules:
        module.__class__ = _WithoutFakes
    try:
        with mock.patch.object(fake_tensor.FakeTensor, "__getattribute__", _as_if_real, create=True):
            yield
    finally:
        for module, kind in zip(modules, kinds, strict=True):
            module.__class__ = kind


class _NoTensor(fake_tensor.FakeTensor):  # type: ignore[misc]
    """The class of fakes as libraries see it: no tensor is one."""


class _WithoutFakes(types.ModuleType):
    def __getattribute__(self, name: str) -> Any:
        if name == "FakeTensor" and _asks_library(sys._getframe(1)):
            return _NoTensor
        return super().__getattribute__(name)


def _as_if_real(tensor: Any, name: str) -> Any:
    if name in _OF_FAKES and _asks_library(sys._getframe(1)):
        raise AttributeError(f"'Tensor' object has no attribute '{name}'")
    return torch.Tensor.__getattribute__(tensor, name)


def _asks_library(frame: types.FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] not in ("torch", "aot", "importlib", "unittest")


_OF_FAKES = frozenset({"fake_device", "fake_mode"})


@contextmanager
def _comparisons_hold(notes: Notes) -> Iterator[None]:
    def passed_over(*args: Any, **named: Any) -> None:
        notes.add(_COMPARED)

    def no_differences(*args: Any, **named: Any) -> list[Any]:
        notes.add(_COMPARED)
        return []

    with ExitStack() as stack:
        comparison = torch.testing._comparison
        stack.enter_context(mock.patch.object(comparison, "not_close_error_metas", no_differences, create=True))
        stack.enter_context(mock.patch.object(torch.testing, "assert_close", passed_over))
        if importlib.util.find_spec("numpy") is not None:  # torch works without it
            arrays = importlib.import_module("numpy.testing")
            for name in ("allclose", "almost_equal", "array_almost_equal", "array_equal", "equal"):
                stack.enter_context(mock.patch.object(arrays, f"assert_{name}", passed_over))
        yield


class _Tensors(fake_tensor.FakeTensorMode):  # type: ignore[misc]
    """Torch's tensors without memory, on a device that is never initialized."""

    supports_higher_order_operators = True

    def __init__(self, values: _Values) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self._values = values

    @property
    def avoid_device_init(self) -> bool:
        return True  # whatever `torch.cuda.is_available` answers

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        if isinstance(func, torch._ops.HigherOrderOperator):
            if func in getattr(higher_order, "registered_hop_fake_fns", ()):
                return super().__torch_dispatch__(func, types, args, named)
            rule = func.python_key_table.get(fake_tensor.FakeTensorMode)
            return rule(self, *args, **named) if rule is not None else NotImplemented
        if (shaped := shape_rule(func)) is not None:
            with self:
                return shaped(*args, **named)
        # Of `torch.tensor` in inference mode: copies values to a real device.
        if func is torch.ops.aten.to.dtype_layout:
            with self:
                return func.decompose(*args, **named)
        try:
            out = super().__torch_dispatch__(func, types, args, named)
        except (fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException):
            return self._values.answer(self, func, args, named)
        self._values.follow(func, args, named, out)
        return out


class _Values:
    """The values of small tensors of integers, and what is said of all others."""

    def __init__(self, notes: Notes) -> None:
        self.notes = notes

    def of(self, tensor: Any) -> Any:
        """The values of a tensor as a tensor of the CPU; None if nobody knows them."""
        if not isinstance(tensor, fake_tensor.FakeTensor):
            return tensor
        found = getattr(tensor, "_aot_values", None)
        return found if found is not None else tensor.constant

    def follow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Compute with values what torch computed with shapes; what a write leaves unknown is forgotten."""
        outs = [item for item in _pytree.tree_leaves(out) if isinstance(item, fake_tensor.FakeTensor)]
        kept = bool(outs) and all(_keeps_values(item, args) for item in outs)
        found = _pytree.tree_leaves(self._computed(func, args, kwargs)) if kept else []
        for number, item in enumerate(outs):
            known = found[number] if len(found) == len(outs) else None
            if known is not None and known.shape == item.shape and known.dtype == item.dtype:
                item._aot_values = known
            elif func._schema.is_mutable:
                item._aot_values = None
            item._aot_false = _is_false(func, args)
            item._aot_difference = item.is_floating_point() and _is_difference(func, args)

    def answer(self, mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What takes the place of a result that depends on values."""
        found = self._computed(func, args, kwargs)
        if isinstance(found, torch.Tensor):
            with mode:
                out = torch.empty(found.shape, dtype=found.dtype, device=args[0].device)
            out._aot_values = found
            return out
        if found is not None:
            return found
        self.notes.add(_READ)
        name = func._schema.name.removeprefix("aten::")
        if name in ("equal", "is_same_size"):
            return True
        if name in ("_local_scalar_dense", "item", "is_nonzero"):
            return self.made_up(args[0])
        return self._all_chosen(mode, name, args)

    def made_up(self, tensor: Any) -> Any:
        """A value that lets comparisons of results hold."""
        if getattr(tensor, "_aot_false", False):
            return False if tensor.dtype == torch.bool else 0
        return _MADE_UP.get(tensor.dtype, _NO_DIFFERENCE)

    def _all_chosen(self, mode: Any, name: str, args: tuple[Any, ...]) -> Any:
        """The shape of a choice by values, as if all were chosen."""
        given = args[0]
        with mode:
            if name == "nonzero":
                return torch.empty((given.numel(), given.dim()), dtype=torch.int64, device=given.device)
            if name == "masked_select":
                return torch.empty(given.numel(), dtype=given.dtype, device=given.device)
            if name == "bincount":
                return torch.empty(max(1, *args[2:3]), dtype=torch.int64, device=given.device)
            if name in ("_unique2", "unique_consecutive", "unique_dim"):
                counts = torch.empty(given.numel(), dtype=torch.int64, device=given.device)
                return given.reshape(-1), counts, counts.clone()
        raise NotImplementedError(f"{name} of values that a tensor without memory does not have")

    def _computed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of an operator on values; None if one of its tensors has none."""
        leaves, shape = _pytree.tree_flatten((args, kwargs))
        tensors = [item for item in leaves if isinstance(item, torch.Tensor)]
        name = func._schema.name.removeprefix("aten::")
        if name in _UNWRITTEN or any(self.of(item) is None or item.numel() > _MOST_VALUES for item in tensors):
            return None
        cpu = torch.device("cpu")
        known = [
            self.of(item) if isinstance(item, torch.Tensor) else cpu if isinstance(item, torch.device) else item
            for item in leaves
        ]
        given, named = _pytree.tree_unflatten(known, shape)
        named.pop("pin_memory", None)
        try:
            return func(*given, **named)
        except (RuntimeError, TypeError, NotImplementedError):
            return None  # of the GPU alone


def _keeps_values(tensor: Any, args: tuple[Any, ...]) -> bool:
    """Whether values are followed: of integers, and of what the CPU computes alone; kernels write to the GPU."""
    devices = [item.device.type for item in _pytree.tree_leaves(args) if isinstance(item, torch.Tensor)]
    of_the_cpu = tensor.device.type == "cpu" and all(kind == "cpu" for kind in devices)
    return tensor.numel() <= _MOST_VALUES and (tensor.dtype in _MADE_UP or of_the_cpu)


def _is_false(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether a result says that values differ or are broken, or is made of one that does."""
    name = func._schema.name.removeprefix("aten::").removesuffix("_")
    if name in _FALSE:
        return True
    first = getattr(args[0], "_aot_false", False) if args else False
    return not first if name in ("logical_not", "bitwise_not") and args[0].dtype == torch.bool else first


def _is_difference(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether a result is the difference of two tensors, or is made of one alone or with others."""
    tensors = [item for item in args[:2] if isinstance(item, torch.Tensor)]
    if func._schema.name.removeprefix("aten::").removesuffix("_") == "sub":
        return len(tensors) == 2
    return bool(tensors) and tensors[0] is args[0] and getattr(tensors[0], "_aot_difference", False)


class _NoDifference(float):
    """What a difference of results is: equal to zero, and yet one can divide by it."""

    def __eq__(self, other: object) -> bool:
        return other == 0 or float(self) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __gt__(self, other: float) -> bool:
        return other < 0

    def __le__(self, other: float) -> bool:
        return other >= 0

    __hash__ = float.__hash__


class _Contents(TorchFunctionMode):  # type: ignore[misc]
    """Answers for what never reaches torch's dispatcher: addresses, arrays and lists."""

    def __init__(self, values: _Values) -> None:
        super().__init__()
        self._values = values
        self._rooms = itertools.count(1)
        self._addresses: dict[int, int] = {}
        self._answers: dict[Any, Callable[..., Any]] = {
            torch.Tensor.data_ptr: self._address,
            torch.Tensor.numpy: self._array,
            torch.Tensor.__array__: self._array,
            torch.Tensor.tolist: self._list,
            torch.Tensor.item: self._item,
            torch.Tensor.__format__: lambda tensor, spec: format(
                tensor.item() if tensor.dim() == 0 else str(tensor), spec
            ),
            torch.Tensor.pin_memory: lambda tensor, *args, **named: tensor,
            torch.Tensor.is_pinned: lambda tensor, *args, **named: True,
            **dict.fromkeys((torch.allclose, torch.equal, torch.Tensor.allclose, torch.Tensor.equal), self._equal),
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = self._answers.get(func)
        if answer is not None and isinstance(args[0], fake_tensor.FakeTensor):
            return answer(*args, **(kwargs or {}))
        if func is torch.Tensor.cuda:  # `cuda()` takes what `to("cuda")` does but the dtype
            return args[0].to(torch.device("cuda", 0))
        named = {name: _numbered(value) if name == "device" else value for name, value in (kwargs or {}).items()}
        return func(*(map(_numbered, args) if func is torch.Tensor.to else args), **named)

    def _address(self, tensor: Any) -> int:
        """An address that is aligned as an allocation is, the same for all views of one storage."""
        storage = tensor.untyped_storage()._cdata
        if storage not in self._addresses:
            self._addresses[storage] = _ADDRESS + next(self._rooms) * _ROOM
        offset: int = tensor.storage_offset() * tensor.element_size()
        return self._addresses[storage] + offset

    def _array(self, tensor: Any, *args: Any, **named: Any) -> Any:
        import numpy

        known = self._values.of(tensor)
        if known is not None:
            return known.numpy()
        self._values.notes.add(_READ)
        with torch._C._DisableTorchDispatch():
            kind = torch.empty(0, dtype=tensor.dtype).numpy().dtype
        return numpy.zeros(tuple(tensor.shape), dtype=kind)

    def _item(self, tensor: Any) -> Any:
        if not getattr(tensor, "_aot_difference", False) or self._values.of(tensor) is not None:
            return tensor.item()
        self._values.notes.add(_COMPARED)
        return _NoDifference(_NO_DIFFERENCE)  # torch makes a plain number of what its operator gives

    def _list(self, tensor: Any) -> Any:
        known = self._values.of(tensor)
        if known is not None:
            return known.tolist()
        self._values.notes.add(_READ)
        return _nested(self._values.made_up(tensor), list(tensor.shape))

    def _equal(self, *args: Any, **named: Any) -> bool:
        self._values.notes.add(_COMPARED)
        return True


def _numbered(device: Any) -> Any:
    """A device with its number: the switch of devices that stands in does not know the current one."""
    if isinstance(device, str) and device == "cuda":
        return torch.device("cuda", 0)
    if isinstance(device, int) and not isinstance(device, bool):  # torch asks which kind of device there is
        return torch.device("cuda", device)
    unnumbered = isinstance(device, torch.device) and device.type == "cuda" and device.index is None
    return torch.device("cuda", 0) if unnumbered else device


def _nested(value: Any, shape: list[int]) -> Any:
    return [_nested(value, shape[1:]) for _ in range(shape[0])] if shape else value
