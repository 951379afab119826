"""What tracing read beside the arguments of a call, compared with the live process before code is served.

A kernel is traced by running Python functions. These read globals, attributes of modules and classes, closures,
defaults, environment variables, and numbers of the device. None of that is an argument, and all of it becomes part of
the code. The builder records what was read (``aot/compile/reads.py``); a look-up evaluates the same here. A record:

``modules``      the modules whose functions ran: the digest of their source, every value that they read by name, where each
                 function that ran is defined (``Norm@body,run``), and names that must not exist (``?len,range``)
``environment``  variables that were read, by digest; None for one that was not set
``device``       questions to CuTe DSL's ``HardwareInfo``, and the answers
"""

from __future__ import annotations

import abc
import builtins
import enum
import functools
import importlib
import json
import linecache
import logging
import operator
import os
import re
import sys
import threading
import types
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from itertools import chain
from typing import Any

from ..arch import Arch
from .forms import Forms, UnstableError, digest, foreign_name, has_globals_of_module, qualified
from .named import PLAIN, constructor_defaults, defaults_of, hints_of, is_defined, is_known, is_named, layers
from .sources import COMPILER, class_text, is_of_cute_dsl, is_of_python, source_digest, takes_part

__all__ = [
    "ABSENT",
    "LEVEL",
    "MISSING",
    "PLACE",
    "WHOLE",
    "ReadForms",
    "changes",
    "changes_for_device",
    "environment_text",
    "resolve",
    "text_of",
]

_MAIN = "__main__"
_LETTERS, _SHOWN = 12, 72
_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_HARDWARE, _RUNTIME = "cutlass.utils", "cutlass.base_dsl.runtime.cuda"
MISSING = object()
WHOLE = "*"  # the path of a module itself, all of whose values may be read
PLACE = "@"  # between a class, or nothing, and the names of functions: asks where they are defined
ABSENT = "?"  # begins a list of names that a module must not have: they stand for Python's own
LEVEL = "level of "  # of a logger, a path in `logging`; also whether it is disabled


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
    if PLACE in path:
        return _places_in(module, *path.split(PLACE))
    if path[:1] == ABSENT:
        return _present(module, path[1:].split(","))
    try:
        value = resolve(module, path)
        known, guard = _known.get(id(value)), _guard(value)
    except Exception as error:  # objects may answer as they like when they are looked at
        return f"? {type(error).__name__}: {error}"
    if known is not None and guard is not None and known[0] is value and _same(known[1], guard):
        return known[2]
    try:
        text = ReadForms().text(value, f"{module}.{path}")
    except Exception as error:
        return f"? {error}"
    if guard is not None:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[id(value)] = value, guard, text
    return text


_MOST_KNOWN = 16384
_known: dict[int, tuple[Any, tuple[Any, ...], str]] = {}  # the texts of values, with what must be the same in each


def _same(before: Sequence[Any], now: Sequence[Any]) -> bool:
    return len(before) == len(now) and all(map(operator.is_, before, now))


def _guard(value: Any) -> tuple[Any, ...] | None:
    """What in a function or class could change; None if that cannot be said, or for other values.

    Most names stand for functions and classes, and a look-up reads hundreds of them.
    """
    if isinstance(value, type):
        return _guard_of_class(value)
    if isinstance(value, types.ModuleType):
        return () if not takes_part(value.__name__) else None
    found: list[Any] = []
    while isinstance(value, types.FunctionType):
        if takes_part(str(value.__globals__.get("__name__"))):
            defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
            if value.__closure__ or value.__module__ == _MAIN or not PLAIN.issuperset(map(type, defaults)):
                return None
            if not has_globals_of_module(value) or not is_named(value):
                return None
            found += (*defaults, value.__code__)
        elif hasattr(value, _REGISTRY):
            return None
        value = getattr(value, "__wrapped__", None)
        if value is None:
            return tuple(found)
    return None


