"""Instructions that an architecture lacks, found in the traced module, with the author's line.

libNVVM says only "unsupported operation" for such an instruction. The module that was traced still knows the line of each
operation, if it is traced with line info.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from aot_runtime.arch import Arch

__all__ = ["Lacking", "lacking"]

# How the name of an operation or of a PTX instruction begins -> the least architecture. From the PTX ISA, "Target ISA Notes".
_LEAST = {
    "tcgen05": "sm_100a",
    "wgmma": "sm_90a",
    "setmaxregister": "sm_90a",
    "setmaxnreg": "sm_90a",
    "barrier.cluster": "sm_90",
    "cluster": "sm_90",
    "cp.async.bulk": "sm_90",
    "elect.sync": "sm_90",
    "griddepcontrol": "sm_90",
    "mapa": "sm_90",
    "mbarrier.try_wait": "sm_90",
    "multimem": "sm_90",
    "red.async": "sm_90",
    "st.async": "sm_90",
    "stmatrix": "sm_90",
    "cp.async": "sm_80",
}
_DIALECT = "nvvm."
_ASM = "llvm.inline_asm"
_PLACE = re.compile(r'"([^"]+\.py)":(\d+)')  # how a location names a line


@dataclass(frozen=True)
class Lacking:
    """An instruction that is newer than the architecture."""

    name: str
    least: Arch
    path: str
    line: int

    def message(self, arch: Arch) -> str:
        source = linecache.getline(self.path, self.line).strip()
        text = f"{self.path}:{self.line}: {arch} has no `{self.name}`, which needs {self.least}"
        return text + (f"\n    {source}" if source else "")


def lacking(module: Any, arch: Arch, is_authors: Callable[[str], bool]) -> Lacking | None:
    """The first instruction of a traced module that the architecture lacks, at a line of the author's."""
    for name, location in _instructions(module.operation):
        least = _least(name)
        if least is None or (least.major, least.minor) <= (arch.major, arch.minor):
            continue
        for path, line in _PLACE.findall(location):
            if is_authors(path):
                return Lacking(name, least, path, int(line))
    return None


def _least(name: str) -> Arch | None:
    found = [start for start in _LEAST if name == start or name.startswith(f"{start}.")]
    return Arch.parse(_LEAST[max(found, key=len)]) if found else None


def _instructions(operation: Any) -> Iterator[tuple[str, str]]:
    """The names of the instructions inside an operation, with their locations as text."""
    for inner in (inner.operation for region in operation.regions for block in region for inner in block):
        for name in _names(inner):
            yield name, str(inner.location)
        yield from _instructions(inner)


def _names(operation: Any) -> list[str]:
    """The instruction that an operation is, or those of its inline PTX."""
    if operation.name.startswith(_DIALECT):
        return [operation.name.removeprefix(_DIALECT)]
    if operation.name != _ASM:
        return []
    texts = re.split(r"[;{}\n]", str(operation.attributes["asm_string"]).strip('"'))
    return [text.strip().partition(" ")[0] for text in texts]
