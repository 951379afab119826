"""A library replaced by renaming at random moments while it is hashed and opened: ``python -m fuzz.races --out FILE``.

One process renames the bundle's own library and another one over the same name as fast as it can; a second process
loads the bundle meanwhile, in Python or in C++. The other library leaves a mark when it is mapped: that race was won by
whoever replaced the file, and is a finding. A control hashes and opens by path, and shows that this
program can win.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aot_runtime.native
import tvm_ffi.libinfo

from aot.bundle.manifest import Manifest

from .command import run_with_corpus
from .corpus import PROJECT, Corpus
from .engine import Finding

# isort: split
from standin import compiler  # the corpus has made it importable

__all__ = ["Races"]

TRIES, CONTROL_TRIES = 300, 1000
_CALLERS = ("Python", "C++", "control: by path")
_HERE = Path(__file__).parent

# A library that says that it was mapped, and a program that loads bundles as it is told, line by line.
_MARK = """
#include <stdio.h>
#include <stdlib.h>
__attribute__((constructor)) static void mark(void) {
  FILE* file = fopen(getenv("AOT_FUZZ_MARK"), "a");
  if (file != NULL) { fputc('x', file); fclose(file); }
}
"""
_PYTHON = """
import sys
from pathlib import Path
from standin import Standin
Standin.load(Path(sys.argv[1])).reset(capabilities=[(9, 0)])
import aot_runtime
from aot_runtime.errors import AotError
print("ready", flush=True)
for line in sys.stdin:
    action, _, path = line.strip().partition(" ")
    try:
        if action == "load":
            bundle = aot_runtime.load(path)
        else:
            bundle.preload(0)
        print("accepted", flush=True)
    except AotError:
        print("refused", flush=True)
"""
_CONTROL = """
import contextlib, ctypes, hashlib, sys
print("ready", flush=True)
for line in sys.stdin:
    action, digest, path = line.split()
    with open(path, "rb") as file:
        same = hashlib.sha256(file.read()).hexdigest() == digest
    with contextlib.suppress(OSError):  # the bundle's own library lacks what TVM-FFI gives it
        same and ctypes.CDLL(path)
    print("accepted" if same else "refused", flush=True)
"""
# Both files under one name, in turn, until a line arrives; then the first of them, for good.
_REPLACE = """
import os, random, select, sys
print("ready", flush=True)
for line in sys.stdin:
    target, *files, seed = line.split()
    rng = random.Random(int(seed))
    count = 0
    while count == 0 or not select.select([sys.stdin], [], [], 0)[0]:
        count += 1
        os.link(files[count % 2], f"{target}.new")
        os.replace(f"{target}.new", target)
        if count == 1:
            print("started", flush=True)
        for _ in range(rng.randrange(100)):
            pass
    sys.stdin.readline()
    os.link(files[0], f"{target}.new")
    os.replace(f"{target}.new", target)
    print(count, flush=True)
