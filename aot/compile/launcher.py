"""Making the launcher that CuTe DSL exports portable, and ours to load.

``export_to_c`` writes the launcher of a kernel, cubin included, as LLVM IR for the build machine. This
module rewrites that text so that it fits a bundle; the patterns that depend on the version of CuTe DSL
come from ``dsl``:

* the head of the module names the target host instead of the build machine;
* CUDA functions are called through pointers that the entry library fills from the bundle's support
  library, so that a kernel library needs no other library and two bundles never share a CUDA runtime;
* loading the cubin is left to the dispatcher: NVIDIA's once function visits every device of the
  machine, tries a failing load three times and then reports success;
* nothing is unloaded when the process ends: graphs may still hold the kernels;
* a launch that fails raises an error with its grid and block.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import BuildError
from ..hosts import Host
from ..versions import install_extras
from . import dsl
from .dsl import LauncherText

__all__ = ["Launcher", "for_host", "parse_launcher", "symbol_prefix"]

# Patterns of whole lines begin with the end of the line before: Python looks for `\n` at once, for `^` at each character.
_DECLARE = re.compile(
    r"\ndeclare (?:!dbg !\d+ )?(?P<result>.+?) @(?P<name>[A-Za-z0-9_]+)\((?P<parameters>[^)]*)\)[^\n]*"
)
# What a launcher raises errors with, and what it does if a step says that it has raised one itself.
_RAISE, _RAISED = "CuteDSLRT_TVMFFISetRaisedCudaError", re.compile(r"icmp eq i32 %\w+, -1$", re.MULTILINE)
_SET_ERROR = "TVMFFIErrorSetRaisedFromCStrParts"
_LAUNCH = "_cudaLaunchKernelEx"
_CALL = re.compile(r"\bcall\b")
_HEAD = re.compile(r'\ntarget (datalayout|triple) = "[^"]*"(?=\n)')
_UNLOADING = re.compile(r"\n@llvm\.global_dtors = .*(?=\n)")


@dataclass(frozen=True)
class Launcher:
    """What the text of a launcher tells of itself."""

    imports: tuple[str, ...]
    binaries: int
    argument_count: int
    block: tuple[int, int, int] | None  # None if the text does not fix it, or if launches differ
    dynamic_shared_memory: int | None
    largest_block: int  # threads, of all the launches that the text fixes; 0 if it fixes none
    largest_dynamic_shared_memory: int


def symbol_prefix(variant: str) -> str:
    """The prefix CuTe DSL gives a launcher's internal symbols when it exports it under that name."""
    return f"__cute_internal_{variant}"


def parse_launcher(text: str, variant: str) -> Launcher:
    """Read off a launcher what the builder must know; :class:`BuildError` if it does not read as expected."""
    reads = dsl.installed().LAUNCHER
    _refuse_abort(text, variant, reads)
    declared = (match["name"] for match in _DECLARE.finditer(text))
    shared_memory = _stores(text, reads, reads.shared_memory, "i64")
    blocks = [_stores(text, reads, field, "i32") for field in reads.block]
    return Launcher(
        imports=tuple(sorted(name for name in declared if _is_import(name, reads))),
        binaries=int(_find(reads.binaries.format(prefix=symbol_prefix(variant)), text, variant)),
        argument_count=int(_find(reads.argument_count, text, variant)),
        block=_block(*map(_single, blocks)),
        dynamic_shared_memory=_single(shared_memory),
        largest_block=_largest_block(*blocks),
        largest_dynamic_shared_memory=max(_fixed(shared_memory), default=0),
    )


def _refuse_abort(text: str, variant: str, reads: LauncherText) -> None:
    """A failing CUDA call is an error that the caller gets, never the end of the caller's process."""
    for match in reads.ends_process.finditer(text):
        if _CALL.search(text, text.rfind("\n", 0, match.start()) + 1, match.start()):
            raise BuildError(
                f"{variant}: its launcher calls `{match[1]}`, which ends the process when something fails",
                hint="make tensor maps with `cute.nvgpu.cpasync.make_tiled_tma_atom`",
            )


def _is_import(name: str, reads: LauncherText) -> bool:
    return bool(reads.support.fullmatch(name)) and name not in (reads.once, reads.unload)


