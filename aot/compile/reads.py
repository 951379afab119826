"""What the functions that run while a kernel is traced read beside its arguments.

A call of another library is served only if all of this is the same in the process that asks: see
``aot_runtime/serving/reads.py``, which evaluates what is recorded here. What cannot be compared is refused by name.
"""

from __future__ import annotations

import builtins
import enum
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import _lru_cache_wrapper, cache
from pathlib import Path
from typing import Any
from unittest import mock

from aot_runtime.serving.digests import UnstableError
from aot_runtime.serving.libraries import is_of_python, takes_part
from aot_runtime.serving.named import layers
from aot_runtime.serving.places import PLACE
from aot_runtime.serving.read_forms import ReadForms
from aot_runtime.serving.reads import ABSENT, environment_text, text_of
from aot_runtime.serving.resolving import LEVEL, MISSING, WHOLE, resolve
from aot_runtime.serving.sources import locate_source, source_digest

from ..declare.specs import CapturedSpec
from ..errors import BuildError
from .hardware_info import noted
from .memos import stale
from .names import constants, imported_by, names_read, reach
from .stateful import OF_LOGGERS, OF_SOURCES, has_state, stateful_names

__all__ = ["Reads", "traced"]

_MAIN = "__main__"
# Events of Python's own audit.
_LISTS_FILES = ("open", "os.listdir", "os.scandir", "sqlite3.connect", "subprocess.Popen", "os.system")
_OBJECTS = ("obj", "object", "func")  # what functions that read a source call it
_QUESTIONS = ("get_device_multiprocessor_count", "get_l2_cache_size_in_bytes")


