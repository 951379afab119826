"""Functions whose answers may differ from one process, machine or moment to the next.

What such a function answers while a kernel is traced cannot be compared when the kernel is served.
"""

from __future__ import annotations

import dis
import functools
import itertools
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

from aot_runtime.serving.values.libraries import takes_part

from ..device.torch_device import ANSWERED
from .names import names_read

__all__ = [
    "OF_LOGGERS", "OF_SOURCES", "asks_default_dtype", "has_state", "makes_tensor", "stateful_function", "stateful_names",
]  # fmt: skip

# Modules of Python of which every function has state.
_STATEFUL = frozenset(
    {"calendar", "csv", "datetime", "decimal", "fcntl", "filecmp", "gc", "getpass", "gettext", "grp", "locale"}
    | {"multiprocessing", "multiprocessing.context", "multiprocessing.process", "platform", "pwd", "random"}
    | {"resource", "secrets", "select", "site", "socket", "sysconfig", "tempfile", "time", "tracemalloc", "uuid"}
)
OF_LOGGERS = frozenset({"getEffectiveLevel", "getLogger", "isEnabledFor"})
# They read how an object is written.
OF_SOURCES = frozenset(
    {"get_annotations", "get_type_hints", "getfullargspec", "getsource", "getsourcelines", "signature"}
)
_OF_FILES = frozenset(
    {"exists", "isfile", "isdir", "getmtime", "getsize", "is_file", "is_dir", "stat", "iterdir", "lstat", "samefile"}
    | {"getatime", "getctime", "group", "owner"}
    | {"islink", "is_symlink", "lexists", "ismount", "is_mount", "readlink"}
    | {"abspath", "absolute", "cwd", "realpath", "relpath", "resolve"}  # by the present folder
)
_OF_CTYPES = frozenset(
    {"__init__", "LoadLibrary", "find_library", "string_at", "wstring_at"}
)  # code of C reads anything
_OF_ARRAYS = frozenset({"_array_repr_implementation", "_array_str_implementation", "array2string"})  # as a setting says
_OF_IMPORTS = frozenset({"import_module", "find_spec"})
_OF_INSPECT = frozenset({"currentframe", "getattr_static", "getmembers", "getmodule", "stack"})
_OF_THREADS = frozenset(
    {
        "active_count",
        "current_thread",
        "enumerate",
        "get_ident",
        "get_native_id",
        "getprofile",
        "gettrace",
        "main_thread",
        "stack_size",
    }
)
# The functions with state of other modules. Those that Python code implements are seen when they run.
_SEEN = {
    **dict.fromkeys(("genericpath", "glob", "pathlib", "pathlib._abc", "pathlib._local", "posixpath"), _OF_FILES),
    **dict.fromkeys(("ctypes", "ctypes.util"), _OF_CTYPES),
    **dict.fromkeys(("numpy._core.arrayprint", "numpy.core.arrayprint"), _OF_ARRAYS),
    **dict.fromkeys(("importlib", "importlib.util"), _OF_IMPORTS),
    "importlib.metadata": frozenset({"version"}),
    "inspect": _OF_INSPECT | OF_SOURCES,
    "linecache": frozenset({"getline", "getlines"}),
    "logging": OF_LOGGERS | {"getLevelName", "getLoggerClass", "hasHandlers"},
    "reprlib": frozenset({"repr", "repr1"}),
    "shutil": frozenset({"which", "disk_usage"}),
    "threading": _OF_THREADS,
    "typing": OF_SOURCES,
}
# Those of C have no frames, and are known by the names that code has for them.
_NAMED = {
    "codecs": frozenset({"lookup", "lookup_error"}),
    "contextvars": frozenset({"copy_context"}),
    "ctypes": frozenset({"cdll", "pydll", "pythonapi"}),
    "faulthandler": frozenset({"is_enabled"}),
    "numpy": frozenset({"get_printoptions", "getbufsize", "geterr", "geterrcall"}),
    "signal": frozenset({"getitimer", "getsignal"}),
    "threading": _OF_THREADS,
}
_OF_C = {"_contextvars": _NAMED["contextvars"], "_thread": _OF_THREADS | {"locked"}}  # where C defines them
_UNSEEN = frozenset({"__subclasses__", "__getattribute__", "__code__", "attrgetter"})  # they lead to what no name tells
_NOW = frozenset({"now", "today", "utcnow"})  # of the classes of `datetime`
# What may be asked for: the rest tells something of the machine, the process or files, or leads to other frames.
_ALLOWED_OF_OS = frozenset(
    {"environ", "getenv", "path", "fspath", "fsencode", "fsdecode", "PathLike", "sep", "pathsep", "linesep", "makedirs"}
)
_ALLOWED_OF_SYS = frozenset({"audit", "exc_info", "exception", "exit", "getsizeof", "intern"})
# Functions of C that work on texts alone.
_OF_PATHS = frozenset({"_path_normpath", "_path_splitroot", "_path_splitroot_ex"})
# Random numbers of torch, the functions and the methods that end with an underscore.
_DRAWN = frozenset(
    {"bernoulli", "initial_seed", "multinomial", "normal", "poisson", "rand", "rand_like", "randint", "randint_like"}
    | {"randn", "randn_like", "randperm", "random", "seed", "uniform"}
)
# Functions of torch that make tensors: of the default dtype, unless they are told one.
_MAKERS = frozenset(
    {"arange", "as_tensor", "empty", "eye", "full", "linspace", "logspace", "ones", "scalar_tensor", "tensor", "zeros"}
)
_SHOWN = {"posix": "os", "thread": "threading"}
_ALLOWED = {"posix": _ALLOWED_OF_OS | _OF_PATHS, "sys": _ALLOWED_OF_SYS}
_STREAMS = frozenset({"stdin", "stdout", "stderr"})
_OF_STREAMS = frozenset({"encoding", "isatty"})


