"""An instruction that an architecture lacks is found at the author's line."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from aot_runtime.arch import Arch

from aot.compile.instructions import lacking
from aot.compile.messages import Options
from aot.compile.process import Worker
from aot.errors import Failure

KERNEL = """
import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
import aot

@cute.kernel
def wait(x: cute.Tensor):
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    x[0] = cutlass.Float32(1.0)

@cute.jit
def launch(x: cute.Tensor, stream: CUstream):
    wait(x).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)

@aot.kernel(parameters=(aot.In("x"),), archs=("sm_80", "sm_90a"))
def waits(target):
    return aot.Spec(launch, {"x": aot.Tensor("f32", ("n",)), "stream": aot.Stream()})
"""


def operation(name: str, place: str, *inner: SimpleNamespace, asm: str = "") -> SimpleNamespace:
    made = SimpleNamespace(name=name, location=f'loc("{place}":7:0)', attributes={"asm_string": f'"{asm}"'})
    made.operation, made.regions = made, [[list(inner)]] if inner else []
    return made


@pytest.mark.parametrize(
    ("inner", "arch", "least"),
    [
        (operation("nvvm.wgmma.fence", "k.py"), "sm_80", "sm_90a"),
        (operation("nvvm.tcgen05.alloc", "k.py"), "sm_90a", "sm_100a"),
        (operation("llvm.inline_asm", "k.py", asm="{ griddepcontrol.wait; }"), "sm_80", "sm_90"),
        (operation("nvvm.cluster.arrive", "k.py"), "sm_90", None),
        (operation("nvvm.clusterish", "k.py"), "sm_80", None),
        (operation("nvvm.cp.async.commit.group", "k.py"), "sm_80", None),
        (operation("nvvm.cp.async.bulk.commit.group", "k.py"), "sm_80", "sm_90"),
        (operation("nvvm.wgmma.fence", "library.py"), "sm_80", None),
    ],
)
def test_the_newest_instruction_is_known_by_its_name(inner: SimpleNamespace, arch: str, least: str | None) -> None:
    module = operation("builtin.module", "k.py", operation("cuda.kernel", "k.py", inner))
    found = lacking(module, Arch.parse(arch), lambda path: path == "k.py")
    assert (None if found is None else str(found.least)) == least
    assert found is None or (found.path, found.line) == ("k.py", 7)


def test_a_compile_that_fails_for_it_names_the_line_without_frames_of_the_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(os.path.abspath, sys.path)))
    source = tmp_path / "waits.py"
    source.write_text(KERNEL)
    worker = Worker(str(source), Arch.parse("sm_80"), Options(), tmp_path / "log")
    try:
        worker.expand("waits")
        made = worker.compile("waits", "waits", tmp_path / "waits.ll", tmp_path / "waits.log")
    finally:
        worker.close()
    assert isinstance(made, Failure)
    line = KERNEL.splitlines().index("    cute.arch.cluster_arrive()") + 1
    assert made.message.startswith(f"{source}:{line}: ")
    assert "sm_90" in made.message
    assert "Traceback" not in made.log