def traced(spec: CapturedSpec, compile_: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
    """Compile a captured call, and record what tracing read. Both must be what they were when the call was made."""
    reads = Reads()
    with _main_of(spec):
        with _as_called(spec):
            if spec.state() != spec.made:
                raise BuildError(
                    "what it is called with has changed since the call",
                    hint="make new objects for each call in the exercise, rather than change those of an earlier one",
                )
            with reads.noted():
                function = compile_()
        record = reads.record([spec.function, *spec.args, *spec.kwargs.values()])
        _check_seen(spec, record)
    return function, record


@contextmanager
def _main_of(spec: CapturedSpec) -> Iterator[None]:
    """Within the context, ``__main__`` is that of the call: its globals are what a script's functions read."""
    now = sys.modules[_MAIN]
    sys.modules[_MAIN] = spec.main or now
    try:
        yield
    finally:
        sys.modules[_MAIN] = now


@contextmanager
def _as_called(spec: CapturedSpec) -> Iterator[None]:
    """Within the context, the object that is called has the attributes of the call. Tracing may change them, too."""
    own = getattr(spec.owner, "__dict__", None)
    if not isinstance(own, dict):
        yield
        return
    now = dict(own)
    _replace(own, spec.attributes)
    try:
        yield
    finally:
        _replace(own, now)


def _replace(own: dict[str, Any], attributes: Mapping[str, Any]) -> None:
    own.clear()
    own.update(attributes)


def _check_seen(spec: CapturedSpec, record: Mapping[str, Any]) -> None:
    """Every call that this code answers must have found the values that were read now, and the functions that ran."""
    for (module, path), found in spec.seen.items():
        if PLACE in path and found != {text_of(module, path)}:
            raise BuildError(
                f"{module}.{path.replace(PLACE, '.').strip('.')} is another function than when it was called",
                hint="capture what is called before a function is replaced by an exercise of its own",
            )
    for module, read in record["modules"].items():
        for path, text in read["values"].items():
            found = spec.seen.get((module, path), {text})
            if found != {text}:
                values = ", ".join(sorted({*found, text}))
                raise BuildError(
                    f"{module}.{path} has several values in the exercise: {values}",
                    hint="capture each setting by an exercise of its own, into a bundle of its own",
                )


class Reads:
    """Within :meth:`noted`, notes the functions that run, the variables that they ask for and what they ask a device."""

    def __init__(self) -> None:
        self._codes: dict[types.CodeType, str] = {}  # -> the module whose globals it runs with
        self._generated: set[types.CodeType] = set()  # of functions whose globals are no module's
        self._before: dict[tuple[str, str], str] = {}  # what names stood for when a function that reads them began
        self._environment: dict[str, str | None] = {}
        self._refused: list[str] = []
        self._device: dict[tuple[str, tuple[Any, ...]], Any] = {}
        self._asked: set[tuple[str, str]] = set()  # attributes of modules, classes and functions, by computed names
        self._written: set[str] = set()  # modules with functions whose source or signature was read

    @contextmanager
    def noted(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(noted(self._device))
            stack.enter_context(_environment_seen(self._note_variable))
            stack.enter_context(_files_seen(self._note_file))
            stack.enter_context(_attributes_seen(self._note_attribute))
            stack.enter_context(_calls_seen(self._note_call))
            yield

    def record(self, values: list[Any]) -> dict[str, Any]:
        """What was read; ``values`` are those that the kernel was compiled with, whose classes count too.

        :class:`BuildError` names something that was read and has no form that lasts.
        """
        self._add_cached()
        found: dict[tuple[str, str], str] = {}
        met = _held_by(values)
        self._refused += [*_not_found(met.modules), *sorted(set(stateful_names(self._codes)))]
        asked = {(module, path) for module, path in self._asked if not _is_of_c(_resolved(module, path))}
        waiting = {
            *self._all_paths(),
            *_absent(self._codes),
            *_flags(self._codes.values()),
            *asked,
            *_functions_and_classes(self._codes),
            *met.members(),
        }
        while waiting := {*waiting, *self._attributes(met), *self._all_paths()} - found.keys():
            for module, path in waiting:
                forms = ReadForms()  # as who looks the call up: a class that was met before has a shorter form
                try:
                    found[module, path] = _text(module, path, forms)
                    met.add(forms)
                except UnstableError as error:
                    self._refused.append(f"{module}.{path} is read while it is traced: {error}")
                    found[module, path] = ""
        self._refused += _changed(self._before, found)
        _check_refused(self._refused)
        device = [[name, list(arguments), answer] for (name, arguments), answer in sorted(self._device.items())]
        environment = dict(sorted(self._environment.items()))
        return {"modules": self._modules(found), "environment": environment, "device": device}

    def _modules(self, found: Mapping[tuple[str, str], str]) -> dict[str, Any]:
        ran = {*self._codes.values(), *self._written} - {_MAIN}  # what a script defines counts by its text
        return {
            module: {
                "source": source_digest(module) if module in ran else None,
                "values": {path: text for (of, path), text in sorted(found.items()) if of == module},
            }
            for module in sorted({*ran, *(module for module, _ in found)})
        }

    def _note_call(self, frame: types.FrameType) -> None:
        code, module = frame.f_code, str(frame.f_globals.get("__name__"))
        if _links(frame, module) and not _is_imported(frame):
            self._refused.append(f"the file `{frame.f_locals['path']}` is linked by code that runs while it is traced")
        if has_state(code, module):
            self._note_state(frame, module)
        if code in self._codes or not takes_part(module) or _is_imported(frame):
            return
        if module not in sys.modules:
            self._generated.add(code)
            return
        self._codes[code] = module  # also what `eval` and `exec` run
        self._asked.update(_put_into_others(frame))
        for read in _names_of(frame, module):  # tracing may change what they stand for
            self._before.setdefault(read, text_of(*read))

    def _note_state(self, frame: types.FrameType, module: str) -> None:
        """Refuse what a function of a library asks torch, or the parts of Python whose answers are not compared."""
        caller = str(frame.f_back.f_globals.get("__name__")) if frame.f_back is not None else ""
        if not takes_part(caller) or _is_imported(frame.f_back):
            return
        name = frame.f_code.co_name
        if name in OF_LOGGERS:
            named = getattr(frame.f_locals.get("self"), "name", None) or frame.f_locals.get("name") or "root"
            self._asked.add((module, f"{LEVEL}{named}"))
        elif name == "import_module":
            self._asked.add((_absolute(frame), WHOLE))
        elif name in OF_SOURCES:
            self._note_written(next((frame.f_locals[one] for one in _OBJECTS if one in frame.f_locals), None))
        else:
            asked = f"{module}.{name}"
            self._refused.append(f"{caller} calls {asked} while it is traced, whose answer may change")

    def _note_written(self, value: Any) -> None:
        """Count the source of a function or class as if it ran: somebody reads it, or its signature."""
        function = next((layer for layer in layers(value) if isinstance(layer, types.FunctionType)), value)
        module, name = str(getattr(function, "__module__", None)), str(getattr(function, "__qualname__", ""))
        if takes_part(module) and module != _MAIN and resolve(module, name) is not MISSING:
            of, _, last = name.rpartition(".")
            self._written.add(module)
            place = f"{name}{PLACE}__init__" if isinstance(value, type) else f"{of}{PLACE}{last}"
            self._asked.add((module, place))

    def _note_variable(self, name: str | None, value: str | None) -> None:
        module = _asking()
        if not takes_part(module):
            return
        if name is None:
            self._refused.append(f"{module} reads the environment as a whole while it is traced")
        else:
            self._environment.setdefault(name, environment_text(value))  # later reads may see what tracing wrote

    def _note_file(self, path: str) -> None:
        module = _asking()
        if takes_part(module) and not _is_imported(sys._getframe(2)):  # Python looks into folders for a module
            self._refused.append(f"{module} opens the file `{path}` while it is traced")

    def _note_attribute(self, holder: Any, name: str) -> None:
        module = holder.__name__ if isinstance(holder, types.ModuleType) else str(holder.__module__)
        path = name if isinstance(holder, types.ModuleType) else f"{holder.__qualname__}.{name}"
        if (takes_part(module) or module == "sys") and name not in _OF_PYTHON:
            self._asked.add((module, path))

    def _add_cached(self) -> None:
        """Functions behind ``functools.cache`` may have run before. What they could read is read off their code."""
        cached = [value for module, path in self._all_paths() if _is_cached(value := _resolved(module, path))]
        kinds = {kind for module in set(self._codes.values()) for kind in _classes(module)}
        cached += [item for kind in kinds for item in vars(kind).values() if _is_cached(item)]
        with self.noted() if cached else ExitStack():  # some are called again, and may ask for anything
            reasons = {reason for function in cached for reason in stale(function)}
        self._refused += sorted(reasons)
        self._add_reached(cached)

    def _add_reached(self, cached: list[Any]) -> None:
        functions = reach(
            [*cached, *(type(one.__wrapped__) for one in cached if hasattr(one, "__wrapped__"))]
        ).functions
        for function in functions:
            code, module = getattr(function, "_original_code", function.__code__), function.__globals__.get("__name__")
            if module in sys.modules:
                self._codes.setdefault(code, str(module))
            else:
                self._generated.add(code)
            asks = set(code.co_names) & {"environ", "getenv"}
            for name in constants(code) if asks else ():
                self._environment.setdefault(name, environment_text(os.environ.get(name)))
            if "HardwareInfo" in code.co_names:
                from cutlass.utils import HardwareInfo

                for question in _QUESTIONS:
                    self._device[question, ()] = getattr(HardwareInfo(), question)()

    def _all_paths(self) -> Iterator[tuple[str, str]]:
        for code in self._generated:
            yield from ((of, name) for of, name in imported_by(code, "") if takes_part(of))
        for code, module in list(self._codes.items()):
            known = vars(sys.modules[module]) if module in sys.modules else {}
            names = names_read(code)
            for path in names:
                if path.partition(".")[0] in known:
                    yield module, path
                    if isinstance(_resolved(module, path), classmethod):  # it gets the class that it is asked of
                        yield module, path.rpartition(".")[0]
            if "globals" in names and "globals" not in known:
                yield module, WHOLE
            taken = imported_by(code, str(known.get("__package__") or ""))
            yield from ((of, name) for of, name in taken if takes_part(of))

    def _attributes(self, met: _Met) -> Iterator[tuple[str, str]]:
        """What code that ran names of modules, classes and functions; plain methods say no more than their source."""
        self._add_reached([item for kind in met.classes for item in vars(kind).values() if _is_cached(item)])
        read = {name for code in (*self._codes, *self._generated) for name in (*code.co_names, *constants(code))}
        ran = {code.co_name for code in self._codes}
        for module in met.modules:
            yield from ((module.__name__, name) for name in (read & vars(module).keys()) - _OF_PYTHON)
        for function in met.functions:
            if resolve(function.__module__, function.__qualname__) is function:
                names = [name for name in read & (vars(function).keys() | _OF_FUNCTIONS) if name not in _OF_JIT]
                yield from ((function.__module__, f"{function.__qualname__}.{name}") for name in names)
        for kind in met.classes:
            if resolve(kind.__module__, kind.__qualname__) is kind:
                held = {name: item for base in reversed(kind.__mro__) for name, item in vars(base).items()}
                all_of_it = "__dict__" in read and not isinstance(kind, enum.EnumMeta)
                asked = {name for name in held if name[:2] != "__"} - {"_abc_impl"} if all_of_it else set()
                named = {name for name in asked | (read & held.keys()) if name not in _OF_PYTHON}
                names = [name for name in named | (ran & held.keys()) if not _is_bare(held[name])]
                placed = sorted(name for name in ran & held.keys() if _ran(held[name], self._codes))
                if placed and kind.__module__ != _MAIN:
                    yield kind.__module__, f"{kind.__qualname__}{PLACE}{','.join(placed)}"
                yield from ((kind.__module__, f"{kind.__qualname__}.{name}") for name in names)
                yield kind.__module__, kind.__qualname__


def _functions_and_classes(codes: Mapping[types.CodeType, str]) -> Iterator[tuple[str, str]]:
    """The functions that ran, for what they enclose and their defaults, and the classes of methods that ran."""
    ran: dict[str, set[str]] = {}
    for code, module in codes.items():
        ran.setdefault(module, set()).add(code.co_name)
    for module, names in ran.items():
        known = vars(sys.modules[module])
        yield from ((module, name) for name in names if _is_function(known.get(name)))
        placed = sorted(name for name in names if _ran(known.get(name), codes))
        if placed and module != _MAIN:  # what a script defines counts by its text
            yield module, f"{PLACE}{','.join(placed)}"
        yield from ((module, kind.__qualname__) for kind in _classes(module) if names & vars(kind).keys())


def _links(frame: types.FrameType, module: str) -> bool:
    """Whether code names a library of CuTe DSL's `cute.ffi`. One that a module names has a form: its content."""
    is_library = module == "cutlass.base_dsl.ffi" and frame.f_code.co_name == "__init__"
    return is_library and type(frame.f_locals.get("self")).__name__ == "BitCode"


def _put_into_others(frame: types.FrameType) -> Iterator[tuple[str, str]]:
    """The places of a method that a library put into a class of CuTe DSL, of Python or of another package."""
    code = frame.f_code
    first: Any = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
    kinds = (type(first), first) if issubclass(type(first), type) else (type(first),)
    for base in dict.fromkeys(base for kind in kinds for base in kind.__mro__):
        if not takes_part(base.__module__):
            names = (name for name, item in vars(base).items() if _ran(item, {code: ""}))
            yield from ((base.__module__, f"{base.__qualname__}{PLACE}{name}") for name in names)


def _held_by(values: list[Any]) -> _Met:
    """What the values lead to that a kernel is compiled with."""
    met = _Met()
    for value in values:
        forms = _HeldForms()
        with suppress(UnstableError):  # the key of the call has what the compiler is told of an argument
            forms.of(value, "")
        met.add(forms)
    return met


def _not_found(modules: Iterable[types.ModuleType]) -> list[str]:
    """A reason for each module that another process could not import."""
    loose = sorted(one.__name__ for one in modules if sys.modules.get(one.__name__) is not one)
    return [f"it holds the module `{name}`, which no import finds" for name in loose]


def _flags(modules: Iterable[str]) -> Iterator[tuple[str, str]]:
    """``python -O`` makes other code of a source that asks for ``__debug__``, and no name tells."""
    paths = map(locate_source, {*modules} - {_MAIN})
    if any(b"__debug__" in Path(path).read_bytes() for path in paths if path is not None and os.path.isfile(path)):
        yield "sys", "flags"


def _absent(codes: Mapping[types.CodeType, str]) -> Iterator[tuple[str, str]]:
    """The names that code reads and its module does not have, such as ``len``: a module may come to have them."""
    absent: dict[str, set[str]] = {}
    for code, module in codes.items():
        names = {path.partition(".")[0] for path in names_read(code)} - vars(sys.modules[module]).keys()
        absent.setdefault(module, set()).update(names)
    yield from ((module, ABSENT + ",".join(sorted(names))) for module, names in absent.items() if names)


def _names_of(frame: types.FrameType, module: str) -> Iterator[tuple[str, str]]:
    """The names that a function reads: of its module, and of the classes that these and its first argument lead to."""
    code, known = frame.f_code, vars(sys.modules[module])
    holders: list[Any] = [frame.f_locals.get(name) for name in code.co_varnames[: min(code.co_argcount, 1)]]  # `self`
    for path in names_read(code):
        if path.partition(".")[0] in known:
            yield module, path
            holders.append(_resolved(module, path))
    words = {*code.co_names, *constants(code)} - _OF_PYTHON
    kinds: set[type] = {one if issubclass(type(one), type) else type(one) for one in holders}
    for kind in kinds:
        for base in kind.__mro__ if takes_part(kind.__module__) else ():
            yield from ((kind.__module__, f"{kind.__qualname__}.{name}") for name in words & vars(base).keys())


def _ran(value: Any, codes: Mapping[types.CodeType, str]) -> bool:
    """Whether the code of a function, or of one that it wraps, ran."""
    of_layers = (getattr(layer, name, None) for layer in layers(value) for name in ("__code__", "_original_code"))
    return any(code in codes for code in of_layers)


def _changed(before: Mapping[tuple[str, str], str], found: Mapping[tuple[str, str], str]) -> Iterator[str]:
    """What tracing itself changed."""
    for (module, path), text in before.items():
        if (now := found.get((module, path), text)) not in (text, ""):
            yield f"{module}.{path} changes while it is traced: {text}, then {now}"


def _text(module: str, path: str, forms: ReadForms) -> str:
    if PLACE in path or path[:1] == ABSENT:
        return text_of(module, path)
    try:
        return forms.text(resolve(module, path), f"{module}.{path}")
    except UnstableError:
        raise
    except Exception as error:  # objects may answer as they like when they are looked at
        raise UnstableError(f"{type(error).__name__}: {error}") from None


def _resolved(module: str, path: str) -> Any:
    """What a name stands for, or nothing if it cannot be looked at."""
    try:
        return resolve(module, path)
    except Exception:
        return MISSING


def _check_refused(refused: list[str]) -> None:
    if refused:
        raise BuildError(
            f"what it reads cannot be compared when it is served: {refused[0]}",
            hint="let it read plain values, or pass them as arguments; `aot.kernel` declares a kernel without all this",
        )


_OF_PYTHON = frozenset({*dir(object), *dir(type), *dir(types.FunctionType), *dir(types.ModuleType), "__weakref__"})
_OF_FUNCTIONS = frozenset({"__annotations__", "__doc__"})  # what a library may change
# What CuTe DSL gives to functions that it decorates.
_OF_JIT = frozenset(
    {"_decorator_kind", "_decorator_location", "_dsl_cls", "_dsl_object", "_name_prefix", "_original_code"}
    | {"_preprocess_enabled", "_transformed_ast", "set_name_prefix", "__wrapped__"}
)


def _absolute(frame: types.FrameType) -> str:
    """The module that ``importlib.import_module`` is asked for."""
    name, package = frame.f_locals["name"], frame.f_locals.get("package")
    return importlib.util.resolve_name(name, package) if package else str(name)


class _HeldForms(ReadForms):
    """Forms of what a kernel is compiled with. Its key has the names of the modules in it: their values count apart."""

    def _module(self, module: types.ModuleType) -> Any:
        if takes_part(module.__name__):
            self.modules.add(module)
        return ["module", module.__name__]


class _Met:
    """What forms met that may hold attributes which code names."""

    def __init__(self) -> None:
        self.classes: set[type] = set()
        self.functions: set[types.FunctionType] = set()
        self.modules: set[types.ModuleType] = set()
        self._members: set[tuple[str, str]] = set()

    def add(self, forms: ReadForms) -> None:
        self.classes |= forms.classes
        self.functions.update(forms.functions)
        self.modules |= forms.modules
        self._members |= {(type(one).__module__, f"{type(one).__qualname__}.{one.name}") for one in forms.members}

    def members(self) -> set[tuple[str, str]]:
        """The members of enumerations, which a key knows by their names."""
        return self._members


def _is_bare(item: Any) -> bool:
    """Whether what a class holds says nothing beyond its source: a plain method, or what Python makes for a slot."""
    function = getattr(item, "__func__", item)
    layers = [function]
    while (function := getattr(function, "__wrapped__", None)) is not None:
        layers.append(function)
    functions = [layer for layer in layers if takes_part(str(getattr(layer, "__globals__", {}).get("__name__")))]
    if functions and all(isinstance(layer, types.FunctionType) for layer in layers):
        return len(functions) == 1 and not any(
            layer.__closure__ or layer.__defaults__ or layer.__kwdefaults__ for layer in functions
        )
    return _is_of_c(item)


def _is_of_c(item: Any) -> bool:
    """Whether something is what Python makes for a slot or for a field of a named tuple, which has no attributes."""
    of_library = takes_part(type(item).__module__)  # a descriptor with slots
    return hasattr(item, "__get__") and not (hasattr(item, "__dict__") or isinstance(item, property) or of_library)


def _is_function(value: Any) -> bool:
    return isinstance(value, types.FunctionType) or _is_cached(value)


def _is_cached(value: Any) -> bool:
    """Whether a function keeps its answers, by ``functools.cache`` and the like. Objects may answer ``hasattr`` oddly."""
    return isinstance(value, _lru_cache_wrapper)


def _classes(module: str) -> Iterator[type]:
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


_IMPORTING = frozenset({"_exec", "_find_and_load", "_load", "_load_unlocked"})  # functions of Python's


def _is_imported(frame: types.FrameType | None) -> bool:
    """Whether code runs because a module is being imported: what that leaves behind is compared, not how."""
    while frame is not None:
        if frame.f_code.co_name in _IMPORTING and frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _is_standard(module: str) -> bool:
    return module == __name__ or is_of_python(module)


def _asking() -> str:
    """The module that asks for a variable."""
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None and _is_standard(str(frame.f_globals.get("__name__"))):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")) if frame is not None else ""


@contextmanager
def _environment_seen(note: Callable[[str | None, str | None], None]) -> Iterator[None]:
    """Within the context, ``note`` hears of each variable that is read; without a name if all are listed."""
    kind: Any = type(os.environ)
    get, listed, counted = kind.__getitem__, kind.__iter__, kind.__len__

    def getitem(self: Any, name: Any) -> Any:
        try:
            value = get(self, name)
        except KeyError:
            note(os.fsdecode(name), None)
            raise
        note(os.fsdecode(name), os.fsdecode(value))  # `os.environb` has bytes
        return value

    def iterate(self: Any) -> Any:
        note(None, None)
        return listed(self)

    def count(self: Any) -> Any:
        note(None, None)
        return counted(self)

    with mock.patch.multiple(kind, __getitem__=getitem, __iter__=iterate, __len__=count):
        yield


@contextmanager
def _attributes_seen(note: Callable[[Any, str], None]) -> Iterator[None]:
    """Within the context, ``note`` hears of each attribute of a module, class or function that a library asks for by a text."""
    asking: list[Any] = []  # who notes asks for attributes, too

    def noted_names(holder: Any, names: Callable[[Any], list[str]]) -> None:
        if asking:
            return
        asking.append(holder)
        try:
            of = holder if isinstance(holder, _HOLDERS) else type(holder)
            if takes_part(str(sys._getframe(2).f_globals.get("__name__"))):
                for name in names(of):
                    note(of, name)
        finally:
            asking.pop()

    def getattr_noted(holder: Any, name: str, *default: Any, ask: Any = getattr) -> Any:
        noted_names(holder, lambda of: [name])
        return ask(holder, name, *default)

    def hasattr_noted(holder: Any, name: str, ask: Any = hasattr) -> Any:
        noted_names(holder, lambda of: [name])
        return ask(holder, name)

    def vars_noted(*holder: Any, ask: Any = vars) -> Any:
        if not holder:
            return sys._getframe(1).f_locals
        noted_names(holder[0], lambda of: list(ask(of)))
        return ask(*holder)

    def dir_noted(*holder: Any, ask: Any = dir) -> Any:
        if not holder:
            return sorted(sys._getframe(1).f_locals)
        noted_names(holder[0], ask)
        return ask(*holder)

    replaced: dict[str, Any] = {
        "getattr": getattr_noted,
        "hasattr": hasattr_noted,
        "vars": vars_noted,
        "dir": dir_noted,
    }
    with ExitStack() as stack:
        for name, function in replaced.items():
            stack.enter_context(mock.patch.object(builtins, name, function))
        yield


_HOLDERS = (types.ModuleType, type, types.FunctionType)


_listeners: list[Callable[[str], None]] = []  # of files that are opened


@cache
def _listen() -> None:
    """An audit hook stays for the life of a process."""

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _LISTS_FILES and _listeners and isinstance(arguments[0], (str, bytes)):
            _listeners[-1](os.fsdecode(arguments[0]))

    sys.addaudithook(audit)


@contextmanager
def _files_seen(note: Callable[[str], None]) -> Iterator[None]:
    """Within the context, ``note`` hears of each file that is opened."""
    _listen()
    _listeners.append(note)
    try:
        yield
    finally:
        _listeners.pop()


@contextmanager
def _calls_seen(note: Callable[[types.FrameType], None]) -> Iterator[None]:
    """Within the context, ``note`` gets the frame of each function of Python as it begins, at least once per code."""
    if sys.version_info >= (3, 12):
        with _monitored(note):
            yield
        return
    before = sys.gettrace()

    def begins(frame: types.FrameType, event: str, argument: Any) -> None:
        note(frame)

    sys.settrace(begins)
    try:
        yield
    finally:
        sys.settrace(before)


@contextmanager
def _monitored(note: Callable[[types.FrameType], None]) -> Iterator[None]:
    """As above, at the cost of one call for each code."""
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
    tool = next(number for number in range(6) if monitoring.get_tool(number) is None)

    def begins(code: types.CodeType, offset: int) -> Any:
        frame = sys._getframe(1)
        note(frame)
        # Of functions with state each call counts: who calls decides.
        return None if has_state(code, str(frame.f_globals.get("__name__"))) else monitoring.DISABLE

    monitoring.use_tool_id(tool, "aot")
    monitoring.register_callback(tool, monitoring.events.PY_START, begins)
    monitoring.set_events(tool, monitoring.events.PY_START)
    monitoring.restart_events()
    try:
        yield
    finally:
        monitoring.set_events(tool, 0)
        monitoring.register_callback(tool, monitoring.events.PY_START, None)
        monitoring.free_tool_id(tool)
