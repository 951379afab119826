"""The source of modules, by digest: served code must come from the very text that was captured.

A file is read once per process, and again if its module is reloaded.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import inspect
import linecache
import os
import re
import sys
import types
import zipimport
from collections.abc import Iterable
from importlib.machinery import ModuleSpec
from typing import Any

__all__ = [
    "class_statements", "class_text", "file_with", "function_text", "locate_source", "original_code", "source_digest",
]  # fmt: skip

_LETTERS = 16  # enough against edits by accident, and a library of a hundred modules is named in every record
_CLASS = re.compile(rb"class (\w+)[(:]")
_DEF = re.compile(r"\s*(async\s+)?def\s").match
_files: dict[str, _Source | None] = {}  # by path; an edit changes nothing in a process that has loaded a module
_loads: dict[str, Any] = {}  # by module: its `__spec__`, another object after each load
# These load what is written. Pytest's makes other messages of assertions.
_PLAIN_LOADERS = ("_frozen_importlib", "importlib.", "zipimport.", "_pytest.", "aot_runtime.")
_NOTHING: frozenset[bytes] = frozenset()
_COMPILED, _HEADER = ".pyc", 16  # bytes in front of the code: a number of Python's, and when the source was written


def source_digest(module: str) -> str | None:
    """How the SHA-256 of a module's source begins; None if there is none. Imports nothing.

    A loader that makes other code of the source is named.
    """
    path = locate_source(module)
    load = getattr(sys.modules.get(module), "__spec__", None)
    if path is not None and _loads.setdefault(module, load) is not load:
        _loads[module] = load
        _files.pop(path, None)
    source = _read(path) if path is not None else None
    return f"{source.digest}{_changed_by(module)}" if source is not None else None


def _changed_by(module: str) -> str:
    loader = getattr(getattr(sys.modules.get(module), "__spec__", None), "loader", None)
    name = f"{type(loader).__module__}.{type(loader).__qualname__}"
    return "" if loader is None or name.startswith(_PLAIN_LOADERS) else f" {name}"


def class_statements(path: str) -> frozenset[bytes]:
    """The names that follow the word ``class`` in a file."""
    source = _read(path)
    return source.classes if source is not None else _NOTHING


@functools.lru_cache(maxsize=256)
def class_text(kind: type) -> str:
    """The text of a class of a script, with what stands right above it: a decorator, perhaps.

    ``inspect`` parses the whole script for it, which takes up to a tenth of a second, and is asked if this is not certain.
    """
    path = _file_of(kind)
    lines = linecache.getlines(path)
    codes = (code for code in map(_code_of, vars(kind).values()) if code is not None and code.co_filename == path)
    methods = sorted(codes, key=lambda code: code.co_firstlineno)
    begins = re.compile(rf"class {re.escape(kind.__qualname__)}\b").match
    starts = [number for number, line in enumerate(lines) if begins(line)]
    if len(starts) > 1 and methods:  # a notebook defines a class again: the one that the methods stand in
        starts = [start for start in starts if start < methods[0].co_firstlineno][-1:]
    if len(starts) != 1:
        return inspect.getsource(kind)
    start, end = starts[0], _end_of_block(lines, starts[0])
    while start and lines[start - 1].strip():
        start -= 1
    return "".join(lines[start:end]) if not methods or _last_line(methods[-1]) <= end else inspect.getsource(kind)


def _file_of(kind: type) -> str:
    """The file of a class. The cells of a notebook that runs have files of their own, and their module has none."""
    path = getattr(sys.modules.get(kind.__module__), "__file__", None)
    codes = filter(None, map(_code_of, vars(kind).values()))
    return str(path or next((code.co_filename for code in codes), ""))


def function_text(code: types.CodeType) -> str:
    """The text of a function with its decorators. Of a lambda, the lines that it stands in.

    The text of generated code may be replaced by that of other code, which CuTe DSL would then compile.
    """
    return _function_text.__wrapped__(code) if code.co_filename.startswith("<") else _function_text(code)


@functools.lru_cache(maxsize=1024)
def _function_text(code: types.CodeType) -> str:
    lines = linecache.getlines(code.co_filename)
    start = code.co_firstlineno - 1
    while 0 < start < len(lines) and lines[start - 1].lstrip().startswith("@"):  # CuTe DSL before 4.7 replaces code
        start -= 1
    heads = (at for at in range(start, len(lines)) if not lines[at].lstrip().startswith("@"))
    head = next(heads, start)
    if not _DEF(lines[head] if head < len(lines) else ""):
        text = inspect.getsource(code)  # of a lambda, perhaps only the first of its lines
        return "".join([text, *lines[start + text.count("\n") : _last_start(code)]])
    end = _end_of_block(lines, head)
    return "".join(lines[start:end]) if _last_line(code) <= end else inspect.getsource(code)


def _end_of_block(lines: list[str], head: int) -> int:
    """The line behind the block of a statement: before the next one that is not further in.

    A text of several lines, or one in brackets, may have lines further out: the code of the block goes on behind these.
    """
    space = len(lines[head]) - len(lines[head].lstrip())
    for end in range(head + 1, len(lines)):
        rest = lines[end].lstrip()
        if rest and rest[0] not in "#)]}" and len(lines[end]) - len(rest) <= space:
            break
    else:
        end = len(lines)
    while not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#"):
        end -= 1
    return end


def _last_line(code: types.CodeType) -> int:
    """The last line that code was made of; one behind every file if Python does not tell."""
    inner = [_last_line(item) for item in code.co_consts if isinstance(item, types.CodeType)]
    if sys.version_info < (3, 11):
        return sys.maxsize
    return max([*inner, *(end if end is not None else _unknown(start) for start, end, _, _ in code.co_positions())])


def _last_start(code: types.CodeType) -> int:
    """The last line in which something of a piece of code begins."""
    inner = [_last_start(item) for item in code.co_consts if isinstance(item, types.CodeType)]
    return max([*inner, *(line or 0 for _, _, line in code.co_lines())])


def _unknown(start: int | None) -> int:
    """Instructions that nobody wrote have no line at all."""
    return 0 if start is None else sys.maxsize


def original_code(function: Any) -> Any:
    """The code that the author of a function wrote, or None: CuTe DSL replaces it when it first compiles a function."""
    return getattr(function, "_original_code", getattr(function, "__code__", None))


def _code_of(item: object) -> types.CodeType | None:
    """The code of what a class holds, inside of its decorators."""
    for name in ("fget", "__func__"):
        item = getattr(item, name, item)
    code = original_code(inspect.unwrap(item)) if callable(item) else None
    return code if isinstance(code, types.CodeType) else None


class _Source:
    """What is kept of a file."""

    __slots__ = ("classes", "digest")

    def __init__(self, content: bytes) -> None:
        self.digest = hashlib.sha256(content).hexdigest()[:_LETTERS]
        self.classes = frozenset(_CLASS.findall(content))


def _read(path: str) -> _Source | None:
    if path not in _files:
        try:
            _files[path] = _Source(_content(path))
        except (OSError, ImportError):
            _files[path] = None
    return _files[path]


def _content(path: str) -> bytes:
    """What a file has, also one inside of an archive: a library may be a zip file, or come without its source."""
    if (archive := file_with(path)) != path:
        content = zipimport.zipimporter(archive).get_data(path)
    else:
        with open(path, "rb") as file:
            content = file.read()
    return content[_HEADER:] if path.endswith(_COMPILED) else content


def file_with(path: str) -> str:
    """The file that a path leads to, or the archive that it leads into; the path itself if there is neither."""
    found = path
    while not os.path.isfile(found):
        found, inside = os.path.dirname(found), found
        if found == inside:
            return path
    return found


def locate_source(module: str) -> str | None:
    """The file of a module, whether it is loaded or not. Imports nothing."""
    path = getattr(sys.modules.get(module), "__file__", None)
    if isinstance(path, str):
        return path if path.endswith((".py", _COMPILED)) else None
    top, *rest = module.split(".")
    if not rest and (path := _file(top)) is not None:
        return path
    for folder in _folders(top):
        base = os.path.join(folder, *rest)
        for candidate in (os.path.join(base, "__init__.py"), f"{base}.py"):
            if os.path.isfile(candidate):
                return candidate
    return None


def _file(top: str) -> str | None:
    """The file of a top-level module that is no package, and not loaded: a kernel may import it while it is traced."""
    spec = _spec(top)
    is_file = spec is not None and spec.has_location and not spec.submodule_search_locations
    return spec.origin if spec is not None and is_file and str(spec.origin).endswith(".py") else None


def _folders(package: str) -> Iterable[str]:
    loaded = sys.modules.get(package)
    if loaded is not None:
        return list(getattr(loaded, "__path__", ()))
    spec = _spec(package)
    return list(spec.submodule_search_locations or ()) if spec is not None else []


def _spec(top: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
