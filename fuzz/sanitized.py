"""Programs in C with the sanitizers for addresses and for undefined behaviour, beside the stand-in for CUDA."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import tvm_ffi.libinfo

from .engine import Finding, Outcome

__all__ = ["FLAGS", "SanitizerMissing", "compile_program", "run_program"]

FLAGS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
_SUMMARY = re.compile(r"cases (\d+) succeeded (\d+) refused (\d+) findings (\d+)")


class SanitizerMissing(Exception):
    """This machine's compiler has no sanitizers, or cannot run what they instrument."""


def compile_program(program: Path, standin: Path, sources: Sequence[Path], words: Sequence[str] = ()) -> Path:
    """A program that finds the stand-in and TVM-FFI; ``words`` are more arguments of the compiler."""
    library = Path(tvm_ffi.libinfo.find_libtvm_ffi())
    command = [
        _compiler(program.parent),
        "-std=gnu99",
        "-g",
        "-O1",
        *FLAGS,
        *words,
        *map(str, sources),
        "-o",
        str(program),
    ]
    command += ["-isystem", tvm_ffi.libinfo.find_include_path(), "-isystem", tvm_ffi.libinfo.find_dlpack_include_path()]
    command += [
        "-Wl,--no-as-needed",
        *(str(standin / f"lib{name}") for name in ("standin.so", "cuda.so.1", "cudart.so.12")),
    ]
    command += [
        str(library),
        f"-Wl,-rpath,{standin}:{library.parent}",
        "-Wl,--disable-new-dtags",
        "-ldl",
        "-lm",
        "-pthread",
    ]
    subprocess.run(command, check=True, capture_output=True, cwd=program.parent)
    return program


def _compiler(folder: Path) -> str:
    """A C compiler whose sanitizers work."""
    found = shutil.which("cc")
    if found is None:
        raise SanitizerMissing("there is no C compiler")
    probe = folder / "probe"
    probe.with_suffix(".c").write_text("int main(void) { return 0; }\n")
    for command in ([found, *FLAGS, f"{probe}.c", "-o", str(probe)], [str(probe)]):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise SanitizerMissing(f"{command[0]}: {done.stderr.strip()}")
    return found


def run_program(
    command: Sequence[str], cases: int, *, leaks: bool, variables: Mapping[str, str] | None = None
) -> Outcome:
    """All cases in one process: each takes some microseconds. Looking for leaks at the end takes seconds."""
    options = {"ASAN_OPTIONS": f"detect_leaks={leaks:d}", "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1"}
    environment = {**os.environ, **options, **(variables or {})}
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, env=environment)
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
