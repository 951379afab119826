"""The check for overlapping memory against brute force, in C, with the sanitizer for undefined behaviour."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import tvm_ffi.libinfo

from aot.hosts import Host

from .corpus import PROJECT
from .engine import Finding, Outcome

__all__ = ["SHARE", "compile_program", "run"]

SHARE = 0.366
_SOURCES = PROJECT / "runtime" / "src"
_SUMMARY = re.compile(r"cases (\d+) overlapping (\d+) cautious (\d+) findings (\d+)")


def compile_program(folder: Path, check: Path = _SOURCES / "aot_overlap.c") -> Path:
    """The program that compares ``check`` with brute force."""
    program = folder / "overlap"
    # With a message instead of a trap, zig builds a runtime first, which takes half a minute.
    command = [sys.executable, "-m", "ziglang", "cc", "-target", Host.native().zig_target, "-O1", "-std=gnu99"]
    command += [
        "-fsanitize=undefined",
        "-fsanitize-trap=undefined",
        "-I",
        str(_SOURCES),
        "-I",
        str(PROJECT / "runtime" / "include"),
    ]
    command += ["-isystem", tvm_ffi.libinfo.find_include_path(), "-isystem", tvm_ffi.libinfo.find_dlpack_include_path()]
    command += [str(PROJECT / "fuzz" / "overlap.c"), str(check), "-o", str(program)]
    subprocess.run(command, check=True, capture_output=True)
    return program


def run(program: Path, seed: int, cases: int) -> Outcome:
    """All cases in one process: each takes a few microseconds."""
    done = subprocess.run([program, str(seed), "0", str(cases)], capture_output=True, text=True, timeout=3600)
    outcome = Outcome()
    summary = _SUMMARY.search(done.stdout)
    if summary is None:
        outcome.seen["found"] += 1
        outcome.findings.append(Finding(0, "crash", f"exit code {done.returncode}", done.stderr[-2000:]))
        return outcome
    ran, overlapping, cautious, wrong = map(int, summary.groups())
    outcome.seen.update({"overlapping": overlapping - wrong, "cautious": cautious, "found": wrong})
    outcome.seen["apart or absurd"] = ran - overlapping - cautious
    for line in done.stdout.splitlines()[:-1][:20]:
        outcome.findings.append(Finding(int(line.split()[1].rstrip(":")), "missed", line, ""))
    return outcome
