"""Dispatch in C, with the sanitizers for addresses and for undefined behaviour: calls with arguments of every kind."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aot.bundle.layout import PROTOCOL
from aot.bundle.manifest import Manifest
from aot.hosts import Host

from .corpus import PROJECT
from .engine import Outcome
from .sanitized import FLAGS, run_program
from .sanitized import compile_program as compile_sanitized

__all__ = ["KERNELS", "SHARE", "Program", "compile_program", "run"]

SHARE = 0.3
KERNELS = ("fill", "fill_pair", "fill_pointer", "fill_optional", "fill_epilogue", "fill_everywhere")


@dataclass(frozen=True)
class Program:
    path: Path
    entry: Path  # the entry library, compiled with the sanitizers
    functions: tuple[str, ...]


def compile_program(bundle: Path, standin: Path, folder: Path, more: str = "") -> Program:
    """The program, and a copy of the bundle whose entry library has the sanitizers; ``more`` is C code to add to it."""
    from tests.cpp.conftest import with_entry

    program = compile_sanitized(folder / "dispatch", standin, [PROJECT / "fuzz" / "dispatch.c"])
    copy = with_entry(bundle, folder / "sanitized", FLAGS, lambda tables: tables + more)
    manifest = Manifest.read(bundle)
    own = [function for kernel in manifest.kernels.values() for function in kernel.functions]
    entry = copy / manifest.hosts[Host.native().name].entry
    return Program(program, entry, (*own, *(f"aot__{name}" for name in PROTOCOL)))


def run(program: Program, seed: int, cases: int, *, leaks: bool = True) -> Outcome:
    command = [str(program.path), str(seed), "0", str(cases), str(program.entry), *program.functions]
    return run_program(command, cases, leaks=leaks)
