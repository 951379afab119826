"""What the functions that run while a kernel is traced read beside its arguments.

A call of another library is served only if all of this is the same in the process that asks: see
``aot_runtime/serving/reading/reads.py``, which evaluates what is recorded here. What cannot be compared is refused by name.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from aot_runtime.serving.reading.places import PLACE
from aot_runtime.serving.reading.read_forms import ReadForms
from aot_runtime.serving.reading.reads import ABSENT, environment_text, text_of
from aot_runtime.serving.reading.resolving import DEFAULT_DTYPE, FOUND, LEVEL, MISSING, VERSION, WHOLE, resolve
from aot_runtime.serving.values.digests import UnstableError
from aot_runtime.serving.values.libraries import MAIN, module_of, module_of_frame, takes_part
from aot_runtime.serving.values.named import layers
from aot_runtime.serving.values.sources import locate_source, original_code, source_digest

from ...errors import BuildError
from ..device.hardware_info import noted
from ..messages import WORKER_VARIABLES
from .memos import stale
from .met import Met, held_by, is_of_c
from .names import asks_for_variables, codes_in, constants, names_in_hints, reach
from .paths import (
    GIVEN_BY_PYTHON,
    Read,
    absent,
    cached_in,
    cached_of,
    classes_of,
    counts_in,
    flags,
    functions_and_classes,
    names_imported_by,
    names_read_by,
    names_read_in,
    put_into_others,
    put_into_preprocessor,
    resolved,
)
from .stateful import (
    OF_LOGGERS,
    OF_SOURCES,
    asks_default_dtype,
    has_state,
    makes_tensor,
    stateful_function,
    stateful_names,
)
from .watching import (
    asking,
    attributes_seen,
    calls_seen,
    environment_seen,
    files_seen,
    is_edited,
    is_imported,
    is_shown,
)

__all__ = ["Reads"]

_OBJECTS = ("obj", "object", "func")  # what functions that read a source call it
_PARTS_OF_SPECS = frozenset(
    {"origin", "submodule_search_locations", "loader", "cached"}
)  # what a look-up does not compare
_QUESTIONS = ("get_device_multiprocessor_count", "get_l2_cache_size_in_bytes")


class Reads:
    """Within :meth:`noted`, notes the functions that run, the variables that they ask for and what they ask a device."""

    def __init__(self) -> None:
        self._codes: dict[types.CodeType, str] = {}  # -> the module whose globals it runs with
        self._generated: set[types.CodeType] = set()  # of functions whose globals are no module's
        self._before: dict[Read, str] = {}  # what names stood for when a function that reads them began
        self._environment: dict[str, str | None] = {}
        self._refused: list[str] = []
        self._device: dict[tuple[str, tuple[Any, ...]], Any] = {}
        self._asked: set[Read] = set()  # attributes of modules, classes and functions, by computed names
        self._written: set[str] = set()  # modules with functions whose source or signature was read

    @contextmanager
    def noted(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(noted(self._device))
            # A process that is served has none of what a worker is told, and libraries then ask for the device.
            stack.enter_context(environment_seen(self._note_variable, WORKER_VARIABLES))
            stack.enter_context(files_seen(self._note_file))
            stack.enter_context(attributes_seen(self._note_attribute))
            stack.enter_context(calls_seen(self._note_call, self._note_call_of_c))
            yield

    def record(self, values: list[Any]) -> dict[str, Any]:
        """What was read; ``values`` are those that the kernel was compiled with, whose classes count too.

        :class:`BuildError` names something that was read and has no form that lasts.
        """
        self._add_cached()
        preprocessing = put_into_preprocessor()
        self._asked.update(preprocessing)
        self._add_reached(list(preprocessing.values()))
        met = held_by(values)
        self._refused += [*_not_found(met.modules), *sorted(set(stateful_names(self._codes)))]
        found = self._compared(met)
        self._refused += [*_changed(self._before, found), *_without_source(self._ran())]
        self._refused += _not_compared(self._device)
        _check_refused(self._refused)
        device = [[name, list(arguments), answer] for (name, arguments), answer in sorted(self._device.items())]
        environment = dict(sorted(self._environment.items()))
        return {"modules": _by_module(found, self._ran()), "environment": environment, "device": device}

    def _compared(self, met: Met) -> dict[Read, str]:
        """All that may have been read, each with its text. What forms meet on the way may be read, too."""
        found: dict[Read, str] = {}
        waiting = {
            *self._names(),
            *absent(self._codes),
            *flags(self._codes.values()),
            *(read for read in self._asked if not is_of_c(resolved(*read))),
            *functions_and_classes(self._codes),
            *met.members(),
        }
        while waiting := {*waiting, *self._attributes(met), *self._names()} - found.keys():
            for module, path in waiting:
                forms = ReadForms()  # as who looks the call up: a class that was met before has a shorter form
                try:
                    found[module, path] = _text(module, path, forms)
                    met.add(forms)
                except UnstableError as error:
                    self._refused.append(f"{module}.{path} is read while it is traced: {error}")
                    found[module, path] = ""
        return found

    def _names(self) -> Iterator[Read]:
        for code in self._generated:
            yield from names_imported_by(code, "")
        yield from names_read_by(self._codes)

    def _attributes(self, met: Met) -> Iterator[Read]:
        """What code that ran names of the modules, classes and functions that were met."""
        self._add_reached(met.cached(self._words()))
        return met.attributes(self._words(), self._codes)

    def _ran(self) -> set[str]:
        """The modules with functions that ran. What a script defines counts by its text."""
        return {*self._codes.values(), *self._written} - {MAIN}

    def _note_call(self, frame: types.FrameType) -> None:
        code, module = frame.f_code, module_of_frame(frame)
        if _links(frame, module) and not is_imported(frame):
            self._refused.append(f"the file `{frame.f_locals['path']}` is linked by code that runs while it is traced")
        if has_state(code, module):
            self._note_state(frame, module)
        if code in self._codes or not takes_part(module) or is_imported(frame):
            return
        if asks_default_dtype(code):
            self._asked.add(("torch", DEFAULT_DTYPE))
        if module not in sys.modules:
            self._generated.add(code)
            return
        self._codes[code] = module  # also what `eval` and `exec` run
        self._asked.update(put_into_others(frame))
        for read in names_read_in(frame, module):  # tracing may change what they stand for
            self._before.setdefault(read, text_of(*read))

    def _note_state(self, frame: types.FrameType, module: str) -> None:
        """Refuse what a function of a library asks torch, or the parts of Python whose answers are not compared."""
        caller = module_of_frame(frame.f_back) if frame.f_back is not None else ""
        if not takes_part(caller) or is_imported(frame.f_back):
            return
        name = frame.f_code.co_name
        if name in OF_LOGGERS:
            named = getattr(frame.f_locals.get("self"), "name", None) or frame.f_locals.get("name") or "root"
            self._asked.add((module, f"{LEVEL}{named}"))
        elif name == "import_module":
            self._asked.add((_asked_for(frame), WHOLE))
        elif name == "find_spec" and _PARTS_OF_SPECS.isdisjoint(_names_of(frame.f_back)):
            self._asked.add((module, f"{FOUND}{_asked_for(frame)}"))
        elif name == "version" and "distribution_name" in frame.f_locals:  # not that of a distribution
            self._asked.add((module, f"{VERSION}{frame.f_locals['distribution_name']}"))
        elif name in OF_SOURCES:
            self._note_written(next((frame.f_locals[one] for one in _OBJECTS if one in frame.f_locals), None))
        else:
            self._refuse_call(caller, f"{module}.{name}")

    def _note_call_of_c(self, frame: types.FrameType, called: Any) -> None:
        """Refuse what a library asks a function of C that answers by more than its arguments, however it came by it."""
        if makes_tensor(called) and takes_part(module_of_frame(frame)):
            self._asked.add(("torch", DEFAULT_DTYPE))
        asked = stateful_function(called)
        if asked and not is_imported(frame):
            self._refuse_call(module_of_frame(frame), asked)

    def _refuse_call(self, caller: str, asked: str) -> None:
        self._refused.append(f"{caller} calls {asked} while it is traced, whose answer may change")

    def _note_written(self, value: Any) -> None:
        """Count the source of a function or class as if it ran: somebody reads it, or its signature."""
        function = next((layer for layer in layers(value) if isinstance(layer, types.FunctionType)), value)
        module, name = str(getattr(function, "__module__", None)), str(getattr(function, "__qualname__", ""))
        if takes_part(module) and module != MAIN and resolve(module, name) is not MISSING:
            of, _, last = name.rpartition(".")
            self._written.add(module)
            place = f"{name}{PLACE}__init__" if isinstance(value, type) else f"{of}{PLACE}{last}"
            self._asked |= {(module, place), (module, f"{name}.__signature__"), *_named_by_hints(value, function)}

    def _note_variable(self, frame: types.FrameType, name: str | None, value: str | None) -> None:
        module = asking(frame)
        if not takes_part(module):
            return
        if name is None:
            self._refused.append(f"{module} reads the environment as a whole while it is traced")
        else:
            self._environment.setdefault(name, environment_text(value))  # later reads may see what tracing wrote

    def _note_file(self, frame: types.FrameType, path: str) -> None:
        module = asking(frame)
        # Python looks into folders for a module, and shows the line of a warning.
        if takes_part(module) and not is_imported(frame) and not is_shown(frame):
            self._refused.append(f"{module} opens the file `{path}` while it is traced")

    def _note_attribute(self, holder: Any, name: str) -> None:
        module = holder.__name__ if isinstance(holder, types.ModuleType) else str(holder.__module__)
        path = name if isinstance(holder, types.ModuleType) else f"{holder.__qualname__}.{name}"
        counts = takes_part(module) or (isinstance(holder, types.ModuleType) and counts_in(holder, name))
        if counts and name not in GIVEN_BY_PYTHON:
            self._asked.add((module, path))

    def _add_cached(self) -> None:
        """Functions behind ``functools.cache`` may have run before. What they could read is read off their code."""
        added: dict[int, Any] = {}
        while found := {
            id(one): one for one in _cached(self._names(), self._codes.values(), self._words()) if id(one) not in added
        }:
            added |= found
            with self.noted():  # some are called again, and may ask for anything
                self._refused += sorted({reason for function in found.values() for reason in stale(function)})
            self._add_reached(list(found.values()))

    def _words(self) -> set[str]:
        """What code that ran names, or has as a text."""
        return {name for code in (*self._codes, *self._generated) for name in (*code.co_names, *constants(code))}

    def _add_reached(self, before: list[Any]) -> None:
        """Count functions that may have run before, for another kernel, and all that they lead to as if they ran."""
        wrapped = [one.__wrapped__ for one in before if hasattr(one, "__wrapped__")]
        for function in reach([*before, *map(type, wrapped)]).functions:
            for code in codes_in(original_code(function)):
                self._add_code(code, module_of(function))

    def _add_code(self, code: types.CodeType, module: str) -> None:
        if module in sys.modules:
            self._codes.setdefault(code, module)
        else:
            self._generated.add(code)
        for name in constants(code) if asks_for_variables(code) else ():
            value = os.environ.get(name) if name not in WORKER_VARIABLES else None
            self._environment.setdefault(name, environment_text(value))
        if "HardwareInfo" in code.co_names:
            self._ask_device()

    def _ask_device(self) -> None:
        from cutlass.utils import HardwareInfo

        for question in _QUESTIONS:
            self._device[question, ()] = getattr(HardwareInfo(), question)()


def _cached(read: Iterable[Read], modules: Iterable[str], words: set[str]) -> Iterator[Any]:
    """The functions that keep their answers and that code which ran names.

    A class may keep what it compiles in a function that no such code names.
    """
    for one in {*read}:
        yield from cached_in(resolved(*one))
    for kind in {kind for module in {*modules} for kind in classes_of(module)}:
        yield from cached_of(kind, words)


def _named_by_hints(value: Any, function: Any) -> Iterator[Read]:
    """What the annotations name of a function, or of a class with its bases."""
    for one in value.__mro__ if isinstance(value, type) else [function]:
        if takes_part(one.__module__):
            yield from names_in_hints(one)


def _links(frame: types.FrameType, module: str) -> bool:
    """Whether code names a library of CuTe DSL's `cute.ffi`. One that a module names has a form: its content."""
    is_library = module == "cutlass.base_dsl.ffi" and frame.f_code.co_name == "__init__"
    return is_library and type(frame.f_locals.get("self")).__name__ == "BitCode"


