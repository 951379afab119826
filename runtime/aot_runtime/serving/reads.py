"""What tracing read beside the arguments of a call, compared with the live process before code is served.

A kernel is traced by running Python functions. These read globals, attributes of modules and classes, closures,
defaults, environment variables, and numbers of the device. None of that is an argument, and all of it becomes part of
the code. The builder records what was read (``aot/compile/reads.py``); a look-up evaluates the same here. A record:

``modules``      the modules whose functions ran: the digest of their source, and every value that they read by name
``environment``  variables that were read, by digest; None for one that was not set
``device``       questions to CuTe DSL's ``HardwareInfo``, and the answers
"""

from __future__ import annotations

import enum
import functools
import importlib
import json
import logging
import os
import re
import sys
import threading
import types
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from ..arch import Arch
from .forms import Forms, UnstableError, digest, is_defined, qualified
from .sources import class_text, source_digest, uses_cute_dsl

__all__ = [
    "MISSING",
    "WHOLE",
    "ReadForms",
    "changes",
    "changes_for_device",
    "environment_text",
    "resolve",
    "takes_part",
    "text_of",
]

_MAIN = "__main__"
_COMPILER = frozenset({"cutlass", "nvidia_cutlass_dsl", "cuda", "tvm_ffi", "aot", "aot_runtime"})
_FOREIGN = frozenset({*_COMPILER, "numpy", "jax", "jaxlib", "triton", "builtins", "typing_extensions"})
_LETTERS, _SHOWN = 12, 48
_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_HARDWARE, _RUNTIME = "cutlass.utils", "cutlass.base_dsl.runtime.cuda"
MISSING = object()
WHOLE = "*"  # the path of a module itself, all of whose values may be read


def takes_part(module: str | None) -> bool:
    """Whether functions of a module count if they run while a kernel is traced.

    CuTe DSL's do not: what it makes is in the bundle. Torch's count only in modules that use CuTe DSL themselves.
    """
    name = str(module)  # functions that code has made may have none
    return not _is_foreign(name) and (not name.startswith("torch.") or uses_cute_dsl(name))


@functools.lru_cache(maxsize=16384)
def _is_foreign(module: str) -> bool:
    top = module.partition(".")[0]
    return top in _FOREIGN or module == "torch" or (top in sys.stdlib_module_names and module != _MAIN)


