"""The calls that a bundle was captured from, read without opening any of its code."""

from __future__ import annotations

from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

from ..kernel_records import KernelTable
from ..manifest import Manifest
from ..records import KERNELS_NAME
from .calls import DATACLASS
from .sources import changed_sources, source_digest

__all__ = ["CapturedCalls"]

_TYPES = ("cutlass.base_dsl.typing", "cutlass.cute.typing")  # the types of arguments, which every call names
_WITH_CLASSES = ("class", "attributes", "arguments")  # the parts of a call that name classes


class CapturedCalls:
    """``calls`` are what was captured, by kernel; ``kernels`` are the kernels by the key of their call."""

    def __init__(self, bundle: Path) -> None:
        table = KernelTable(Manifest.read(bundle).kernels_content(), f"`{bundle}/{KERNELS_NAME}`")
        self.parameter_count = table.parameter_count
        found = {kernel: table.captured(kernel) for kernel in table.names}
        self.calls: dict[str, dict[str, Any]] = {kernel: call for kernel, call in found.items() if call is not None}
        self.kernels = {call["key"]: kernel for kernel, call in self.calls.items()}
        self._unchanged: set[tuple[str, str]] = set()  # a library is not edited while a process runs it

    def changed(self, kernel: str) -> list[str]:
        """The modules whose source is not what it was when a kernel was captured."""
        found = {item for item in self.calls[kernel]["sources"].items() if item not in self._unchanged}
        changed = changed_sources(dict(sorted(found)))
        if not changed:
            self._unchanged |= found
        return changed

    def compare_sources(self, module: str) -> None:
        """Compare the source of the calls that a module takes part in, so that look-ups need not."""
        for kernel in [kernel for kernel, call in self.calls.items() if module in call["sources"]]:
            self.changed(kernel)

    def classes(self) -> dict[str, list[str]]:
        """The names of the classes that objects and arguments of the calls have, with their bases, by module."""
        forms = [([call["call"].get(part) for part in _WITH_CLASSES], call["sources"]) for call in self.calls.values()]
        found = {item for form, modules in forms for item in _classes(form, modules)}
        modules: dict[str, list[str]] = {}
        for module, name in sorted(found):
            modules.setdefault(module, []).append(name)
        return modules

    def read_sources(self) -> None:
        """Read every module that the calls came from. It stays in memory by its digest."""
        for module in {*_TYPES, *(name for call in self.calls.values() for name in call["sources"])}:
            source_digest(module)


def _classes(form: Any, modules: Container[str]) -> Iterator[tuple[str, str]]:
    """The module and the name of every class that a form names, if it is one of these modules."""
    if isinstance(form, str):
        module, _, name = form.removeprefix(f"{DATACLASS} ").rpartition(".")
        while module and module not in modules:  # a class in a class has a name with a dot
            module, _, outer = module.rpartition(".")
            name = f"{outer}.{name}"
        if module and name.replace(".", "_").isidentifier():
            yield module, name
    elif isinstance(form, (list, dict)):
        for item in form.values() if isinstance(form, dict) else form:
            yield from _classes(item, modules)