def _guard_of_class(kind: type) -> tuple[Any, ...] | None:
    if not takes_part(kind.__module__):
        return () if not _is_made(kind) else None
    if isinstance(kind, enum.EnumMeta) or not is_known(kind):
        return None
    token = [abc.get_cache_token()] if isinstance(kind, abc.ABCMeta) else []  # of virtual subclasses
    held = [base.__dict__ for base in kind.__mro__ if takes_part(base.__module__)]
    fields = [field for names in held for field in names.get("__dataclass_fields__", {}).values()]
    if any(field.metadata for field in fields):
        return None  # a dict that can be changed
    stored = (names.get(name) for names in held for name in ("__annotations__", "__annotations_cache__"))  # since 3.14
    hints = [one for found in stored if isinstance(found, dict) for one in found.values()]
    return (*kind.__mro__, *token, *chain.from_iterable(held), *hints, *constructor_defaults(kind))


def _places_in(module: str, holder: str, names: str) -> str:
    """Where the functions of a class or module are defined, and how they are annotated.

    The sources of modules whose functions ran are compared. So a line tells which of several definitions of a name it is.
    """
    held = resolve(module, holder or WHOLE)
    text = " ".join(_place(_member(held, name)) for name in names.split(","))
    return text if len(text) <= _SHOWN else f"#{digest(text)[:_LETTERS]}"


def _place(value: Any) -> str:
    known = _placed.get(id(value))
    codes = [value]
    for layer in layers(value):
        codes += (layer, getattr(layer, "__code__", None))
    if known is not None and _same(known[0], codes):
        return known[1]
    text = ",".join(_places(value)) or type(value).__name__
    if len(_placed) >= _MOST_KNOWN:
        _placed.clear()
    _placed[id(value)] = codes, text
    return text


_placed: dict[int, tuple[list[Any], str]] = {}  # the places of functions, with what must be the same in each


def _places(value: Any) -> Iterator[str]:
    for layer in layers(value):
        code = getattr(layer, "_original_code", getattr(layer, "__code__", None))
        if code is None:
            continue
        module = str(layer.__globals__.get("__name__"))
        if takes_part(module):
            hints = hints_of(layer)
            word = f":{digest(hints)[:_LETTERS]}" if hints else ""
            yield f"{module.rpartition('.')[2]}:{_first_line(layer, code)}{word}"
        else:
            yield f"{module.partition('.')[0]}:{layer.__name__}"


def _first_line(function: Any, code: types.CodeType) -> int:
    """The line that a function begins with. CuTe DSL before 4.8 replaces code and keeps none: its decorators are above it."""
    line = code.co_firstlineno
    if getattr(function, "_preprocessed", False) and not hasattr(function, "_original_code"):
        while linecache.getline(code.co_filename, line - 1).lstrip().startswith("@"):
            line -= 1
    return line


def _present(module: str, names: list[str]) -> str:
    """Which of some names a module has, or Python has under them something that is not its own."""
    known = vars(sys.modules[module]) if module in sys.modules else {}
    return json.dumps([name for name in names if name in known or not _is_of_builtins(name)])


def _is_of_builtins(name: str) -> bool:
    value = vars(builtins).get(name)
    return getattr(value, "__module__", "builtins") == "builtins" and getattr(value, "__name__", name) == name


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
    if path[: len(LEVEL)] == LEVEL:
        logger = logging.getLogger(path.removeprefix(LEVEL))
        return [logger.getEffectiveLevel(), logger.level, logger.disabled, logger.manager.disable]
    names = path.split(".")
    for number, name in enumerate(names):
        found = _member(value, name)
        if found is MISSING:
            return MISSING if number == 0 or isinstance(value, types.ModuleType) else value
        if isinstance(found, types.ModuleType) and is_of_python(found.__name__):
            return _of_python(found, names[number + 1 :])
        if isinstance(found, type) and not takes_part(found.__module__):
            return _of_foreign(found, names[number + 1 :])
        value = found
    return value


def _of_foreign(kind: type, names: list[str]) -> Any:
    """A class of CuTe DSL, of C or of Python, which its name tells; or what a library put there, or a number of it."""
    value = _member(kind, names[0]) if names else kind
    function = next(layers(value), None)
    put_there = isinstance(function, types.FunctionType) and takes_part(str(function.__globals__.get("__name__")))
    return value if put_there or type(value) in PLAIN else kind


def _of_python(module: types.ModuleType, names: list[str]) -> Any:
    """A number or text of one of Python's own modules, as ``sys.version_info``, or what a library put there; else the module."""
    value = vars(module).get(names[0], module) if names else module
    if value is sys.version_info:
        return sys.version_info[:2]
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


