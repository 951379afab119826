"""The author's code that checks kernels and is no part of them: their references, inputs and costs.

Such code is not traced, so that a library which it imports when it is called does not shape a kernel. Mostly that is torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType

from ...declare.kernel import Kernel
from .sources import Source

__all__ = ["Checks", "check_modules"]


@dataclass(frozen=True)
class Checks:
    """Where the code lies that only checks kernels."""

    files: frozenset[Path]  # that hold nothing else
    functions: frozenset[tuple[Path, int]]  # in files that hold kernels too: the file, and the function's first line

    @classmethod
    def of(cls, kernels: Iterable[Kernel], files: Iterable[Path]) -> Checks:
        codes = [function.__code__ for kernel in kernels for function in _functions(kernel)]
        places = frozenset((Path(code.co_filename).resolve(), code.co_firstlineno) for code in codes)
        return cls(frozenset(files), places)

    def imports_of_kernels(self, path: Path, source: Source) -> Iterator[str]:
        """The modules that a file may import before all of its kernels are compiled."""
        yield from source.immediate
        if path not in self.files:
            yield from (name for name, line in source.deferred if (path, line) not in self.functions)


def check_modules(kernels: Iterable[Kernel]) -> frozenset[str]:
    """The modules that hold checks, and not the kernel that they check."""
    kernels = list(kernels)
    found = {function.__module__ for kernel in kernels for function in _functions(kernel)}
    return frozenset(found - {kernel.make.__module__ for kernel in kernels})


def _functions(kernel: Kernel) -> Iterator[FunctionType]:
    for function in (kernel.reference, kernel.inputs, kernel.cost):
        if isinstance(function, FunctionType):
            yield function
