"""How ``lib<name>_torch.so`` finds torch's CUDA stream. Torch is played: these tests need neither torch nor a GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import aot_runtime.native
import pytest

from aot.hosts import Host

FOLDER = aot_runtime.native.source_directory() / "torch"
SHIM = """
#include "aot_torch_bundle.h"
#include <stdio.h>
int aot_torch_fail(const char* format, const char* first, const char* second, const char* third) {
  (void)first, (void)second, (void)third;
  puts(format);
  fflush(stdout);
  return -1;
}
"""
PLAYED_CUDA = """
#include <stdint.h>
int32_t aoti_torch_get_current_cuda_stream(int32_t device, void** stream) {
  if (device > 1) return 1;
  *stream = (void*)(uintptr_t)(0x1000 + device);
  return 0;
}
"""
ASK = """
import ctypes, sys
api = ctypes.CDLL(sys.argv[1])
stream = ctypes.c_void_p()
for device in (0, 1, 2):
    if len(sys.argv) > 2 and device == 0:
        print(api.aot_torch_current_stream(0, ctypes.byref(stream)), flush=True)
        ctypes.CDLL(sys.argv[2], ctypes.RTLD_LOCAL)  # as Python loads torch
    print(api.aot_torch_current_stream(device, ctypes.byref(stream)), hex(stream.value or 0), flush=True)
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The functions of our library, and a library that plays torch with CUDA."""
    folder = tmp_path_factory.mktemp("api")
    (folder / "shim.c").write_text(SHIM)
    (folder / "cuda.c").write_text(PLAYED_CUDA)
    includes = [f"-I{FOLDER}", f"-I{aot_runtime.native.include_directory()}"]
    cc = [sys.executable, "-m", "ziglang", "cc", "-target", Host.native().zig_target, "-std=gnu99", "-O1"]
    cc += ["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    for name, sources in (("libapi.so", ["shim.c", FOLDER / "aot_torch_api.c"]), ("libtorch_cuda.so", ["cuda.c"])):
        command = [*cc, *includes, f"-Wl,-soname,{name}", *map(str, sources), "-ldl", "-o", name]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return folder / "libapi.so", folder / "libtorch_cuda.so"


def ask(*paths: Path) -> list[str]:
    done = subprocess.run([sys.executable, "-c", ASK, *map(str, paths)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_stream_is_the_one_that_torch_names_for_the_device(libraries: tuple[Path, Path]) -> None:
    missing = "this torch has no CUDA: `libtorch_cuda.so` is not in the process"
    refused = "torch does not say which CUDA stream is current"
    # It is looked for until it is there, and then found although Python keeps it to itself.
    assert ask(*libraries) == [missing, "-1", "0 0x1000", "0 0x1001", refused, "-1 0x1001"]


def test_without_cuda_in_torch_the_reason_is_said(libraries: tuple[Path, Path]) -> None:
    assert ask(libraries[0])[::2] == 3 * ["this torch has no CUDA: `libtorch_cuda.so` is not in the process"]