def _member(holder: Any, name: str) -> Any:
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
        return next((vars(base)[name] for base in holder.__mro__ if name in vars(base)), MISSING)
    own = getattr(holder, "__dict__", None)
    if isinstance(own, dict) and name in own and not _answers(type(holder), name):
        return own[name]
    return MISSING  # a property or a method may read all of the object


def _answers(kind: type, name: str) -> bool:
    """Whether a class answers for an attribute that its objects hold: by a property, or in a way of its own for all."""
    held = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)
    get: Any = kind.__getattribute__
    return hasattr(type(held), "__set__") or (get is not object.__getattribute__ and takes_part(kind.__module__))


def _namespace(holder: Any, name: str) -> Any:
    """What a function or class says of itself, or all the values of a namespace. A module is the form of its values."""
    if isinstance(holder, types.ModuleType):
        return holder if name == "__dict__" else vars(holder).get(name, MISSING)
    if name == "__globals__":
        return sys.modules.get(str(holder.__globals__.get("__name__")), MISSING)
    if name == "__dict__" and isinstance(holder, type):
        return {key: item for key, item in vars(holder).items() if key not in _OF_CLASSES}
    return getattr(holder, name, MISSING)


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
        self._told: set[type] = set()  # classes whose content the form has
        self.classes: set[type] = set()  # of libraries, with their bases and the classes of these
        self.functions: list[types.FunctionType] = []  # of libraries; the code that gets one may read its attributes
        self.members: list[enum.Enum] = []  # of enumerations of libraries
        self.modules: set[types.ModuleType] = set()  # of libraries, that are passed on as values

    def text(self, value: Any, where: str) -> str:
        form = ["missing"] if value is MISSING else self.of(value, where)
        text = json.dumps(form, sort_keys=True)
        return text if len(text) <= _SHOWN else f"#{digest(form)[:_LETTERS]}"

    def _compound(self, value: Any, where: str) -> Any:
        if isinstance(value, types.ModuleType):
            return self._module(value)
        if isinstance(value, functools._lru_cache_wrapper):
            own = {name: item for name, item in vars(value).items() if name[:2] != "__" and name != "cache_parameters"}
            return ["cached", self.of(value.__wrapped__, where), *([self._named(own, where)] if own else [])]
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
        return [
            "enum",
            qualified(kind),
            member.name,
            self.of(member.value, where),
            *rest,
            *self._class_of(member, where),
        ]

    def _module(self, module: types.ModuleType) -> Any:
        """A module that is passed on as a value: the code that gets it may read any of its values.

        Functions and classes are known by their names: those that run count apart.
        """
        if not takes_part(module.__name__) or module.__name__.partition(".")[0] == "torch":
            return ["module", module.__name__]
        self.modules.add(module)
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
            return ["class", foreign_name(kind)] if not _is_made(kind) else self.made_class(kind, where)
        met = kind in self._told
        self._told.add(kind)
        self._add_class(kind)
        if is_defined(kind) and is_named(kind):
            text = [self._class_text(kind, where)] if kind.__module__ == _MAIN else []
            return ["class", qualified(kind), *text, *self._shape(kind, where)]
        return ["class", qualified(kind)] if met else self.made_class(kind, where)

    def _shape(self, kind: type, where: str) -> list[Any]:
        """What a class says beside the values of its attributes: its bases, its names, its members or fields."""
        bases = [base for base in kind.__mro__[1:] if takes_part(base.__module__)]
        names = [sorted(name for name, item in vars(base).items() if _is_told(name, item)) for base in (kind, *bases)]
        told = [qualified(base) if is_known(base) else self._if_stable(base, where) for base in bases]
        found: list[Any] = [told, list(filter(None, names)), hints_of(kind), _registered(kind)]
        if "__dataclass_fields__" not in vars(kind) and "__match_args__" in vars(kind):
            found.append(list(vars(kind)["__match_args__"]))
        if isinstance(kind, enum.EnumMeta):
            members: Mapping[str, Any] = kind.__members__
            found.append([[name, self.of(member.value, where)] for name, member in members.items()])
        if defaults := defaults_of(kind):
            found.append({name: self._if_stable(item, where) for name, item in defaults.items()})
        return [digest(found)[:_LETTERS]] if any(found) else []

    def _if_stable(self, value: Any, where: str) -> Any:
        try:
            return self.of(value, where)
        except UnstableError:
            return qualified(type(value))

    def _class_text(self, kind: type, where: str) -> str:
        try:
            return digest(class_text(kind))[:_LETTERS]
        except (OSError, TypeError):
            raise UnstableError(f"{where} is a class whose source cannot be read") from None

    def function(self, value: Any, where: str) -> Any:
        if (fields := _fields_of(value)) is not None:
            return ["dataclass", self._named(fields, where)]
        return super().function(value, where)

    def _written(self, function: types.FunctionType, inner: Any, where: str) -> list[Any]:
        self.functions.append(function)
        return super()._written(function, inner, where)

    def _foreign(self, function: types.FunctionType, inner: Any) -> list[Any]:
        return [foreign_name(function)]

    def _content(self, cell: Any, where: str) -> Any:
        try:
            return cell.cell_contents
        except ValueError:
            return MISSING.__class__  # not assigned yet

    def _class_of(self, value: Any, where: str) -> list[Any]:
        self._add_class(type(value))
        return super()._class_of(value, where)

    def _object(self, value: Any, where: str) -> Any:
        if isinstance(value, logging.Logger):
            own = {name: item for name, item in vars(value).items() if name not in _OF_LOGGERS}
            return ["logger", qualified(type(value)), self._named(own, where), *self._class_of(value, where)]
        if isinstance(value, (*_LOCKS, type(os.environ))):
            return ["object", qualified(type(value))]  # the variables that are read are compared one by one
        if isinstance(value, re.Pattern):
            return ["pattern", str(value.pattern), value.flags]
        if isinstance(value, ContextVar):
            return ["context", self.of(_of_context(value), where)]
        if isinstance(value, threading.local):
            return ["local", self.of(dict(vars(value)), where), *self._class_of(value, where)]
        kind: Any = type(value)
        is_of_compiler = is_of_cute_dsl(kind.__module__) or kind.__module__.partition(".")[0] in COMPILER
        if is_of_compiler and "_mlir" not in kind.__module__:
            return ["object", qualified(kind), super()._object(value, where)]
        return super()._object(value, where)


