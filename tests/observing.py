"""What tests of the runtime look at: launches, mapped libraries, open files, memory, and what a fresh process does."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import aot_runtime
from places import TESTS
from standin import Standin


def only_block(cuda: Standin) -> int:
    """Threads per block of the one launch since the last look, which tells the variant that ran."""
    (launch,) = cuda.launches
    cuda.clear()
    return launch.block[0]


def mapped_libraries(bundle: aot_runtime.Bundle) -> set[str]:
    """The native files of a bundle that are mapped into this process, as ``sm_90a/fill.so``."""
    (host,) = (bundle.path / "lib").iterdir()
    paths = {line.split(maxsplit=5)[-1].rstrip("\n") for line in Path("/proc/self/maps").read_text().splitlines()}
    return {str(Path(path).relative_to(host)) for path in paths if path.startswith(f"{host}/")}


def mapped_kernels(bundle: aot_runtime.Bundle) -> set[str]:
    """Those of them that hold kernels: what selection chose to open."""
    return {name for name in mapped_libraries(bundle) if name.startswith("sm_")}


def open_below(folder: Path) -> list[str]:
    """The files below a folder that this process has open. Garbage and other threads may close files elsewhere meanwhile."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # it was closed meanwhile, as that of this list was
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [path for path in found if Path(path).is_relative_to(folder)]


def run_python(
    code: str, *arguments: object, cwd: Path | None = None, variables: Mapping[str, str] | None = None
) -> str:
    """Run code in a process of its own that finds the same packages; its output, or the failure it ended with."""
    path = os.pathsep.join([str(TESTS), *(entry for entry in sys.path if entry)])
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": path, **(variables or {})}
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def in_use() -> int:
    """Bytes that malloc has given out: the pages of a process would not show a lost string."""

    class Facts(ctypes.Structure):
        names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
        _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

    function = ctypes.CDLL(None).mallinfo2
    function.restype = Facts
    facts = function()
    return int(facts.uordblks + facts.hblkhd)
