"""A wheel made from the bundle, installed, on a real GPU: ``pytest tests/gpu --bundle dist/kernels``."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from aot.bundle.manifest import Manifest
from aot.hosts import Host
from aot.wheel.archive import write_wheels
from aot.wheel.identity import Identity
from aot.wheel.make import Project, wheels

pytestmark = pytest.mark.gpu

# Runs with the installed package alone: the loader inside it is all there is.
PROGRAM = """
import sys, threading
import torch
import installed_kernels

assert not {"aot", "aot_runtime", "cutlass"} & set(sys.modules)
assert installed_kernels.__file__.startswith(sys.argv[1])
installed_kernels.preload(0)


def work(seed):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x = torch.full((1000, 513), float(seed), device="cuda")
        y, out = torch.ones_like(x), torch.empty_like(x)
        for _ in range(200):
            installed_kernels.add(x, y, out)
        stream.synchronize()
        results[seed] = bool((out == seed + 1).all())


results = {}
threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert results == {1: True, 2: True}, results

x = torch.randn(64, 512, device="cuda")
out = torch.zeros_like(x)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    installed_kernels.add(x, x, out)
x.normal_()
graph.replay()
torch.cuda.synchronize()
assert torch.equal(out, x + x)
print("installed package ran")
"""


@pytest.fixture(scope="module")
def bundle(request: pytest.FixtureRequest, torch: Any) -> Path:
    path = Path(request.config.getoption("--bundle", default="dist/kernels")).resolve()
    if not path.is_dir() or "add" not in Manifest.read(path).kernels:
        pytest.skip(f"there is no bundle with `add` at {path}: build one, or give --bundle")
    return path


def test_installed_package_runs_from_two_threads_and_in_a_graph(bundle: Path, tmp_path: Path) -> None:
    made = wheels(bundle, Project(Identity.parse("installed_kernels", "1.0")), hosts=[Host.native()])
    (wheel,) = write_wheels(made, tmp_path / "wheels")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    environment = {
        **os.environ,
        "CUDA_DISABLE_PTX_JIT": "1",
        "PYTHONPATH": os.pathsep.join([str(site), _site_of_tvm_ffi()]),
    }
    command = [sys.executable, "-c", PROGRAM, str(site)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "installed package ran"


def _site_of_tvm_ffi() -> str:
    import tvm_ffi

    return str(Path(tvm_ffi.__file__).resolve().parents[1])