_NAMESPACES = frozenset({"__dict__", "__globals__", "__annotations__", "__doc__", "__name__", "__qualname__"})
_OF_CLASSES = frozenset(
    {"__dict__", "__weakref__", "__doc__", "__module__", "__firstlineno__", "__static_attributes__"}
)
_REGISTRY = "registry"  # of functions that choose by the class of their argument
_OF_LOGGERS = frozenset({*vars(logging.root), "manager"})
# What Python itself gives to members, underscores aside.
_OF_MEMBERS = frozenset({"value", "name", "objclass", "sort_order"})


def _fields_of(function: Any) -> dict[str, Any] | None:
    """The defaults of fields, for the function that Python made of them. Its code differs between versions of Python."""
    owner, _, name = str(function.__qualname__).rpartition(".")
    if name != "__init__" or function.__code__.co_filename != "<string>" or "<" in owner:
        return None
    kind = resolve(function.__module__, owner)
    return defaults_of(kind) if isinstance(kind, type) else None


def _is_told(name: str, item: Any) -> bool:
    """Whether a class says something by having a name: a public one, or a method that Python itself looks for."""
    is_special = name[:2] == name[-2:] == "__" and name not in _ANNOTATE
    return name[0] != "_" or (is_special and callable(item) and takes_part(getattr(item, "__module__", None)))


_ANNOTATE = ("__annotate__", "__annotate_func__")  # Python 3.14 makes them of annotations


def _registered(kind: type) -> list[str]:
    """The classes that an abstract class was told to take for its own."""
    dump = getattr(abc, "_get_dump", None)  # CPython shows the registry only so
    if not isinstance(kind, abc.ABCMeta) or dump is None:
        return []
    return sorted(qualified(one) for reference in dump(kind)[0] if (one := reference()) is not None)


def _is_made(kind: type) -> bool:
    """Whether code made a class that says it is one of Python's own.

    Before Python 3.12 ``dataclasses.make_dataclass`` makes those of ``types``, and ``exec`` makes those of ``builtins``.
    """
    return kind.__module__ in ("builtins", "types") and not is_known(kind)


def _of_context(variable: ContextVar[Any]) -> Any:
    try:
        return variable.get()
    except LookupError:
        return "not set"