def has_state(code: types.CodeType, module: str) -> bool:
    """Whether a function of Python's own modules, or of torch, answers by more than its arguments."""
    if module in _SEEN:
        return code.co_name in _SEEN[module]
    return module in _STATEFUL or (module.partition(".")[0] == "torch" and not takes_part(module))


def stateful_function(called: Any) -> str:
    """The name of a function of C whose answer may change; empty for anything else that is called."""
    while type(called) is functools.partial:
        called = called.func
    if type(called) not in (types.BuiltinFunctionType, types.MethodDescriptorType):  # others may answer as they like
        return ""
    owner = called.__self__ if type(called) is types.BuiltinFunctionType else called.__objclass__
    holder: Any = owner if isinstance(owner, (types.ModuleType, type)) else type(owner)
    module = str(holder.__name__ if isinstance(holder, types.ModuleType) else holder.__module__).lstrip("_")
    name, of = called.__name__, getattr(called, "__module__", None)
    if module in _ALLOWED:
        asks = name not in _ALLOWED[module]
    elif module == "datetime":
        asks = name in _NOW
    else:
        asks = module in _STATEFUL or name in {*_NAMED.get(module, ()), *_OF_C.get(f"_{module}", ())}
        asks = (
            asks or _asks_torch(of, name) or (module.partition(".")[0] == "torch" and name.removesuffix("_") in _DRAWN)
        )
    shown = str(of or module).lstrip("_")
    return f"{_SHOWN.get(shown, shown)}.{name}" if asks else ""


def makes_tensor(called: Any) -> bool:
    """Whether a function of C is one of torch's that make tensors."""
    return (
        type(called) is types.BuiltinFunctionType
        and called.__name__ in _MAKERS
        and str(called.__module__).partition(".")[0] == "torch"
    )


@functools.lru_cache(maxsize=8192)
def asks_default_dtype(code: types.CodeType) -> bool:
    """Whether code calls `torch.finfo()`, of the default dtype. It is a class, whose calls nobody sees."""
    read = [one for one in dis.get_instructions(code) if one.opname not in _BETWEEN]
    pairs = itertools.pairwise(read)
    return any(one.argval == "finfo" and two.opname.startswith("CALL") and two.arg == 0 for one, two in pairs)


