"""What code reads by name: ``config.fast.level`` is one name. Read off bytecode; nothing is executed."""

from __future__ import annotations

import dis
import functools
import importlib.util
import re
import sys
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from aot_runtime.serving.reading.read_forms import ReadForms
from aot_runtime.serving.reading.resolving import MISSING, WHOLE, resolve
from aot_runtime.serving.values.digests import UnstableError
from aot_runtime.serving.values.held import annotations_of, attributes_of
from aot_runtime.serving.values.libraries import is_of_library, is_of_python, module_of, takes_part
from aot_runtime.serving.values.named import has_globals_of_module
from aot_runtime.serving.values.sources import original_code

__all__ = [
    "Reached",
    "asks_for_variables",
    "codes_in",
    "constants",
    "imported_by",
    "names_in_hints",
    "names_read",
    "names_tried",
    "private",
    "reach",
]

_ROOTS = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_MEMBERS = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_PATH = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_WORD, _SPACE = re.compile(r"[^\W\d]\w*"), re.compile(r"\s")
_VARIABLES = frozenset({"environ", "getenv"})
_HANDLERS = frozenset({"PUSH_EXC_INFO", "SETUP_FINALLY"})
_CONSTANTS = frozenset({"LOAD_CONST", "LOAD_SMALL_INT"})


@functools.lru_cache(maxsize=8192)
def names_read(code: types.CodeType) -> frozenset[str]:
    """The globals that code reads, each with the attributes that follow it at once. Nested code is code of its own."""
    found: set[str] = set()
    path: list[str] = []
    for instruction in dis.get_instructions(code):
        if instruction.opname in _MEMBERS and path:
            path.append(str(instruction.argval))
            continue
        if instruction.opname in ("CACHE", "EXTENDED_ARG", "PRECALL"):
            continue
        if path:
            found.add(".".join(path))
        path = [str(instruction.argval)] if instruction.opname in _ROOTS else []
    return frozenset({*found, *([".".join(path)] if path else [])})


@functools.lru_cache(maxsize=8192)
def imported_by(code: types.CodeType, package: str) -> frozenset[tuple[str, str]]:
    """What code imports when it runs: modules with the names that are taken from them, or ``WHOLE`` for a module itself."""
    found: set[tuple[str, str]] = set()
    level: Any = 0  # the constants before an import
    names: Any = None
    for instruction in dis.get_instructions(code):
        if instruction.opname in _CONSTANTS:
            level, names = names, instruction.argval
        elif instruction.opname == "IMPORT_NAME":
            module = importlib.util.resolve_name("." * int(level or 0) + str(instruction.argval), package or __name__)
            parts = module.split(".")
            found |= {(module, name) for name in names or ()}
            # Without names it binds the outermost package, or the module under another name.
            found |= {(".".join(parts[: number + 1]), WHOLE) for number in range(0 if names else len(parts))}
    return frozenset(found)


@functools.lru_cache(maxsize=8192)
def constants(code: types.CodeType) -> frozenset[str]:
    """The words in code that could be names of attributes or variables: texts without spaces, also in tuples."""
    texts = [item for held in code.co_consts for item in (held if isinstance(held, tuple) else (held,))]
    words = (_WORD.findall(item) for item in texts if isinstance(item, str) and not _SPACE.search(item))
    return frozenset(word for found in words for word in found)


def names_in_hints(value: Any) -> Iterator[tuple[str, str]]:
    """What the annotations of a function or class name in its module if they are texts.

    CuTe DSL evaluates those of each function that it traces, and no code names what they lead to.
    """
    module = module_of(value) if isinstance(value, types.FunctionType) else str(value.__module__)
    known = vars(sys.modules[module]) if module in sys.modules else {}
    hints = annotations_of(value) if isinstance(value, type) else value.__annotations__
    for text in filter(lambda hint: type(hint) is str, hints.values()):
        yield from ((module, path) for path in _PATH.findall(text) if path.partition(".")[0] in known)


def private(names: Iterable[str]) -> frozenset[str]:
    """Those of some names that begin with one underscore."""
    return frozenset(name for name in names if name[:1] == "_" != name[1:2])


@functools.lru_cache(maxsize=8192)
def names_tried(code: types.CodeType) -> frozenset[str]:
    """The private names that code asks for and may do without, since it handles exceptions."""
    handles = any(instruction.opname in _HANDLERS for instruction in dis.get_instructions(code))
    return private(code.co_names) if handles else frozenset()


