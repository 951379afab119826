"""Functions whose answers may differ from one process, machine or moment to the next.

What such a function answers while a kernel is traced cannot be compared when the kernel is served.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

from aot_runtime.serving.libraries import takes_part

from .names import names_read

__all__ = ["OF_LOGGERS", "OF_SOURCES", "has_state", "stateful_names"]

# Modules of Python whose functions answer differently from one process, machine or moment to the next.
_STATEFUL = frozenset(
    {"datetime", "decimal", "gc", "getpass", "grp", "locale", "multiprocessing", "multiprocessing.context"}
    | {
        "multiprocessing.process",
        "platform",
        "pwd",
        "random",
        "resource",
        "secrets",
        "socket",
        "sysconfig",
        "tempfile",
        "time",
        "uuid",
    }
)
_NOW = frozenset({"now", "today", "utcnow"})  # of the classes of `datetime`
_LOOKS_AT_FILES = frozenset(
    {"exists", "isfile", "isdir", "getmtime", "getsize", "is_file", "is_dir", "stat", "iterdir", "lstat", "samefile"}
    | {"islink", "is_symlink", "lexists", "ismount", "is_mount", "readlink"}
    | {"abspath", "absolute", "cwd", "realpath", "relpath", "resolve"}  # by the present folder
)
_FILES = frozenset({"genericpath", "posixpath", "pathlib", "pathlib._local", "pathlib._abc", "glob"})
# What of `os` may be asked for: the rest tells something of the machine, the process or files.
_OF_OS = frozenset(
    {"environ", "getenv", "path", "fspath", "fsencode", "fsdecode", "PathLike", "sep", "pathsep", "linesep", "makedirs"}
)
# What of `sys` may be called: the rest tells something of the process, or leads to other frames.
_OF_SYS = frozenset({"audit", "exc_info", "exception", "exit", "getsizeof", "intern"})
_OF_STREAMS = frozenset({"encoding", "isatty"})  # of `sys.stdout`
_OF_THREADS = frozenset({"active_count", "current_thread", "enumerate", "get_ident", "get_native_id", "main_thread"})
_OF_NUMPY = frozenset({"get_printoptions", "getbufsize", "geterr", "geterrcall"})
_OF_MODULES = {
    "contextvars": frozenset({"copy_context"}),
    "ctypes": frozenset({"cdll", "pydll", "pythonapi"}),
    "faulthandler": frozenset({"is_enabled"}),
    "numpy": _OF_NUMPY,
    "signal": frozenset({"getitimer", "getsignal"}),
    "threading": _OF_THREADS,
}
_UNSEEN = frozenset({"__subclasses__", "__getattribute__", "__code__", "attrgetter"})  # they lead to what no name tells
# Code of C reads anything, so these lead to what is not compared.
_OF_CTYPES = frozenset({"__init__", "LoadLibrary", "find_library", "string_at", "wstring_at"})
OF_LOGGERS = frozenset({"getEffectiveLevel", "getLogger", "isEnabledFor"})
_OF_IMPORTS = frozenset({"import_module", "find_spec"})
_OF_INSPECT = frozenset({"currentframe", "getattr_static", "getmembers", "getmodule", "stack"})
# They read how an object is written.
OF_SOURCES = frozenset(
    {"get_annotations", "get_type_hints", "getfullargspec", "getsource", "getsourcelines", "signature"}
)


def has_state(code: types.CodeType, module: str) -> bool:
    """Whether a function of Python's own modules, or of torch, answers by more than its arguments."""
    if module in _FILES:
        return code.co_name in _LOOKS_AT_FILES
    if module in _NAMED:
        return code.co_name in _NAMED[module]
    return module in _STATEFUL or (module.partition(".")[0] == "torch" and not takes_part(module))


_NAMED = {
    "logging": OF_LOGGERS,
    "ctypes": _OF_CTYPES,
    "ctypes.util": _OF_CTYPES,
    "linecache": frozenset({"getline", "getlines"}),
    "importlib": _OF_IMPORTS,
    "importlib.util": _OF_IMPORTS,
    "inspect": _OF_INSPECT | OF_SOURCES,
    "typing": OF_SOURCES,
    "threading": _OF_THREADS,
    "shutil": frozenset({"which", "disk_usage"}),
}


def stateful_names(codes: Mapping[types.CodeType, str]) -> Iterator[str]:
    """The functions of C that code names and whose answers may change: these have no frames."""
    for code, module in codes.items():
        known = vars(sys.modules[module]) if module in sys.modules else {}
        for path in names_read(code):
            value = known.get(path.partition(".")[0])
            try:
                of = getattr(value, "__name__" if isinstance(value, types.ModuleType) else "__module__", None)
            except Exception:  # an object may answer as it likes; its form is asked for apart
                continue
            of = of.lstrip("_") if isinstance(of, str) and isinstance(value, types.BuiltinFunctionType) else of
            asks = of in _STATEFUL and ("." in path or callable(value))
            if isinstance(value, type) and of != "decimal":  # whose numbers are rounded as a setting says
                asks = of == "datetime" and path.rpartition(".")[2] in _NOW
            if asks or _asks_torch(of, path) or _asks_machine(value, path) or _leads_anywhere(value, path):
                yield f"{module} reads {path} while it is traced, which may change"
        for name in _UNSEEN & {*code.co_names}:
            yield f"{module} reads {name} while it is traced, which may change"


def _asks_machine(value: Any, path: str) -> bool:
    """Whether a name is a function of ``os`` that tells something of the machine or the process."""
    if isinstance(value, types.ModuleType) and value.__name__ in ("os", "posix"):
        name = path.partition(".")[2].partition(".")[0]
        if (
            (value.__name__ == "posix" and name == "environ")
            or path.endswith(".environ._data")
            or ".environ._data." in path
        ):
            return True  # the variables beside the object that tells who asks for them
        return bool(name) and name not in _OF_OS and callable(getattr(value, name, None))
    if isinstance(value, types.ModuleType):  # which may answer for any name, or raise anything
        return _asks_process(value, path.split(".")[1:])
    of = getattr(value, "__module__", None)
    if of == "sys":
        return callable(value) and value.__name__ not in _OF_SYS
    if of in ("_thread", "_contextvars"):
        return getattr(value, "__name__", "") in _OF_MODULES["threading" if of == "_thread" else "contextvars"]
    if type(value).__module__ == "ctypes":
        return type(value).__name__.endswith("DLL")  # a library of C
    return of == "posix" and isinstance(value, types.BuiltinFunctionType)


def _asks_process(module: types.ModuleType, names: list[str]) -> bool:
    """Whether a name in a module is a function that tells something of the process, or a setting of numpy's."""
    if module.__name__ in _OF_MODULES:
        return not _OF_MODULES[module.__name__].isdisjoint(names[:1])
    if module is not sys or not names:
        return False
    if names[0] in ("stdin", "stdout", "stderr"):
        return not _OF_STREAMS.isdisjoint(names[1:])
    return names[0] not in _OF_SYS and isinstance(getattr(sys, names[0], None), types.BuiltinFunctionType)


def _leads_anywhere(value: Any, path: str) -> bool:
    if isinstance(value, types.ModuleType) and value is sys:
        return path.startswith("sys.modules") or path.partition(".")[2].startswith("modules")
    return value is sys.modules or path == "__import__"


def _asks_torch(module: Any, path: str) -> bool:
    """Whether a name is one of torch's functions that tell a setting: ``torch.is_grad_enabled`` is a function of C."""
    return str(module).partition(".")[0] == "torch" and path.rpartition(".")[2].startswith(("is_", "are_", "get_"))
