"""What a name with dots stands for in a module, as the code of a kernel would find it, without running properties."""

from __future__ import annotations

import enum
import importlib
import importlib.util
import logging
import sys
import types
from typing import Any

from ..values.held import PLAIN
from ..values.libraries import is_of_library, is_of_python, module_of, takes_part
from ..values.named import layers

__all__ = ["DEFAULT_DTYPE", "FOUND", "LEVEL", "MISSING", "VERSION", "WHOLE", "member", "resolve"]

MISSING = object()
WHOLE = "*"  # the path of a module itself, all of whose values may be read
LEVEL = "level of "  # of a logger, a path in `logging`; also whether it is disabled
FOUND = "found "  # a path in `importlib.util`: whether there is a module of this name
DEFAULT_DTYPE = "default dtype"  # a path in `torch`: of tensors that are made without one
VERSION = "version of "  # of a distribution, a path in `importlib.metadata`
_NAMESPACES = frozenset({"__dict__", "__globals__", "__annotations__", "__doc__", "__name__", "__qualname__"})
_UNTOLD_BY_CLASSES = frozenset(
    {"__dict__", "__weakref__", "__doc__", "__module__", "__firstlineno__", "__static_attributes__"}
)


def resolve(module: str, path: str) -> Any:
    """What a name with dots stands for in a module. Stops at the last part that is told.

    A module that is not loaded is imported, as tracing would.
    """
    try:
        value: Any = sys.modules.get(module) or importlib.import_module(module)
    except Exception:  # a library's module may raise anything
        return MISSING
    if path == WHOLE:
        return value
    if path[: len(LEVEL)] == LEVEL:
        logger = logging.getLogger(path.removeprefix(LEVEL))
        return [logger.getEffectiveLevel(), logger.level, logger.disabled, logger.manager.disable]
    if path == DEFAULT_DTYPE:
        return value.get_default_dtype()
    if path[: len(FOUND)] == FOUND:
        return _is_there(path.removeprefix(FOUND))
    if path[: len(VERSION)] == VERSION:
        return _version(path.removeprefix(VERSION))
    names = path.split(".")
    for number, name in enumerate(names):
        found = member(value, name)
        if found is MISSING:
            return MISSING if number == 0 or isinstance(value, types.ModuleType) else value
        if isinstance(found, types.ModuleType) and is_of_python(found.__name__):
            return _of_python(found, names[number + 1 :])
        if isinstance(found, type) and not takes_part(found.__module__):
            return _of_foreign(found, names[number + 1 :])
        value = found
    return value


def _is_there(module: str) -> bool:
    """Whether an import would find a module."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # its package is not there, or it was made by hand
        return module in sys.modules


def _version(distribution: str) -> Any:
    import importlib.metadata  # takes long to import, and few kernels ask for this

    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return MISSING


def _of_foreign(kind: type, names: list[str]) -> Any:
    """A class of CuTe DSL, of C or of Python, which its name tells; or what a library put there, or a number of it."""
    if not names:
        return kind
    value = member(kind, names[0])
    put_there = is_of_library(next(layers(value), None))
    return value if put_there or type(value) in PLAIN else kind


def _of_python(module: types.ModuleType, names: list[str]) -> Any:
    """A number or text of one of Python's own modules, as ``sys.version_info``, or what a library put there; else the module."""
    value = vars(module).get(names[0], module) if names else module
    if value is sys.version_info:
        return sys.version_info[:2]
    if isinstance(value, type) and len(names) > 1:
        found = _of_foreign(value, names[1:])
        return found if found is not value else module
    if isinstance(value, types.ModuleType):
        found = _of_python(value, names[1:]) if value is not module else module
        return found if not isinstance(found, types.ModuleType) else module
    for name in names[1:]:  # of an object, as `sys.implementation.version`
        value = getattr(value, "__dict__", {}).get(name, value) if not isinstance(value, type) else value
    if type(value) in PLAIN or isinstance(value, (float, tuple, list, dict, set, frozenset, bytes)):
        return value
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType)) and value.__name__ != names[-1]:
        return value  # another function under this name
    kind = value if isinstance(value, (types.FunctionType, type)) else type(value)
    return value if takes_part(kind.__module__) else module


def member(holder: Any, name: str) -> Any:
    """What a module, class or object has under a name, or ``MISSING``."""
    if isinstance(holder, (staticmethod, classmethod)):
        holder = holder.__func__
    if name in _NAMESPACES and isinstance(holder, (types.ModuleType, type, types.FunctionType)):
        return _namespace(holder, name)
    if type(holder) is types.ModuleType:
        held = holder.__dict__
        return held.get(name, MISSING) if "__getattr__" not in held else _asked(holder, name)
    if isinstance(holder, types.ModuleType):  # of a class of its own, which may answer as it likes
        return _asked(holder, name)
    if isinstance(holder, enum.EnumMeta) and name in holder.__members__:
        return holder.__members__[name]
    if isinstance(holder, type):
        return MISSING if _is_asked_of_metaclass(holder, name) else _of_class(holder, name)
    own = getattr(holder, "__dict__", None)
    if isinstance(own, dict) and name in own and not _answers(type(holder), name):
        return own[name]
    return MISSING  # a property or a method may read all of the object


def _of_class(kind: type, name: str) -> Any:
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), MISSING)


def _answers(kind: type, name: str) -> bool:
    """Whether a class answers for an attribute that its objects hold: by a property, or in a way of its own for all."""
    get: Any = kind.__getattribute__
    is_own = get is not object.__getattribute__ and takes_part(kind.__module__)
    return is_own or hasattr(type(_of_class(kind, name)), "__set__")


def _is_asked_of_metaclass(kind: type, name: str) -> bool:
    """Whether the class of a class answers for an attribute: by a property, or by code of its own for all."""
    of = type(kind)
    if of is type or not takes_part(of.__module__):
        return False
    return isinstance(of.__getattribute__, types.FunctionType) or hasattr(type(_of_class(of, name)), "__set__")


def _namespace(holder: Any, name: str) -> Any:
    """What a function or class says of itself, or all the values of a namespace. A module is the form of its values."""
    if isinstance(holder, types.ModuleType):
        return holder if name == "__dict__" else vars(holder).get(name, MISSING)
    if name == "__globals__":
        return sys.modules.get(module_of(holder), MISSING)
    if name == "__dict__" and isinstance(holder, type):
        return {key: item for key, item in vars(holder).items() if key not in _UNTOLD_BY_CLASSES}
    return getattr(holder, name, MISSING)


def _asked(module: types.ModuleType, name: str) -> Any:
    """What a module says that loads some of its names when they are asked for."""
    try:
        return getattr(module, name, MISSING)
    except Exception:  # it may import anything
        return MISSING
