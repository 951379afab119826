"""Dispatch, selection, measured tables and scratch memory in C against a model of them: bundles that a seed makes up.

Nothing is compiled by CuTe DSL: the tables are made in C, and the entries of the variants note what they are given.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import aot_runtime.native

from aot.link.libraries import entry_sources

from ..engine import Outcome
from ..sanitized import compile_program as compile_sanitized
from ..sanitized import run_program

__all__ = ["REACHED", "SHARE", "compile_program", "run"]

SHARE = 0.1
REACHED = ("dispatch", "select", "tuning", "workspace")  # what this is for, as ``dispatch`` for ``aot_dispatch.c``
TRACED = 8  # one case in so many is made while calls are logged, which takes another way through dispatch


def compile_program(folder: Path, standin: Path, *flags: str) -> Path:
    sources = aot_runtime.native.source_directory()
    words = ["-I", str(sources), "-isystem", str(aot_runtime.native.include_directory()), *flags]
    files = [Path(__file__).with_name("worlds.c"), *(sources / f"aot_{name}.c" for name in entry_sources())]
    return compile_sanitized(folder / "worlds", standin, files, words)


def run(program: Path, seed: int, cases: int, *, leaks: bool = True) -> Outcome:
    traced = max(1, cases // TRACED)
    outcome = run_program([str(program), str(seed), "0", str(cases - traced)], cases - traced, leaks=leaks)
    with tempfile.NamedTemporaryFile(dir=program.parent, suffix=".log") as log:
        command = [str(program), str(seed), str(cases), str(traced)]
        logged = run_program(command, traced, leaks=False, variables={"AOT_LOG": log.name})
    outcome.seen.update(logged.seen)
    outcome.findings.extend(logged.findings)
    return outcome