def changes_for_device(reads: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What is not as it was when code for the current device was traced; ``reads`` are records by architecture.

    The device is asked only if some architectures can be served and some cannot.
    """
    if not reads:
        return ["what tracing read is not known"]
    first, *others = reads.values()
    same = list(changes(first))
    differing = {id(record): list(changes(record)) for record in others if record != first}
    changed = {arch: differing.get(id(record), same) for arch, record in reads.items()}
    if not any(changed.values()) or all(changed.values()):
        return same
    capability = _capability()
    if capability is None:
        return next(lines for lines in changed.values() if lines)
    return [line for arch, lines in changed.items() if Arch.parse(arch).runs_on(capability) for line in lines]


def _capability() -> tuple[int, int] | None:
    """The compute capability of the current device; None if CuTe DSL cannot tell."""
    try:
        major, minor = sys.modules[_RUNTIME].get_compute_capability_major_minor()
    except Exception:  # there may be no driver, no device, or another CuTe DSL
        return None
    return int(major), int(minor)


def changes(record: Mapping[str, Any]) -> Iterator[str]:
    """What is not as it was when a kernel was traced, a sentence each. Asks only what tracing asked."""
    for module, read in record.get("modules", {}).items():
        if read["source"] is not None and source_digest(module) != read["source"]:
            yield f"the source of {module} changed"
            continue
        for path, text in read["values"].items():
            found = text_of(module, path)
            if found != text:
                yield f"{module}.{path}: captured {text}, now {found}"
    for name, text in record.get("environment", {}).items():
        if environment_text(os.environ.get(name)) != text:
            yield f"the environment variable {name} is not what it was when captured"
    for question, arguments, answer in record.get("device", []):
        found = _ask(question, arguments)
        if found != answer:
            yield f"{question}({', '.join(map(str, arguments))}) of this device: captured {answer}, now {found}"


def environment_text(value: str | None) -> str | None:
    """A digest: variables may hold secrets."""
    return None if value is None else digest(value)[:_LETTERS]


def _ask(question: str, arguments: list[Any]) -> Any:
    """What CuTe DSL says of the current device, as it would have said to who traces."""
    try:
        return getattr(sys.modules[_HARDWARE].HardwareInfo(), question)(*arguments)
    except Exception as error:  # of the driver, or of a CuTe DSL that has no such question
        return f"{type(error).__name__}: {error}"


def text_of(module: str, path: str) -> str:
    """A value by its form: itself if it is short, else a digest. ``?`` and the reason if it has no form that lasts."""
    value = resolve(module, path)
    known, guard = _known.get(id(value)), _guard(value)
    if known is not None and guard is not None and known[0] is value and known[1] == guard:
        return known[2]
    try:
        text = ReadForms().text(value, f"{module}.{path}")
    except UnstableError as error:
        return f"? {error}"
    if guard is not None:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[id(value)] = value, guard, text
    return text


_MOST_KNOWN = 16384
_known: dict[int, tuple[Any, tuple[int, ...], str]] = {}  # the texts of values, with what must be the same in each


def _guard(value: Any) -> tuple[int, ...] | None:
    """What in a function or class could change, by identity; None if that cannot be said, or for other values.

    Most names stand for functions and classes, and a look-up reads hundreds of them.
    """
    if isinstance(value, (types.ModuleType, type)):
        name = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
        return () if not takes_part(name) or (isinstance(value, type) and is_defined(value)) else None
    found: list[int] = []
    while isinstance(value, types.FunctionType):
        if takes_part(str(value.__globals__.get("__name__"))):
            defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
            if value.__closure__ or value.__module__ == _MAIN or not _PLAIN.issuperset(map(type, defaults)):
                return None
            found += map(id, defaults)
        value = getattr(value, "__wrapped__", None)
        if value is None:
            return tuple(found)
    return None


def resolve(module: str, path: str) -> Any:
    """What a name with dots stands for in a module, without running properties. Stops at the last part that is told.

    A module that is not loaded is imported, as tracing would.
    """
    try:
        value: Any = sys.modules.get(module) or importlib.import_module(module)
    except Exception:  # a library's module may raise anything
        return MISSING
    if path == WHOLE:
        return value
    for number, name in enumerate(path.split(".")):
        found = _member(value, name)
        if found is MISSING:
            return MISSING if number == 0 or isinstance(value, types.ModuleType) else value
        if isinstance(found, types.ModuleType) and found.__name__.partition(".")[0] in sys.stdlib_module_names:
            return found
        if isinstance(found, type) and not takes_part(found.__module__):
            return found  # of CuTe DSL, of C or of Python: its name tells it
        value = found
    return value


def _member(holder: Any, name: str) -> Any:
    if isinstance(holder, types.ModuleType):
        return vars(holder).get(name, MISSING) if "__getattr__" not in vars(holder) else _asked(holder, name)
    if isinstance(holder, enum.EnumMeta) and name in holder.__members__:
        return holder.__members__[name]
    if isinstance(holder, type):
        return next((vars(base)[name] for base in holder.__mro__ if name in vars(base)), MISSING)
    own = getattr(holder, "__dict__", None)
    if isinstance(own, dict) and name in own:
        return own[name]
    return MISSING  # a property or a method may read all of the object


def _asked(module: types.ModuleType, name: str) -> Any:
    """What a module says that loads some of its names when they are asked for."""
    try:
        return getattr(module, name, MISSING)
    except Exception:  # it may import anything
        return MISSING


class ReadForms(Forms):
    """Forms of values that tracing read: functions with closures and defaults, classes by name.

    The modules of functions that ran are compared by source, so that functions are known by their names. What is read
    of a class has a name of its own: ``Norm.threads``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.classes: set[type] = set()  # of libraries, with their bases and the classes of these
        self.functions: list[types.FunctionType] = []  # of libraries; the code that gets one may read its attributes
        self.members: list[enum.Enum] = []  # of enumerations of libraries

    def text(self, value: Any, where: str) -> str:
        form = ["missing"] if value is MISSING else self.of(value, where)
        text = json.dumps(form, sort_keys=True)
        return text if len(text) <= _SHOWN else f"#{digest(form)[:_LETTERS]}"

    def _compound(self, value: Any, where: str) -> Any:
        if isinstance(value, types.ModuleType):
            return self._module(value)
        if isinstance(value, functools._lru_cache_wrapper):
            return ["cached", self.of(value.__wrapped__, where)]
        if isinstance(value, (staticmethod, classmethod)):
            return self.of(value.__func__, where)
        if isinstance(value, enum.Enum) and takes_part(type(value).__module__):
            return self._enum(value, where)
        if isinstance(value, property):
            return ["property", self.of([value.fget, value.fset, value.fdel], where)]
        return super()._compound(value, where)

    def _enum(self, member: enum.Enum, where: str) -> Any:
        """A member with its value and its own attributes, which its class may have given it."""
        kind = type(member)
        self.members.append(member)
        self._add_class(kind)
        own = {name: item for name, item in vars(member).items() if name.strip("_") not in _OF_MEMBERS}
        rest = [self._named(own, where)] if own else []
        return ["enum", qualified(kind), member.name, self.of(member.value, where), *rest]

    def _module(self, module: types.ModuleType) -> Any:
        """A module that is passed on as a value: the code that gets it may read any of its values.

        Functions and classes are known by their names: those that run count apart.
        """
        if not takes_part(module.__name__) or module.__name__.partition(".")[0] == "torch":
            return ["module", module.__name__]
        values = {name: item for name, item in sorted(vars(module).items()) if name[:2] != "__"}
        return ["module", module.__name__, {name: self._of_module(item, name) for name, item in values.items()}]

    def _of_module(self, item: Any, name: str) -> Any:
        if isinstance(item, (types.FunctionType, type)) and takes_part(item.__module__):
            return ["named", qualified(item)]
        return ["module", item.__name__] if isinstance(item, types.ModuleType) else self.of(item, name)

    def _add_class(self, kind: type) -> None:
        for held in (kind, type(kind)):  # a class may get its attributes from the class that it is an object of
            self.classes.update(base for base in held.__mro__ if takes_part(base.__module__))

    def type_of(self, kind: type, where: str) -> Any:
        if not takes_part(kind.__module__):
            return ["class", _foreign_name(kind)]
        met = kind in self.classes
        self._add_class(kind)
        if is_defined(kind):
            return ["class", qualified(kind), *([self._class_text(kind, where)] if kind.__module__ == _MAIN else [])]
        return ["class", qualified(kind)] if met else super().type_of(kind, where)

    def _class_text(self, kind: type, where: str) -> str:
        try:
            return digest(class_text(kind))[:_LETTERS]
        except (OSError, TypeError):
            raise UnstableError(f"{where} is a class whose source cannot be read") from None

    def function(self, value: Any, where: str) -> Any:
        """A function and all that wrap it, each by its name, what it encloses, and its defaults."""
        layers: list[Any] = []
        while isinstance(value, types.FunctionType):
            inner = getattr(value, "__wrapped__", None)
            layers.append(self._layer(value, inner, where))
            value = inner
        return ["function", *layers, *([self.of(value, where)] if value is not None else [])]

    def _layer(self, function: types.FunctionType, inner: Any, where: str) -> Any:
        module = str(function.__globals__.get("__name__"))
        if not takes_part(module):
            return _foreign_name(function)
        self.functions.append(function)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
        enclosed = {
            name: self.of(content, f"{name} of {where}")
            for name, cell in cells
            if (content := _content(cell)) is not inner
        }
        defaults = [function.__defaults__, function.__kwdefaults__]
        return [self._source(function, where), enclosed, self.of(defaults, f"the defaults of {where}")]

    def _object(self, value: Any, where: str) -> Any:
        if isinstance(value, (logging.Logger, *_LOCKS, type(os.environ))):
            return ["object", qualified(type(value))]  # the variables that are read are compared one by one
        if isinstance(value, re.Pattern):
            return ["pattern", str(value.pattern), value.flags]
        if isinstance(value, ContextVar):
            return ["context", self.of(value.get(None), where)]
        if isinstance(value, threading.local):
            return ["local", self.of(dict(vars(value)), where)]
        kind: Any = type(value)
        if kind.__module__.partition(".")[0] in _COMPILER and "_mlir" not in kind.__module__:
            return ["object", qualified(kind), super()._object(value, where)]
        self.type_of(kind, where)
        return super()._object(value, where)


_PLAIN = frozenset({bool, int, float, str, type(None)})
_OF_MEMBERS = frozenset(
    {"value", "name", "objclass", "sort_order"}
)  # what Python itself gives to members, underscores aside


def _foreign_name(value: Any) -> str:
    """A function or class of CuTe DSL has the same name in all its versions, and lies in other modules."""
    return f"{str(value.__module__).partition('.')[0]}:{value.__qualname__}"


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING.__class__  # not assigned yet
