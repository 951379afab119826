"""Hearing of what code does while it runs: functions that begin, and what they ask for that is no argument."""

from __future__ import annotations

import builtins
import importlib.machinery
import os
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any
from unittest import mock

from aot_runtime.serving.values.libraries import is_of_python, module_of_frame, takes_part

from .stateful import has_state

__all__ = [
    "asking", "attributes_seen", "calls_seen", "environment_seen", "files_seen", "is_edited", "is_imported", "is_shown",
    "loads_seen",
]  # fmt: skip

# Events of Python's own audit.
_OPENS_FILES = ("open", "os.listdir", "os.scandir", "sqlite3.connect", "subprocess.Popen", "os.system")
NoteFrame = Callable[[types.FrameType], None]
NoteCall = Callable[[types.FrameType, Any], None]
_HOLDERS = (types.ModuleType, type, types.FunctionType)
_listeners: list[Callable[[types.FrameType, str], None]] = []  # of files that are opened
_loaded: dict[str, tuple[float, int]] = {}  # when a source was written, and its size, by path
_IMPORTING = frozenset({"_exec", "_find_and_load", "_load", "_load_unlocked"})  # functions of Python's
_LOOKING = frozenset({("importlib.metadata", "version"), ("importlib.util", "find_spec")})  # their answers are compared


@cache
def loads_seen() -> None:
    """From now on, for the life of a process, note how each source was when it was loaded."""
    kind: Any = importlib.machinery.SourceFileLoader
    ask = kind.path_stats

    def path_stats(self: Any, path: Any) -> Any:
        found = ask(self, path)
        _loaded[os.fspath(path)] = found["mtime"], found["size"]
        return found

    kind.path_stats = path_stats


def is_edited(path: str) -> bool:
    """Whether a source is another one than it was when it was loaded: what runs is not what it says."""
    try:
        found = os.stat(path)
        return _loaded.get(path) not in (None, (found.st_mtime, found.st_size))
    except OSError:
        return path in _loaded


def is_imported(frame: types.FrameType | None) -> bool:
    """Whether code runs because a module is being imported or looked for: what comes of that is compared, not how."""
    while frame is not None:
        if frame.f_code.co_name in _IMPORTING and frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        if (module_of_frame(frame), frame.f_code.co_name) in _LOOKING:
            return True
        frame = frame.f_back
    return False


def is_shown(frame: types.FrameType | None) -> bool:
    """Whether Python's own code runs because a warning is shown: nobody who gave it gets an answer."""
    while frame is not None and ((module := module_of_frame(frame)) == __name__ or is_of_python(module)):
        if module == "warnings":
            return True
        frame = frame.f_back
    return False


def asking(frame: types.FrameType | None) -> str:
    """The module that asks for a variable or a file, maybe through Python's own modules or those that listen here."""
    while frame is not None and ((module := module_of_frame(frame)) == __name__ or is_of_python(module)):
        frame = frame.f_back
    return module_of_frame(frame) if frame is not None else ""


@contextmanager
def environment_seen(
    note: Callable[[types.FrameType, str | None, str | None], None], hidden: Set[str] = frozenset()
) -> Iterator[None]:
    """Within the context, ``note`` hears of each variable that is read; without a name if all are listed.

    Libraries do not find those that are ``hidden``.
    """
    kind: Any = type(os.environ)
    get, listed, counted = kind.__getitem__, kind.__iter__, kind.__len__

    def getitem(self: Any, name: Any) -> Any:
        try:
            value = get(self, name)
        except KeyError:
            note(sys._getframe(1), os.fsdecode(name), None)
            raise
        if os.fsdecode(name) in hidden and takes_part(asking(sys._getframe(1))):
            note(sys._getframe(1), os.fsdecode(name), None)
            raise KeyError(name)
        note(sys._getframe(1), os.fsdecode(name), os.fsdecode(value))  # `os.environb` has bytes
        return value

    def iterate(self: Any) -> Any:
        note(sys._getframe(1), None, None)
        is_library = bool(hidden) and takes_part(asking(sys._getframe(1)))
        return (name for name in listed(self) if not (is_library and name in hidden))

    def count(self: Any) -> Any:
        note(sys._getframe(1), None, None)
        return counted(self)

    with mock.patch.multiple(kind, __getitem__=getitem, __iter__=iterate, __len__=count):
        yield


