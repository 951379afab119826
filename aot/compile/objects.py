"""Recorded objects, rebuilt from data: the reader of what ``aot_runtime/serving/objects.py`` writes.

A file of a recording may come from somebody else. It names functions and classes, and tracing calls them with values from
the same file: ``subprocess.run`` would do. So, unless the user trusts the recording, a name leads to code of modules that
use CuTe DSL, or to what only holds or computes values.
"""

from __future__ import annotations

import base64
import collections
import dataclasses
import enum
import functools
import importlib
import logging
import operator
import pickle
import re
import sys
import threading
import types
from collections.abc import Callable, Mapping
from typing import Any

from aot_runtime.serving.objects import code_inside, name_of
from aot_runtime.serving.values.libraries import is_of_cute_dsl, uses_cute_dsl
from aot_runtime.serving.values.named import base_names

from ..errors import DeclarationError

__all__ = ["check_trust", "rebuilt", "rebuilt_fields", "trust"]

_VALUES = frozenset({"_operator", "math"})  # modules whose functions compute values
_BUILTINS = frozenset(
    {
        "abs",
        "bool",
        "bytes",
        "complex",
        "dict",
        "divmod",
        "float",
        "frozenset",
        "int",
        "len",
        "list",
        "max",
        "min",
        "object",
    }
    | {"pow", "range", "round", "set", "slice", "str", "sum", "tuple"}
)


class _Trust:
    """Whether a recording may run any code in this process."""

    given = False


def trust(given: bool) -> None:
    """Say whether a recording may hold pickles and name anything: who wrote it then chooses what runs."""
    _Trust.given = given


def check_trust(reason: str) -> None:
    """Refuse what only a recording that is trusted may hold."""
    if not _Trust.given:
        raise DeclarationError(
            f"a recorded call {reason}",
            hint="pass `--trust` if you recorded the calls yourself: it lets them execute any code",
        )


def rebuilt(data: Mapping[str, Any]) -> Any:
    """An object that was recorded. What has a name is imported. Only a recording that is trusted chooses freely what runs."""
    (kind,) = data.keys() - _BESIDE
    return _REBUILD[kind](data)