"""


class _Process:
    """A process that answers every line with a line."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )
        assert self.answer() == "ready", f"{command[:3]} does not start"

    def ask(self, line: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        self.process.communicate()


class Races:
    """Tries on copies of one bundle, in one folder."""

    def __init__(self, corpus: Corpus, folder: Path) -> None:
        self.corpus, self.folder = corpus, folder
        self.mark = folder / "mark"
        self.other = self._library()
        self.paths = os.pathsep.join(str(PROJECT / name) for name in ("tests", "runtime", "."))

    def run(self, caller: str, kind: str, tries: int, seed: int = 1) -> dict[str, Any]:
        """So many loads of an entry library or of a kernel's library; ``found`` counts what was not hashed and ran."""
        self.mark.write_text("")
        seen: Counter[str] = Counter()
        loader = self._loader(caller)
        replacing = _Process([sys.executable, "-c", _REPLACE], {})
        try:
            for number in range(tries):
                seen[self._one(loader, replacing, caller, kind, seed + number, seen)] += 1
        finally:
            loader.close()
            replacing.close()
        won = len(self.mark.read_text())
        cases = {"cases": tries, "accepted": seen["accepted"], "refused": seen["refused"], "renames": seen["renames"]}
        if caller not in _CALLERS[:2]:
            return {**cases, "won": won, "findings": []}
        finding = Finding(0, "Race", f"another library ran {won} times", "")
        return {**cases, "found": won, "findings": [finding.data()] if won else []}

    def _one(self, loader: _Process, replacing: _Process, caller: str, kind: str, seed: int, seen: Counter[str]) -> str:
        """One load of a copy that nothing has mapped yet."""
        copy = self.folder / f"copy-{caller[0]}-{kind}-{seed}"
        shutil.copytree(self.corpus.bundle, copy, ignore=shutil.ignore_patterns("*.a", "kept"))
        record = next(iter(Manifest.read(copy).hosts.values()))
        target = copy / record.entry if kind == "entry" else min(copy.glob("lib/*/sm_*/*.so"))
        own, other = self.folder / "own.so", self.folder / "other-now.so"
        for path in (own, other):
            path.unlink(missing_ok=True)
        os.link(target, own)
        shutil.copyfile(self.other, other)  # a new file each time: a library that is mapped already would leave no mark
        if kind == "kernel" and caller in _CALLERS[:2]:
            assert loader.ask(f"load {copy}") == "accepted"
        assert replacing.ask(f"{target} {own} {other} {seed}") == "started"
        if caller in _CALLERS[:2]:
            said = loader.ask(f"load {copy}" if kind == "entry" else "preload")
        else:
            said = loader.ask(f"open {Manifest.read(copy).files[str(target.relative_to(copy))].sha256} {target}")
        seen["renames"] += int(replacing.ask("stop"))
        shutil.rmtree(copy)
        assert said in ("accepted", "refused"), f"the loader's process said {said!r}"
        return said

    def _loader(self, caller: str) -> _Process:
        environment = {"AOT_FUZZ_MARK": str(self.mark)}
        if caller == "C++":
            return _Process([str(self._program()), tvm_ffi.libinfo.find_libtvm_ffi()], environment)
        environment.update(PYTHONPATH=self.paths, TVM_FFI_DISABLE_TORCH_C_DLPACK="1")
        return _Process(
            [sys.executable, "-c", _PYTHON if caller == "Python" else _CONTROL, str(self.corpus.standin)], environment
        )

    def _library(self) -> Path:
        (self.folder / "mark.c").write_text(_MARK)
        output = self.folder / "other.so"
        command = [*compiler(), "-O1", "-s", "-shared", "-fPIC", str(self.folder / "mark.c"), "-o", str(output)]
        subprocess.run(command, check=True, capture_output=True)
        return output

    def _program(self) -> Path:
        """The loader in C++, through ``aot.hpp``, beside the stand-in for CUDA."""
        output, standin = self.folder / "races", self.corpus.standin
        if not output.exists():
            includes = [aot_runtime.native.include_directory(), tvm_ffi.libinfo.find_include_path()]
            includes += [tvm_ffi.libinfo.find_dlpack_include_path(), PROJECT / "tests" / "cpp"]
            found = shutil.which("c++")
            command = [found] if found else [sys.executable, "-m", "ziglang", "c++"]
            command += ["-std=c++17", "-O1"]
            command += [word for include in includes for word in ("-isystem", str(include))]
            command += [str(_HERE / "races.cpp"), "-Wl,--no-as-needed", "-Wl,--disable-new-dtags"]
            command += [str(standin / name) for name in ("libstandin.so", "libcuda.so.1", "libcudart.so.12")]
            command += [f"-Wl,-rpath,{standin}", "-ldl", "-lpthread", "-o", str(output)]
            subprocess.run(command, check=True, capture_output=True)
        return output


def _all(corpus: Corpus, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    races = Races(corpus, folder)
    for caller in _CALLERS:
        for kind in ("entry", "kernel"):
            yield f"{caller}, {kind}", races.run(caller, kind, TRIES if caller in _CALLERS[:2] else CONTROL_TRIES)


def main() -> int:
    return run_with_corpus("races", __doc__, _all)


if __name__ == "__main__":
    sys.exit(main())