def asks_for_variables(code: types.CodeType) -> bool:
    """Whether code may read variables of the environment."""
    return not _VARIABLES.isdisjoint(code.co_names)


@dataclass
class Reached:
    """What functions lead to by the names that they read."""

    modules: set[str] = field(default_factory=set)  # that have such functions
    values: dict[tuple[str, str], str] = field(default_factory=dict)  # module and name -> the value, as text
    functions: list[types.FunctionType] = field(default_factory=list)


def reach(roots: list[Any]) -> Reached:
    """All that functions and classes lead to by name: an upper bound of what tracing them may read by name."""
    reached, waiting, seen = Reached(), list(roots), set[int]()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, type):
            waiting += [item for base in value.__mro__ if takes_part(base.__module__) for item in vars(base).values()]
            continue
        for function in _layers(value):
            reached.functions.append(function)
            waiting += _read_by(function, reached)
        waiting += _inside(value)
    return reached


def _inside(value: Any) -> Iterable[Any]:
    """What a value holds that may be a function or lead to one: items, the parts of a partial, attributes of objects."""
    if isinstance(value, dict | types.MappingProxyType):
        return value.values()
    if isinstance(value, list | tuple | set | frozenset):
        return value
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, property):
        return [value.fget, value.fset, value.fdel]
    if isinstance(value, types.MethodType):
        return [value.__self__]
    if isinstance(value, types.FunctionType):
        return [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values(), *vars(value).values()]
    kind = type(value)
    if isinstance(value, types.ModuleType) or not (takes_part(kind.__module__) or is_of_python(kind.__module__)):
        return ()
    called = [vars(base)[name] for base in kind.__mro__ for name in ("__call__", "__get__") if name in vars(base)]
    return [*called, *(attributes_of(value).values() if hasattr(value, "__dict__") else ())]


def _layers(value: Any) -> Iterator[types.FunctionType]:
    """The functions of libraries inside a value: one that is wrapped, of a method, of a cache."""
    if isinstance(value, (staticmethod, classmethod, types.MethodType)):
        value = value.__func__
    while isinstance(value, (types.FunctionType, functools._lru_cache_wrapper)):
        if is_of_library(value):
            yield value
        value = getattr(value, "__wrapped__", None)


def _read_by(function: types.FunctionType, reached: Reached) -> list[Any]:
    """Note what a function reads, and give what of that leads further."""
    module, found = module_of(function), list[Any]()
    reached.modules.add(module)
    for code in codes_in(original_code(function)):
        for path in names_read(code):
            if path.partition(".")[0] not in function.__globals__:
                continue
            try:
                place = _place_of(function, module, path)
                value = resolve(*place) if place is not None else function.__globals__[path.partition(".")[0]]
            except Exception:  # an object may answer as it likes when it is looked at
                continue
            found += [value, *_methods_named(value, path)]
            if place is not None and place not in reached.values:
                reached.values[place] = _text(value, *place)
        for place in imported_by(code, str(function.__globals__.get("__package__") or "")):
            if place[0] in sys.modules and takes_part(place[0]):
                found.append(resolve(*place))
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:
            continue  # not assigned yet
    return [item for item in found if item is not MISSING]


def _methods_named(value: Any, path: str) -> Iterator[Any]:
    """The methods of an object of a library's class that a path names: `config.fast.pick`."""
    kind = type(value)
    if takes_part(kind.__module__) and not isinstance(value, type):
        held = (vars(base) for base in kind.__mro__)
        yield from (names[name] for names in held for name in path.split(".")[1:] if name in names)


def _place_of(function: types.FunctionType, module: str, path: str) -> tuple[str, str] | None:
    """The module that has what a function reads, and under which name; None if only the function's own globals have it.

    ``exec`` may give a function globals that are no module's: the key of a call has what these hold.
    """
    if has_globals_of_module(function):
        return module, path
    first, _, rest = path.partition(".")
    value = function.__globals__[first]
    return (value.__name__, rest) if rest and isinstance(value, types.ModuleType) else None


def _text(value: Any, module: str, path: str) -> str:
    try:
        return ReadForms().text(value, module, path)
    except UnstableError:
        return type(value).__qualname__


def codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """Code, and the code of functions that it defines."""
    yield code
    for item in code.co_consts:
        if isinstance(item, types.CodeType):
            yield from codes_in(item)