def _find(pattern: str, text: str, variant: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        raise BuildError(
            f"{variant}: the launcher that CuTe DSL {dsl.version()} exported does not read as expected: "
            f"nothing matches {pattern!r}",
            hint=f"install a version of nvidia-cutlass-dsl that was tested: {install_extras('build')}",
        )
    return match[1]


def _stores(text: str, reads: LauncherText, field: str, kind: str) -> list[str]:
    """What is stored into a field of the launch configuration, for each launch in the text."""
    pattern = rf"(%\d+) = getelementptr {reads.configuration}, ptr %\d+, {field}\n  store {kind} (\S+), ptr \1\b"
    return [match[2] for match in re.finditer(pattern, text)]


def _single(values: list[str]) -> int | None:
    """The number that all launches agree on."""
    return int(values[0]) if len(set(values)) == 1 and values[0].isdecimal() else None


def _block(x: int | None, y: int | None, z: int | None) -> tuple[int, int, int] | None:
    return (x, y, z) if x is not None and y is not None and z is not None else None


def _largest_block(x: list[str], y: list[str], z: list[str]) -> int:
    if not len(x) == len(y) == len(z):
        return 0
    blocks = [_fixed(block) for block in zip(x, y, z, strict=True)]
    return max((math.prod(sizes) for sizes in blocks if len(sizes) == 3), default=0)


def _fixed(values: Iterable[str]) -> list[int]:
    return [int(value) for value in values if value.isdecimal()]


def for_host(text: str, variant: str, host: Host) -> str:
    """The launcher for a host, with CUDA behind pointers and loading left to the dispatcher."""
    reads = dsl.installed().LAUNCHER
    head = f'target datalayout = "{host.llvm_data_layout}"\ntarget triple = "{host.llvm_triple}"\n'
    text = head + _UNLOADING.sub("", _HEAD.sub("", f"\n{text}"))[1:]
    explains = _can_explain(text)
    text = _DECLARE.sub(lambda match: _forwarder(match, reads, explains), text)
    for function in reads.loaders:
        name = f"@{symbol_prefix(variant)}_{function}("
        if f"define internal i32 {name}" not in text:
            raise BuildError(f"{variant}: the launcher that CuTe DSL exported has no function {name.strip('@(')}")
        text = text.replace(f"define internal i32 {name}", f"define hidden i32 {name}")
    return text + _first_kernel(text, variant, reads)


def _can_explain(text: str) -> bool:
    """Whether the launcher takes -1 for an error that is raised already."""
    declared = {match["name"] for match in _DECLARE.finditer(text)}
    return {_RAISE, _SET_ERROR, _LAUNCH} <= declared and _RAISED.search(text) is not None


def _forwarder(match: re.Match[str], reads: LauncherText, explains: bool) -> str:
    name, result = match["name"], match["result"]
    if name == reads.once:
        return f"\ndefine internal i32 @{name}(ptr %0, ptr %1, ptr %2, ptr %3) alwaysinline {{\n  ret i32 0\n}}"
    if name == reads.unload:
        return f"\ndefine internal void @{name}(ptr %0) alwaysinline {{\n  ret void\n}}"
    if not _is_import(name, reads):
        return match[0]
    types = [item.strip() for item in match["parameters"].split(",") if item.strip()]
    parameters = ", ".join(f"{kind} %{i}" for i, kind in enumerate(types))
    pointer = f"@aot_import_{name} = external hidden global ptr\n"
    load = f"  %function = load ptr, ptr @aot_import_{name}, align 8\n"
    if name == _LAUNCH and explains:
        body = _LAUNCHING.format(parameters=parameters)
        pointer += "declare hidden void @aot_launch_failed(ptr)\n"
    elif result == "void":
        body = f"  call void %function({parameters})\n  ret void\n"
    else:
        body = f"  %result = call {result} %function({parameters})\n  ret {result} %result\n"
    return f"\n{pointer}define internal {result} @{name}({parameters}) alwaysinline {{\n{load}{body}}}"


_LAUNCHING = f"""\
  %result = call i32 %function({{parameters}})
  %failed = icmp ne i32 %result, 0
  br i1 %failed, label %raise, label %launched
raise:
  call void @{_RAISE}(ptr @{_SET_ERROR}, i32 %result)
  call void @aot_launch_failed(ptr %0)
  ret i32 -1
launched:
  ret i32 0
"""


def _first_kernel(text: str, variant: str, reads: LauncherText) -> str:
    """A name for the handle of the first kernel, for questions about occupancy."""
    match = reads.kernel_handle.search(text)
    if match is None:
        raise BuildError(f"{variant}: the launcher that CuTe DSL exported launches no kernel")
    return f"\n@{symbol_prefix(variant)}_first_kernel = hidden alias ptr, ptr @{match[1]}\n"