def _asked_by(holder: Any) -> Iterable[Any]:
    """The modules, classes and functions that may answer for an attribute of something."""
    if isinstance(holder, super):
        asked: Any = holder
        kinds: tuple[type, ...] = asked.__self_class__.__mro__
        return kinds[kinds.index(asked.__thisclass__) + 1 :]
    return [holder if isinstance(holder, _HOLDERS) else type(holder)]


@contextmanager
def attributes_seen(note: Callable[[Any, str], None]) -> Iterator[None]:
    """Within the context, ``note`` hears of each attribute of a module, class or function that a library asks for by a text."""
    noting: list[Any] = []  # who notes asks for attributes, too

    def noted_names(holder: Any, names: Callable[[Any], list[str]]) -> None:
        if noting:
            return
        noting.append(holder)
        try:
            frame = sys._getframe(2)
            if takes_part(module_of_frame(frame)) and not is_imported(frame):
                for of in _asked_by(holder):
                    for name in names(of):
                        note(of, name)
        finally:
            noting.pop()

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


@cache
def _listen() -> None:
    """An audit hook stays for the life of a process."""

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _OPENS_FILES and _listeners and isinstance(arguments[0], (str, bytes)):
            _listeners[-1](sys._getframe(1), os.fsdecode(arguments[0]))

    sys.addaudithook(audit)


@contextmanager
def files_seen(note: Callable[[types.FrameType, str], None]) -> Iterator[None]:
    """Within the context, ``note`` hears of each file that is opened."""
    _listen()
    _listeners.append(note)
    try:
        yield
    finally:
        _listeners.pop()


@contextmanager
def calls_seen(note: NoteFrame, note_c: NoteCall) -> Iterator[None]:
    """Within the context, ``note`` gets the frame of each function of Python as it begins, at least once per code.

    ``note_c`` gets what else code of libraries calls, such as a function of C, with the frame that calls it.
    """
    if sys.version_info >= (3, 12):
        with _monitored(note, note_c):
            yield
        return
    before, of_threads = sys.getprofile(), threading.getprofile()

    def heard(frame: types.FrameType, event: str, argument: Any) -> None:
        if event == "call":
            note(frame)
        elif event == "c_call" and takes_part(module_of_frame(frame)):
            note_c(frame, argument)

    sys.setprofile(heard)
    threading.setprofile(heard)  # of those that are started now
    try:
        yield
    finally:
        sys.setprofile(before)
        threading.setprofile(of_threads)


@contextmanager
def _monitored(note: NoteFrame, note_c: NoteCall) -> Iterator[None]:
    """As above. Code that is not a library's costs one call for each place in it."""
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
    tool = next(number for number in range(6) if monitoring.get_tool(number) is None)

    def begins(code: types.CodeType, offset: int) -> Any:
        frame = sys._getframe(1)
        note(frame)
        # Of functions with state each call counts: who calls decides.
        return None if has_state(code, module_of_frame(frame)) else monitoring.DISABLE

    def calls(code: types.CodeType, offset: int, called: Any, first: Any) -> Any:
        frame = sys._getframe(1)
        if not takes_part(module_of_frame(frame)):
            return monitoring.DISABLE
        note_c(frame, called)

    events = {monitoring.events.PY_START: begins, monitoring.events.CALL: calls}
    monitoring.use_tool_id(tool, "aot")
    for event, callback in events.items():
        monitoring.register_callback(tool, event, callback)
    monitoring.set_events(tool, sum(events))
    monitoring.restart_events()
    try:
        yield
    finally:
        monitoring.set_events(tool, 0)
        for event in events:
            monitoring.register_callback(tool, event, None)
        monitoring.free_tool_id(tool)
