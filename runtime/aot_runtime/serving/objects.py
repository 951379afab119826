"""Objects as data, so that a recording can be built without pickles: what can be imported is named, the rest is listed.

An object of a class is the name of the class and its attributes, and is rebuilt without running its ``__init__``, as a
pickle would. Some classes of Python, torch, CUDA and CuTe DSL are told by what their constructors take. An object that
pickles in another way of its own, or that holds one which has no such form, stays a pickle. The reader is
``aot/compile/objects.py``.
"""

from __future__ import annotations

import base64
import copyreg
import enum
import functools
import inspect
import math
import pickle
import sys
import types
import typing
from collections.abc import Callable
from typing import Any

from .values.digests import UnstableError
from .values.libraries import MAIN, is_of_cute_dsl, module_of
from .values.named import base_names, has_globals_of_module, leads_to, qualified
from .values.sources import original_code

__all__ = ["Objects", "code_inside", "name_of"]

_PROTOCOL = 4  # the same bytes from every Python that is supported
_PLAIN = frozenset({bool, int, str, type(None)})
_SEQUENCES = {list: "list", tuple: "tuple", set: "set", frozenset: "frozenset"}
_OWN_PICKLES = ("__reduce_ex__", "__reduce__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__")
# What makes an object again, by the name of its class.
_PARTS: dict[str, Callable[[Any], list[Any]]] = {
    "_thread.RLock": lambda value: [],
    "_thread._local": lambda value: [dict(vars(value))],
    "_thread.lock": lambda value: [],
    "builtins.bytearray": lambda value: [bytes(value)],
    "builtins.complex": lambda value: [value.real, value.imag],
    "builtins.ellipsis": lambda value: [],
    "builtins.range": lambda value: [value.start, value.stop, value.step],
    "builtins.slice": lambda value: [value.start, value.stop, value.step],
    "collections.Counter": lambda value: [dict(value)],
    "collections.OrderedDict": lambda value: [dict(value)],
    "collections.defaultdict": lambda value: [value.default_factory, dict(value)],
    "collections.deque": lambda value: [list(value), value.maxlen],
    "cuda.bindings.driver.CUstream": lambda value: [int(value)],
    "logging.Logger": lambda value: [value.name],
    "re.Pattern": lambda value: [value.pattern, value.flags],
    "torch.Size": lambda value: [list(value)],
    "torch.device": lambda value: [str(value)],
    "types.SimpleNamespace": lambda value: [dict(vars(value))],
}
_LOCALS = ".<locals>."
_OF_CUTE_DSL = ("cutlass", "cutlass.cute", "cutlass.cute.math")  # where it offers functions that other modules define


class Objects:
    """The objects of one record; ``pickled`` names those that had to be pickled."""

    def __init__(self) -> None:
        self.pickled: list[str] = []

    def of(self, value: Any, where: str) -> dict[str, Any]:
        """A value as JSON's types; :class:`UnstableError` if it has no form and cannot be pickled."""
        try:
            return _data(value, ())
        except _NoFormError:
            pass
        try:
            text = base64.b64encode(pickle.dumps(value, _PROTOCOL)).decode()
        except Exception as error:  # a pickle runs methods of the object's class, which may raise anything
            raise UnstableError(f"{where} cannot be pickled: {error}") from None
        self.pickled.append(where)
        return {"pickle": text}


class _NoFormError(Exception):
    """A value cannot be written as data."""


def _data(value: Any, around: tuple[int, ...]) -> dict[str, Any]:
    """A value as data; ``around`` are the objects that hold it, by identity."""
    kind: Any = type(value)
    if kind in _PLAIN or (kind is float and math.isfinite(value)):
        return {"plain": value}
    if id(value) in around:
        raise _NoFormError  # it leads back to itself
    inner = (*around, id(value))
    if kind in _SEQUENCES:
        return {_SEQUENCES[kind]: [_data(item, inner) for item in value]}
    if kind is dict:
        return {"dict": [[_data(key, inner), _data(item, inner)] for key, item in value.items()]}
    if kind is float or kind is bytes:
        return {kind.__name__: repr(value) if kind is float else value.hex()}
    if (name := name_of(value)) is not None:
        return {"name": name}
    if kind is functools.partial:
        return {"partial": [_data(part, inner) for part in (value.func, value.args, value.keywords)]}
    if kind is types.MethodType:
        return {"method": _data(value.__self__, inner), "of": value.__func__.__name__}
    if kind is types.FunctionType:
        return _inner_function(value, inner)
    if (made := _made(value, kind)) is not None:
        word, parts = made
        return {"made": word, "of": [_data(part, inner) for part in parts]}
    return _object(value, kind, inner)


