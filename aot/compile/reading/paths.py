"""From the code that ran to the places of what it may have read: pairs of a module and a path in it."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import _lru_cache_wrapper
from pathlib import Path
from typing import Any

from aot_runtime.serving.reading.places import PLACE
from aot_runtime.serving.reading.reads import ABSENT
from aot_runtime.serving.reading.resolving import FOUND, MISSING, WHOLE, resolve
from aot_runtime.serving.values.libraries import MAIN, is_of_cute_dsl, is_of_library, is_of_python, takes_part
from aot_runtime.serving.values.named import layers
from aot_runtime.serving.values.sources import locate_source

from .names import constants, imported_by, names_in_hints, names_read

__all__ = [
    "GIVEN_BY_PYTHON",
    "Read",
    "absent",
    "cached_in",
    "cached_of",
    "classes_of",
    "counts_in",
    "flags",
    "functions_and_classes",
    "is_cached",
    "names_imported_by",
    "names_read_by",
    "names_read_in",
    "put_into_others",
    "put_into_preprocessor",
    "ran",
    "resolved",
]

# A module, and a path in it: names with dots, or what `aot_runtime.serving.reading.reads` writes instead.
Read = tuple[str, str]
_DATA = (bool, int, float, str, bytes, tuple, list, dict, set, frozenset, type(None))
_PREPROCESSOR = "cutlass.base_dsl.ast_preprocessor", "DSLPreprocessor"
# The attributes that every object, class, function or module has.
GIVEN_BY_PYTHON = frozenset({*dir(object), *dir(type), *dir(types.FunctionType), *dir(types.ModuleType), "__weakref__"})


def names_read_by(codes: Mapping[types.CodeType, str]) -> Iterator[Read]:
    """The names that code reads of its module, and those that it imports."""
    for code, module in list(codes.items()):
        known = vars(sys.modules[module]) if module in sys.modules else {}
        names = names_read(code)
        for path in names:
            if path.partition(".")[0] in known:
                yield module, path
                if isinstance(resolved(module, path), classmethod):  # it gets the class that it is asked of
                    yield module, path.rpartition(".")[0]
        if "globals" in names and "globals" not in known:
            yield module, WHOLE
        yield from names_imported_by(code, str(known.get("__package__") or ""))


def names_imported_by(code: types.CodeType, package: str) -> Iterator[Read]:
    """The names that code takes from modules of libraries. Of others, the functions, numbers and texts that it names.

    Not of CuTe DSL, which has other names in other versions. Whether a module is there counts, and not its version.
    """
    for module, name in imported_by(code, package):
        if takes_part(module):
            yield module, name
        elif not is_of_cute_dsl(module):
            if not is_of_python(module):
                yield "importlib.util", f"{FOUND}{module.partition('.')[0]}"
            yield from (
                (module, one) for one in (code.co_names if name == WHOLE else (name,)) if _is_plain(module, one)
            )


def _is_plain(module: str, name: str) -> bool:
    """Whether a loaded module has a function, a number or a text of that name."""
    held = vars(sys.modules[module]).get(name) if module in sys.modules else None
    return isinstance(held, (bool, int, float, str, types.FunctionType, types.BuiltinFunctionType))


def counts_in(module: types.ModuleType, name: str) -> bool:
    """Whether what a module of CuTe DSL or of Python has under a name is compared, if code asks for it by a text.

    Of Python's own modules, what is data: its functions are known by who calls them.
    """
    value = vars(module).get(name)
    return is_of_cute_dsl(module.__name__) or (is_of_python(module.__name__) and isinstance(value, _DATA))


def functions_and_classes(codes: Mapping[types.CodeType, str]) -> Iterator[Read]:
    """The functions that ran, for what they enclose and their defaults, and the classes of methods that ran."""
    by_module: dict[str, set[str]] = {}
    for code, module in codes.items():
        by_module.setdefault(module, set()).add(code.co_name)
    for module, names in by_module.items():
        known = vars(sys.modules[module])
        yield from ((module, name) for name in names if _counts_by_name(module, known.get(name), codes))
        held = [known, *(vars(kind) for kind in classes_of(module))]
        for item in (one[name] for one in held for name in names & one.keys() if ran(one[name], codes)):
            yield from (read for layer in layers(item) if is_of_library(layer) for read in names_in_hints(layer))
        placed = sorted(name for name in names if ran(known.get(name), codes))
        if placed and module != MAIN:  # what a script defines counts by its text
            yield module, f"{PLACE}{','.join(placed)}"
        yield from ((module, kind.__qualname__) for kind in classes_of(module) if names & vars(kind).keys())


def put_into_others(frame: types.FrameType) -> Iterator[Read]:
    """The places of a method that a library put into a class of CuTe DSL, of Python or of another package."""
    code = frame.f_code
    first: Any = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
    kinds = (type(first), first) if issubclass(type(first), type) else (type(first),)
    for base in dict.fromkeys(base for kind in kinds for base in kind.__mro__):
        if not takes_part(base.__module__):
            names = (name for name, item in vars(base).items() if ran(item, {code: ""}))
            yield from ((base.__module__, f"{base.__qualname__}{PLACE}{name}") for name in names)


def put_into_preprocessor() -> dict[Read, types.FunctionType]:
    """The methods that libraries put into what rewrites functions for CuTe DSL, by their places.

    A function is rewritten for the first kernel that uses it. Later ones are made of the same, and nothing of it runs again.
    """
    module, path = _PREPROCESSOR
    kind: Any = getattr(sys.modules.get(module), path, None)
    functions = ((name, next(layers(item), None)) for name, item in vars(kind).items()) if kind is not None else ()
    return {(module, f"{path}{PLACE}{name}"): function for name, function in functions if is_of_library(function)}


def flags(modules: Iterable[str]) -> Iterator[Read]:
    """``python -O`` makes other code of a source that asks for ``__debug__``, and no name tells."""
    paths = map(locate_source, {*modules} - {MAIN})
    if any(b"__debug__" in Path(path).read_bytes() for path in paths if path is not None and os.path.isfile(path)):
        yield "sys", "flags"


def absent(codes: Mapping[types.CodeType, str]) -> Iterator[Read]:
    """The names that code reads and its module does not have, such as ``len``: a module may come to have them."""
    by_module: dict[str, set[str]] = {}
    for code, module in codes.items():
        names = {path.partition(".")[0] for path in names_read(code)} - vars(sys.modules[module]).keys()
        by_module.setdefault(module, set()).update(names)
    yield from ((module, ABSENT + ",".join(sorted(names))) for module, names in by_module.items() if names)


def names_read_in(frame: types.FrameType, module: str) -> Iterator[Read]:
    """The names that a function reads: of its module, and of the classes that these and its first argument lead to."""
    code, known = frame.f_code, vars(sys.modules[module])
    holders: list[Any] = [frame.f_locals.get(name) for name in code.co_varnames[: min(code.co_argcount, 1)]]  # `self`
    for path in names_read(code):
        if path.partition(".")[0] in known:
            yield module, path
            holders.append(resolved(module, path))
    words = {*code.co_names, *constants(code)} - GIVEN_BY_PYTHON
    kinds: set[type] = {one if issubclass(type(one), type) else type(one) for one in holders}
    for kind in kinds:
        for base in kind.__mro__ if takes_part(kind.__module__) else ():
            yield from ((kind.__module__, f"{kind.__qualname__}.{name}") for name in words & vars(base).keys())


def ran(value: Any, codes: Mapping[types.CodeType, str]) -> bool:
    """Whether the code of a function, or of one that it wraps, ran."""
    of_layers = (getattr(layer, name, None) for layer in layers(value) for name in ("__code__", "_original_code"))
    return any(code in codes for code in of_layers)


def resolved(module: str, path: str) -> Any:
    """What a name stands for, or nothing if it cannot be looked at."""
    try:
        return resolve(module, path)
    except Exception:
        return MISSING


def _counts_by_name(module: str, value: Any, codes: Mapping[types.CodeType, str]) -> bool:
    """Whether a name stands for a function. A script may define another one of that name, which does not count."""
    return is_cached(value) or (isinstance(value, types.FunctionType) and (module != MAIN or ran(value, codes)))


def is_cached(value: Any) -> bool:
    """Whether a function keeps its answers, by ``functools.cache`` and the like. Objects may answer ``hasattr`` oddly."""
    return isinstance(value, _lru_cache_wrapper)


def cached_in(value: Any) -> list[Any]:
    """The function that keeps its answers: itself, or inside a method or property of a class."""
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    return [value] if is_cached(value) else []


def cached_of(kind: type, names: Set[str]) -> Iterator[Any]:
    """The functions of a class that keep their answers and have one of the names, or one that Python itself looks for."""
    for name, item in vars(kind).items():
        if name in names or name[:2] == "__":
            yield from cached_in(item)


def classes_of(module: str) -> Iterator[type]:
    """The classes that a module defines, those inside of others too."""
    waiting = list(vars(sys.modules[module]).values()) if module in sys.modules else []
    seen: set[type] = set()
    while waiting:
        kind = waiting.pop()
        if issubclass(type(kind), type) and kind.__module__ == module and kind not in seen:
            seen.add(kind)
            waiting += vars(kind).values()
            if resolve(module, kind.__qualname__) is kind:
                yield kind