def rebuilt_fields(data: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
    """A named tuple or an object of a dataclass with these fields; ``data`` is the record of the class."""
    kind = _data_class(data["name"])
    if hasattr(kind, "__post_init__") and not _is_code_of_kernels(kind):
        check_trust(f"names {data['name']}, which runs code of a module that does not use CuTe DSL")
    return kind(**values)


def _named(data: Mapping[str, Any]) -> Any:
    name, found = data["name"], _found(data["name"])
    if not (isinstance(found, enum.Enum) or _is_dtype(found) or _computes(found) or _is_code_of_kernels(found)):
        check_trust(f"names {name}, of a module that does not use CuTe DSL")
    return found


def _found(name: str) -> Any:
    """What a name leads to. It must be the name of the object itself: ``quack.utils:os.system`` is that of another."""
    module, _, path = name.partition(":")
    found = operator.attrgetter(path)(importlib.import_module(module))
    if name_of(found) != name:
        check_trust(f"names {name}, which is defined elsewhere")
    return found


def _data_class(name: str) -> Any:
    """A class of which an object is rebuilt without any code of it, unless it is one of kernels."""
    kind = _found(name)
    if not isinstance(kind, type):
        check_trust(f"names {name} as a class, which it is not")
    holds = dataclasses.is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
    if not (holds and not hasattr(kind, "__del__")) and not _is_code_of_kernels(kind):
        check_trust(f"names {name}, which is no dataclass, of a module that does not use CuTe DSL")
    return kind


def _is_code_of_kernels(found: Any) -> bool:
    module = str(getattr(found, "__module__", None))
    return module.partition(".")[0] == "cutlass" or uses_cute_dsl(module)


def _is_dtype(found: Any) -> bool:
    """Whether this is a type of torch, or of a handle of CUDA: each is named in annotations, and runs nothing."""
    is_handle = isinstance(found, type) and found.__module__ == "cuda.bindings.driver"
    return is_handle or (type(found).__module__ == "torch" and type(found).__name__ == "dtype")


def _computes(found: Any) -> bool:
    """Whether a function of Python itself only makes values of values; ``operator.call`` calls what it is given."""
    module, name = getattr(found, "__module__", None), getattr(found, "__qualname__", None)
    of_values = module in _VALUES and isinstance(found, types.BuiltinFunctionType) and name != "call"
    return of_values or (module == "builtins" and name in _BUILTINS)


def _each(data: Mapping[str, Any]) -> Any:
    (items,) = data.values()
    return [rebuilt(item) for item in items]


def _object(data: Mapping[str, Any]) -> Any:
    made = object.__new__(_data_class(data["class"]))
    for name, item in data["attributes"].items():
        object.__setattr__(made, name, rebuilt(item))  # frozen dataclasses have a `__setattr__` of their own
    return made


def _tuple(data: Mapping[str, Any]) -> Any:
    kind = _data_class(data["class"])
    return tuple.__new__(kind, map(rebuilt, data["fields"]))


def _method(data: Mapping[str, Any]) -> Any:
    owner, name = rebuilt(data["method"]), data["of"]
    found = getattr(type(owner), name, None)
    if not isinstance(found, types.FunctionType) or not _is_code_of_kernels(found):
        check_trust(f"names the method {name} of {type(owner).__qualname__}, of a module that does not use CuTe DSL")
    return getattr(owner, name)


def _inner_function(data: Mapping[str, Any]) -> Any:
    """A function that another one would define if it ran, with what that one gave it."""
    outer = _found(data["inner"])
    if not _is_code_of_kernels(outer):
        check_trust(f"names {data['inner']}, of a module that does not use CuTe DSL")
    cells, defaults, named, hints, decorator, preprocess = _each({"": data["held"]})
    code = code_inside(outer, data["path"], data["line"])
    if code is None or set(code.co_freevars) != set(cells):
        raise AttributeError(f"{data['inner']} defines no {data['path']} in line {data['line']}")
    closure = tuple(types.CellType(cells[name]) for name in code.co_freevars)
    module = sys.modules[outer.__module__]
    made: Any = types.FunctionType(code, vars(module), code.co_name, defaults, closure or None)
    made.__kwdefaults__, made.__annotations__, made.__module__ = named, hints, outer.__module__
    made.__qualname__ = f"{outer.__qualname__}.<locals>.{data['path']}"
    if not decorator:
        return made
    import cutlass.cute as cute

    decorate = {"jit": cute.jit, "kernel": cute.kernel}[decorator]
    return decorate(made) if preprocess else decorate(preprocess=False)(made)


def _hint(origin: Any, parts: list[Any]) -> Any:
    return functools.reduce(operator.or_, parts) if origin is types.UnionType else origin[tuple(parts)]


def _made(data: Mapping[str, Any]) -> Any:
    return _MAKE[data["made"]](*_each({"": data["of"]}))


def _module(name: str) -> types.ModuleType:
    found = importlib.import_module(name)
    if not (is_of_cute_dsl(name) or uses_cute_dsl(name)):
        check_trust(f"names {name}, a module that does not use CuTe DSL")
    return found


def _number(kind: Any, value: Any) -> Any:
    if not (isinstance(kind, type) and "Numeric" in base_names(kind) and is_of_cute_dsl(kind.__module__)):
        check_trust(f"makes a number of {kind!r}, which is no type of CuTe DSL's numbers")
    return kind(value)


def _local(values: dict[str, Any]) -> threading.local:
    found = threading.local()
    vars(found).update(values)
    return found


def _of_cuda(value: int) -> Any:
    from cuda.bindings.driver import CUstream

    return CUstream(value)


def _of_torch(name: str) -> Callable[..., Any]:
    return lambda *parts: getattr(importlib.import_module("torch"), name)(*parts)


# By the words of ``aot_runtime/serving/objects.py``.
_MAKE: dict[str, Callable[..., Any]] = {
    "_thread.RLock": threading.RLock,
    "_thread._local": _local,
    "_thread.lock": threading.Lock,
    "builtins.bytearray": bytearray,
    "builtins.complex": complex,
    "builtins.ellipsis": lambda: ...,
    "builtins.range": range,
    "builtins.slice": slice,
    "collections.Counter": collections.Counter,
    "collections.OrderedDict": collections.OrderedDict,
    "collections.defaultdict": collections.defaultdict,
    "collections.deque": collections.deque,
    "cuda.bindings.driver.CUstream": _of_cuda,
    "hint": _hint,
    "logging.Logger": logging.getLogger,
    "module": _module,
    "number": _number,
    "re.Pattern": re.compile,
    "torch.Size": _of_torch("Size"),
    "torch.device": _of_torch("device"),
    "types.SimpleNamespace": lambda values: types.SimpleNamespace(**values),
}


def _unpickled(data: Mapping[str, Any]) -> Any:
    check_trust("holds a pickle (`pickled` in its file says of what), and reading a pickle executes code of its author")
    return pickle.loads(base64.b64decode(data["pickle"]))


_BESIDE = frozenset({"class", "held", "line", "of", "path"})
_REBUILD: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "plain": lambda data: data["plain"],
    "float": lambda data: float(data["float"]),
    "bytes": lambda data: bytes.fromhex(data["bytes"]),
    "list": _each,
    "tuple": lambda data: tuple(_each(data)),
    "set": lambda data: set(_each(data)),
    "frozenset": lambda data: frozenset(_each(data)),
    "dict": lambda data: {rebuilt(key): rebuilt(item) for key, item in data["dict"]},
    "name": _named,
    "partial": lambda data: _partial(*_each(data)),
    "method": _method,
    "made": _made,
    "inner": _inner_function,
    "fields": _tuple,
    "attributes": _object,
    "pickle": _unpickled,
}


def _partial(function: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> functools.partial[Any]:
    return functools.partial(function, *args, **keywords)
