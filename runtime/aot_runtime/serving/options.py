"""The options of a compile in one form, whichever way they were passed; the architecture is left out."""

from __future__ import annotations

import functools
import os
import shlex
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from .values.digests import UnstableError, file_digest

__all__ = ["Options", "prepare_options", "read_options"]

# What has no part in the code: where files go, how arguments are passed, and the architecture, which dispatch decides.
_LEFT_OUT = frozenset(
    {"gpu-arch", "enable-tvm-ffi", "keep-ptx", "keep-cubin", "keep-sass", "dump-dir", "nvdisasm-options"}
)
_COMPILER = "cutlass.base_dsl.compiler"
_TVM_FFI = "enable-tvm-ffi"
_LINKED = "link-libraries"
# Variables that CuTe DSL takes for options of every compile, and those that change the code in ways that no option says.
_VARIABLES = {"CUTE_DSL_ENABLE_TVM_FFI": _TVM_FFI, "CUTE_DSL_ENABLE_ASSERTIONS": "enable-assertions"}
_CHANGE_CODE = ("CUTE_DSL_AUTO_M2S", "CUTE_DSL_COMPILER_BACKEND", "CUTE_DSL_COMPILER_OPT", "CUTE_DSL_ENABLE_PYIR")
# Options in brackets, `cute.compile[OptLevel(2)]`, by the flag that says the same in text.
_FLAGS = {
    "DumpDir": "dump-dir", "EnableAssertions": "enable-assertions", "EnableTVMFFI": _TVM_FFI, "GPUArch": "gpu-arch",
    "GenerateLineInfo": "generate-line-info", "KeepCUBIN": "keep-cubin", "KeepPTX": "keep-ptx", "KeepSASS": "keep-sass",
    "LinkLibraries": _LINKED, "NvdisasmOptions": "nvdisasm-options", "OptLevel": "opt-level",
    "PtxasOptions": "ptxas-options",
}  # fmt: skip
_TRUE = ("1", "true", "on", "yes")
_SWITCHES = frozenset({_TVM_FFI, "enable-assertions", "generate-line-info", "keep-ptx", "keep-cubin", "keep-sass"})


class Options:
    """``flags`` are those that shape code, with their values; ``tvm_ffi`` says how the result is called."""

    def __init__(self, flags: dict[str, str]) -> None:
        self.tvm_ffi = flags.get(_TVM_FFI) == "true"
        self.flags = {name: value for name, value in sorted(flags.items()) if name not in _LEFT_OUT}

    def with_switches(self, names: Iterable[str]) -> Options:
        switches = dict.fromkeys(names, "true")
        return Options({**({_TVM_FFI: "true"} if self.tvm_ffi else {}), **self.flags, **switches})

    def linked(self) -> list[str]:
        """The digests of the libraries that are linked into the code: another file may lie where one was."""
        paths = self.flags.get(_LINKED, "").split(",")
        return [file_digest(path.strip()) for path in paths if path.strip()]

    def text(self) -> str:
        """As ``cute.compile(options=...)`` takes them."""
        parts = [f"--{name}" if name in _SWITCHES else f"--{name} {shlex.quote(v)}" for name, v in self.flags.items()]
        return " ".join(parts)


def read_options(compiler: Any, text: str | None) -> Options:
    """The options of a call; a text replaces those in brackets, as CuTe DSL has it.

    A ``@cute.jit`` function that is called has no compiler, and no options.
    """
    brackets = _of_brackets(compiler) if compiler is not None else {}
    found = _in_text(text) if text else Options(brackets)
    if set_ := [name for name in _CHANGE_CODE if os.environ.get(name)]:
        raise UnstableError(f"the environment variable {set_[0]}")
    flags = [flag for name, flag in _VARIABLES.items() if os.environ.get(name, "").lower() in _TRUE]
    return found.with_switches(flags) if flags else found


@functools.lru_cache(maxsize=256)
def _in_text(text: str) -> Options:
    return Options(_of_text(text))


def prepare_options() -> None:
    """Do for the usual options what the first look-up would wait for."""
    _in_text(f"--{_TVM_FFI}")
    with suppress(Exception):  # of a CuTe DSL that nobody tried; the first look-up meets it again
        _of_brackets(sys.modules[_COMPILER].CompileCallable())


def _of_text(text: str) -> dict[str, str]:
    flags: dict[str, str] = {}
    words = shlex.split(text)
    while words:
        name, equals, value = words.pop(0).partition("=")
        if not name.startswith("--"):
            raise UnstableError(f"the compile option {name!r}")
        name = name.removeprefix("--")
        if name in _SWITCHES:
            value = "true"
        elif not equals:
            value = words.pop(0) if words else ""
        flags[name] = value.strip("'")
    return flags


@functools.lru_cache(maxsize=16)
def _plain_values(compiler: Any, kinds: tuple[type, ...]) -> dict[type, Any]:
    """The values of the kinds of options if none is given."""
    return {kind: option.value for kind, option in compiler()._compile_options.options.items()}


def _of_brackets(compiler: Any) -> dict[str, str]:
    given = compiler._compile_options.options
    kind_of_compiler: Any = type(compiler)  # the type of Any is not hashable to mypy
    plain = _plain_values(kind_of_compiler, tuple(given))
    flags: dict[str, str] = {}
    for kind, option in given.items():
        if option.value == plain[kind]:
            continue
        flag = _FLAGS.get(kind.__name__)
        if flag is None:
            raise UnstableError(f"the compile option {kind.__name__}")
        flags[flag] = "true" if flag in _SWITCHES else str(option.value).strip("'")
    return flags
