"""The options of a compile in one form, whichever way they were passed; the architecture is left out."""

from __future__ import annotations

import functools
import os
import shlex
from typing import Any

from .forms import UnstableError

__all__ = ["Options", "prepare_options", "read_options"]

# What has no part in the code: where files go, how arguments are passed, and the architecture, which dispatch decides.
_LEFT_OUT = frozenset(
    {"gpu-arch", "enable-tvm-ffi", "keep-ptx", "keep-cubin", "keep-sass", "dump-dir", "nvdisasm-options"}
)
_TVM_FFI = "enable-tvm-ffi"
_VARIABLE = "CUTE_DSL_ENABLE_TVM_FFI"
# Options in brackets, `cute.compile[OptLevel(2)]`, by the flag that says the same in text.
_FLAGS = {
    "DumpDir": "dump-dir", "EnableAssertions": "enable-assertions", "EnableTVMFFI": _TVM_FFI, "GPUArch": "gpu-arch",
    "GenerateLineInfo": "generate-line-info", "KeepCUBIN": "keep-cubin", "KeepPTX": "keep-ptx", "KeepSASS": "keep-sass",
    "LinkLibraries": "link-libraries", "NvdisasmOptions": "nvdisasm-options", "OptLevel": "opt-level",
    "PtxasOptions": "ptxas-options",
}  # fmt: skip
_SWITCHES = frozenset({_TVM_FFI, "enable-assertions", "generate-line-info", "keep-ptx", "keep-cubin", "keep-sass"})


class Options:
    """``flags`` are those that shape code, with their values; ``tvm_ffi`` says how the result is called."""

    def __init__(self, flags: dict[str, str]) -> None:
        self.tvm_ffi = flags.get(_TVM_FFI) == "true"
        self.flags = {name: value for name, value in sorted(flags.items()) if name not in _LEFT_OUT}

    def text(self) -> str:
        """As ``cute.compile(options=...)`` takes them."""
        parts = [f"--{name}" if name in _SWITCHES else f"--{name} {shlex.quote(v)}" for name, v in self.flags.items()]
        return " ".join(parts)


def read_options(compiler: Any, text: str | None) -> Options:
    """The options of a call; a text replaces those in brackets, as CuTe DSL has it.

    A ``@cute.jit`` function that is called has no compiler, and no options.
    """
    found = _in_text(text) if text else Options(_of_brackets(compiler) if compiler is not None else {})
    if not found.tvm_ffi and _enabled_by_variable():
        return Options({**found.flags, _TVM_FFI: "true"})
    return found


def _enabled_by_variable() -> bool:
    """Whether CuTe DSL takes every compile for one with the option."""
    return os.environ.get(_VARIABLE, "").lower() in ("1", "true", "on", "yes")


@functools.lru_cache(maxsize=256)
def _in_text(text: str) -> Options:
    return Options(_of_text(text))


def prepare_options() -> None:
    """Do for the usual options what the first look-up would wait for."""
    _in_text(f"--{_TVM_FFI}")


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


def _of_brackets(compiler: Any) -> dict[str, str]:
    given = compiler._compile_options.options
    plain = type(compiler)()._compile_options.options
    flags: dict[str, str] = {}
    for kind, option in given.items():
        if option.value == plain[kind].value:
            continue
        flag = _FLAGS.get(kind.__name__)
        if flag is None:
            raise UnstableError(f"the compile option {kind.__name__}")
        flags[flag] = "true" if flag in _SWITCHES else str(option.value).strip("'")
    return flags