def _names_of(frame: types.FrameType | None) -> tuple[str, ...]:
    return frame.f_code.co_names if frame is not None else ()


def _asked_for(frame: types.FrameType) -> str:
    """The module that ``importlib.import_module`` or ``find_spec`` is asked for."""
    name, package = frame.f_locals["name"], frame.f_locals.get("package")
    return importlib.util.resolve_name(name, package) if package else str(name)


def _not_found(modules: Iterable[types.ModuleType]) -> list[str]:
    """A reason for each module that another process could not import."""
    loose = sorted(one.__name__ for one in modules if sys.modules.get(one.__name__) is not one)
    return [f"it holds the module `{name}`, which no import finds" for name in loose]


def _by_module(found: Mapping[Read, str], ran: set[str]) -> dict[str, Any]:
    return {
        module: {
            "source": source_digest(module) if module in ran else None,
            "values": {path: text for (of, path), text in sorted(found.items()) if of == module},
        }
        for module in sorted({*ran, *(module for module, _ in found)})
    }


def _without_source(modules: Iterable[str]) -> Iterator[str]:
    for module in sorted(modules):
        path = locate_source(module)
        if path is None or source_digest(module) is None:
            yield f"functions of {module} run while it is traced, which has no file with its source"
        elif is_edited(path):
            yield f"the source of {module} was edited after it was imported"


def _text(module: str, path: str, forms: ReadForms) -> str:
    if PLACE in path or path[:1] == ABSENT:
        return text_of(module, path)
    try:
        return forms.text(resolve(module, path), module, path)
    except UnstableError:
        raise
    except Exception as error:  # objects may answer as they like when they are looked at
        raise UnstableError(f"{type(error).__name__}: {error}") from None


def _not_compared(device: Mapping[tuple[str, tuple[Any, ...]], Any]) -> list[str]:
    asked = sorted(given[0] if given else question for (question, given), told in device.items() if told is None)
    return [f"it asks the device for {question}, which no look-up compares" for question in asked]


def _changed(before: Mapping[Read, str], found: Mapping[Read, str]) -> Iterator[str]:
    """What tracing itself changed."""
    for (module, path), text in before.items():
        if (now := found.get((module, path), text)) not in (text, ""):
            yield f"{module}.{path} changes while it is traced: {text}, then {now}"


def _check_refused(refused: list[str]) -> None:
    if refused:
        raise BuildError(
            f"what it reads cannot be compared when it is served: {refused[0]}",
            hint="let it read plain values, or pass them as arguments; `aot.kernel` declares a kernel without all this",
        )
