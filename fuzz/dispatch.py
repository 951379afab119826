"""Dispatch in C, with the sanitizers for addresses and for undefined behaviour: calls with arguments of every kind."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import tvm_ffi.libinfo

from aot.bundle.layout import PROTOCOL
from aot.bundle.manifest import Manifest
from aot.hosts import Host

from .corpus import PROJECT
from .engine import Finding, Outcome

__all__ = ["KERNELS", "SHARE", "Program", "SanitizerMissing", "compile_program", "run"]

SHARE = 0.4
KERNELS = ("fill", "fill_pair", "fill_pointer", "fill_optional", "fill_epilogue", "fill_everywhere")
_FLAGS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
_SUMMARY = re.compile(r"cases (\d+) succeeded (\d+) refused (\d+) findings (\d+)")


class SanitizerMissing(Exception):
    """This machine's compiler has no sanitizers, or cannot run what they instrument."""


@dataclass(frozen=True)
class Program:
    path: Path
    entry: Path  # the entry library, compiled with the sanitizers
    functions: tuple[str, ...]


def compile_program(bundle: Path, standin: Path, folder: Path, more: str = "") -> Program:
    """The program, and a copy of the bundle whose entry library has the sanitizers; ``more`` is C code to add to it."""
    from tests.cpp.conftest import with_entry

    compiler = _compiler(folder)
    copy = with_entry(bundle, folder / "sanitized", _FLAGS, lambda tables: tables + more)
    manifest = Manifest.read(bundle)
    own = [function for kernel in manifest.kernels.values() for function in kernel.functions]
    library = Path(tvm_ffi.libinfo.find_libtvm_ffi())
    program = folder / "dispatch"
    command = [compiler, "-std=gnu99", "-g", "-O1", *_FLAGS, str(PROJECT / "fuzz" / "dispatch.c"), "-o", str(program)]
    command += ["-isystem", tvm_ffi.libinfo.find_include_path(), "-isystem", tvm_ffi.libinfo.find_dlpack_include_path()]
    command += [
        "-Wl,--no-as-needed",
        *(str(standin / f"lib{name}") for name in ("standin.so", "cuda.so.1", "cudart.so.12")),
    ]
    command += [str(library), f"-Wl,-rpath,{standin}:{library.parent}", "-Wl,--disable-new-dtags", "-ldl", "-lm"]
    subprocess.run(command, check=True, capture_output=True)
    entry = copy / manifest.hosts[Host.native().name].entry
    return Program(program, entry, (*own, *(f"aot__{name}" for name in PROTOCOL)))


def _compiler(folder: Path) -> str:
    """A C compiler whose sanitizers work."""
    found = shutil.which("cc")
    if found is None:
        raise SanitizerMissing("there is no C compiler")
    probe = folder / "probe"
    probe.with_suffix(".c").write_text("int main(void) { return 0; }\n")
    for command in ([found, *_FLAGS, f"{probe}.c", "-o", str(probe)], [str(probe)]):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise SanitizerMissing(f"{command[0]}: {done.stderr.strip()}")
    return found


def run(program: Program, seed: int, cases: int, *, leaks: bool = True) -> Outcome:
    """All cases in one process: each takes some microseconds. Looking for leaks at the end takes seconds."""
    options = {"ASAN_OPTIONS": f"detect_leaks={leaks:d}", "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1"}
    command = [str(program.path), str(seed), "0", str(cases), str(program.entry), *program.functions]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, env={**os.environ, **options})
    outcome = Outcome()
    summary = _SUMMARY.search(done.stdout)
    if summary is None or (done.returncode != 0 and not int(summary[4])):
        outcome.seen["found"] += 1
        outcome.findings.append(Finding(0, "sanitizer", f"exit code {done.returncode}", done.stderr[-4000:]))
        return outcome
    _, succeeded, refused, wrong = map(int, summary.groups())
    outcome.seen.update({"accepted": succeeded, "refused": refused, "found": wrong})
    for line in done.stdout.splitlines()[:-1][:20]:
        outcome.findings.append(Finding(int(line.split()[1].rstrip(":")), "wrong answer", line, ""))
    return outcome