def _made(value: Any, kind: Any) -> tuple[str, list[Any]] | None:
    """A word for how to make a value again, and what of; None if only its attributes could tell."""
    if typing.get_origin(value) is not None:
        return "hint", [typing.get_origin(value), list(typing.get_args(value))]
    if isinstance(value, types.ModuleType):
        return ("module", [value.__name__]) if sys.modules.get(value.__name__) is value else None
    if "Numeric" in base_names(kind) and is_of_cute_dsl(kind.__module__):
        return "number", [kind, value.value]
    parts = _PARTS.get(qualified(kind))
    return None if parts is None else (qualified(kind), parts(value))


def _inner_function(value: Any, around: tuple[int, ...]) -> dict[str, Any]:
    """A function that another one defined when it ran: its code lies in that one's, and what it encloses is told."""
    raw = inspect.unwrap(value)
    decorator = vars(raw).get("_decorator_kind", "")
    is_bare = raw is value or (
        getattr(value, "__wrapped__", None) is raw and is_of_cute_dsl(module_of(value)) and decorator
    )
    outer, _, path = raw.__qualname__.partition(_LOCALS)
    code: Any = original_code(raw)
    names, line = code.co_freevars, code.co_firstlineno
    if not (is_bare and path) or not has_globals_of_module(raw) or raw.__module__ in (MAIN, None):
        raise _NoFormError
    if code_inside(leads_to(raw.__module__, outer), path, line) is not code:
        raise _NoFormError
    try:
        cells = [cell.cell_contents for cell in raw.__closure__ or ()]
    except ValueError:  # not assigned yet
        raise _NoFormError from None
    told = [dict(zip(names, cells, strict=True)), raw.__defaults__, raw.__kwdefaults__, dict(raw.__annotations__)]
    settings = [decorator, raw.__dict__.get("_preprocess_enabled", True)]
    place = f"{raw.__module__}:{outer}"
    return {"inner": place, "path": path, "line": line, "held": [_data(one, around) for one in (*told, *settings)]}


def code_inside(function: Any, path: str, line: int) -> types.CodeType | None:
    """The code that a function defines under a path of names, at a line."""
    held = [original_code(inspect.unwrap(function))] if isinstance(function, types.FunctionType) else []
    for name in path.split(_LOCALS):
        consts = [one for code in held for one in code.co_consts if isinstance(one, types.CodeType)]
        held = [code for code in consts if code.co_name == name]
    found = [code for code in held if code.co_firstlineno == line]
    return found[0] if len(found) == 1 else None


def _object(value: Any, kind: Any, inner: tuple[int, ...]) -> dict[str, Any]:
    name = name_of(kind)
    if name is None or kind in copyreg.dispatch_table:
        raise _NoFormError
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return {"fields": [_data(item, inner) for item in value], "class": name}
    same = (getattr(kind, own, None) is getattr(object, own, None) for own in _OWN_PICKLES)
    if kind.__new__ is not object.__new__ or not all(same):
        raise _NoFormError
    slots = [one for one in copyreg._slotnames(kind) if hasattr(value, one)]  # type: ignore[attr-defined]
    held = {**getattr(value, "__dict__", {}), **{one: getattr(value, one) for one in slots}}
    return {"attributes": {one: _data(item, inner) for one, item in held.items()}, "class": name}


def name_of(value: Any) -> str | None:
    """``module:name`` if that leads to the very object, in a module that a build can import."""
    module: Any
    path: Any
    if isinstance(value, enum.Enum):
        module, path = type(value).__module__, f"{type(value).__qualname__}.{value.name}"
    elif type(value).__module__ == "torch" and type(value).__name__ == "dtype":
        module, _, path = str(value).partition(".")
    else:
        module, path = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(path, str) or module == MAIN:
        return None
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if found is not value and is_of_cute_dsl(module):
        module = next((one for one in _OF_CUTE_DSL if leads_to(one, path) is value), None)
        return module and f"{module}:{path}"
    return f"{module}:{path}" if found is value else None