_BETWEEN = frozenset({"CACHE", "EXTENDED_ARG", "PRECALL", "PUSH_NULL"})


def stateful_names(codes: Mapping[types.CodeType, str]) -> Iterator[str]:
    """The functions of C that code names and whose answers may change."""
    for code, module in codes.items():
        known = vars(sys.modules[module]) if module in sys.modules else {}
        asked = [path for path in names_read(code) if _may_change(known.get(path.partition(".")[0]), path)]
        for name in (*asked, *(_UNSEEN & {*code.co_names})):
            yield f"{module} reads {name} while it is traced, which may change"


def _may_change(value: Any, path: str) -> bool:
    """Whether a path leads to an answer with state; ``value`` is what its first name stands for."""
    names = path.split(".")[1:]
    try:
        of = getattr(value, "__name__" if isinstance(value, types.ModuleType) else "__module__", None)
    except Exception:  # an object may answer as it likes; its form is asked for apart
        return False
    if isinstance(of, str) and isinstance(value, types.BuiltinFunctionType):
        of = of.lstrip("_")
    if isinstance(value, types.ModuleType):  # which may answer for any name, or raise anything
        asks = _asks_os(value, path) if value.__name__ in ("os", "posix") else _asks_module(value, names)
    else:
        asks = _asks_function(value, path)
    return asks or _asks_python(of, value, path) or _asks_torch(of, path)


def _asks_python(of: Any, value: Any, path: str) -> bool:
    """Whether a path leads into a module of which every function has state. Most classes have none."""
    if isinstance(value, type) and of != "decimal":  # whose numbers are rounded as a setting says
        return bool(of == "datetime") and path.rpartition(".")[2] in _NOW
    return of in _STATEFUL and ("." in path or callable(value))


def _asks_torch(of: Any, path: str) -> bool:
    """Whether a name is one of torch's functions that tell a setting, or draw a number: both may be functions of C."""
    name = path.rpartition(".")[2]
    tells = name.lstrip("_").startswith(("is_", "are_", "get_")) and name not in ANSWERED
    return str(of).partition(".")[0] == "torch" and (tells or name.removesuffix("_") in _DRAWN)


def _asks_os(module: types.ModuleType, path: str) -> bool:
    name = path.partition(".")[2].partition(".")[0]
    # The variables beside the object that tells who asks for them.
    if (module.__name__ == "posix" and name == "environ") or ".environ._data." in f"{path}.":
        return True
    return bool(name) and name not in _ALLOWED_OF_OS and callable(getattr(module, name, None))


def _asks_module(module: types.ModuleType, names: list[str]) -> bool:
    """Whether a name in a module is a function that tells something of the process, or a setting of numpy's."""
    if module.__name__ in _NAMED:
        return not _NAMED[module.__name__].isdisjoint(names[:1])
    if module is not sys or not names:
        return False
    first, *rest = names
    if first.startswith("modules"):
        return True
    if first in _STREAMS:
        return not _OF_STREAMS.isdisjoint(rest)
    return first not in _ALLOWED_OF_SYS and isinstance(getattr(sys, first, None), types.BuiltinFunctionType)


def _asks_function(value: Any, path: str) -> bool:
    """Whether a name that a module took from one of Python's is a function with state, or leads anywhere."""
    if value is sys.modules or path == "__import__":
        return True
    of = getattr(value, "__module__", None)
    if of == "sys":
        return callable(value) and value.__name__ not in _ALLOWED_OF_SYS
    if of in _OF_C:
        return getattr(value, "__name__", "") in _OF_C[of]
    if type(value).__module__ == "ctypes":
        return type(value).__name__.endswith("DLL")  # a library of C
    return of == "posix" and isinstance(value, types.BuiltinFunctionType)
