"""What a program compiles is written down, one file per call, while it compiles as ever."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from aot_runtime.serving.environment import recording_variables
from aot_runtime.serving.recording import Recording, _Encoder, _write
from aot_runtime.serving.values.digests import UnstableError
from cutlass_double import write_double

PROGRAM = """
import os, sys
sys.path.insert(0, os.environ["DOUBLE"])
from cutlass.base_dsl.compiler import CompileCallable
from recorded_library import Kernel, Odd
compiler = CompileCallable()
for tile in (64, 64, 128):
    print(compiler(Kernel(tile), None, 3, options="--enable-tvm-ffi --opt-level 2 --gpu-arch sm_90a"))
print(compiler(Kernel(64), None, 3))
print(compiler(Kernel(lambda: 0), None, 3, options="--enable-tvm-ffi"))
print(compiler(Kernel({Odd(): []}), None, 3, options="--enable-tvm-ffi"))
"""
LIBRARY = """
class Kernel:
    def __init__(self, tile):
        self.tile = tile
    def __call__(self, x, n):
        pass

class Odd:
    def __repr__(self):
        return 1 / 0
"""


class SymInt:
    __module__ = "cutlass"

    divisibility, width = 8, 32


class Extra(NamedTuple):
    bias: Any
    scale: Any


def tensor(shape: Any, strides: Any, key: Any) -> Any:
    return SimpleNamespace(
        element_type=type("Float16", (), {"width": 16}), shape=shape, stride=strides, dynamic_shapes_mask=(),
        memspace=SimpleNamespace(name="gmem"), __cache_key__=key, _assumed_align=16,
    )  # fmt: skip


def test_each_call_is_one_file_and_the_program_compiles_as_ever(tmp_path: Path) -> None:
    write_double(tmp_path / "double")
    (tmp_path / "recorded_library.py").write_text(LIBRARY)
    (tmp_path / "program.py").write_text(PROGRAM)
    path = os.pathsep.join([str(tmp_path), *(entry for entry in sys.path if entry)])
    environment = {**os.environ, "PYTHONPATH": path, "DOUBLE": str(tmp_path / "double")}
    environment |= recording_variables(str(tmp_path / "calls"), environment)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "program.py")], capture_output=True, text=True, env=environment
    )
    assert done.stdout.splitlines() == ["compiled"] * 6, done.stderr
    assert (tmp_path / "calls" / "__init__.py").is_file()
    records = [json.loads(path.read_text()) for path in sorted((tmp_path / "calls").glob("*.json"))]
    kept = {record["call"]["attributes"]["tile"]: record for record in records if record.get("options")}
    assert sorted(kept) == [64, 128]
    assert [record["options"] for record in records if "options" in record].count("") == 1  # without TVM-FFI
    assert kept[64]["options"] == "--opt-level 2" and kept[64]["called_from"] == "__main__:8"
    assert kept[64]["callable"] == {"attributes": {"tile": {"plain": 64}}, "class": "recorded_library:Kernel"}
    assert not any("pickled" in record for record in records)
    assert kept[64]["arguments"] == {"x": {"number": None}, "n": {"number": 3}}
    reasons = sorted(record["refused"] for record in records if "refused" in record)
    assert reasons[0] == "ZeroDivisionError: division by zero" and "the callable cannot be pickled" in reasons[1]


def test_a_loss_that_nobody_reads_goes_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    Recording(str(tmp_path / "file" / "calls"), str(tmp_path / "no_pipe")).close()
    reason = f"`{tmp_path}/file/calls/__init__.py`: Not a directory"
    assert capsys.readouterr().err == f"aot: a call could not be recorded: {reason}\n"


def test_symbols_that_arguments_share_stay_shared_and_layouts_of_frameworks_are_read() -> None:
    encoder, n = _Encoder(), SymInt()
    fake = encoder.of(tensor((n, 64), (64, 1), ("f16", (64, 1))), "x")
    again = encoder.of((n, tensor((64,), (1,), ("f16", (1,)))), "pair")
    assert fake["shape"] == [{"symbol": 0, "divisibility": 8, "width": 32}, 64] and fake["align"] == 16
    assert again["tuple"][0]["integer"] == fake["shape"][0]
    real = encoder.of(tensor((8, 4), (4, 1), ("f16", 16, "gmem o (?{div=8},128):(?{i64 div=16},1)")), "y")
    assert real["shape"] == [{"divisibility": 8, "width": 32}, 128]
    assert real["strides"] == [{"divisibility": 16, "width": 64}, 1]


def test_named_tuples_keep_their_class_and_what_cannot_be_pickled_is_refused() -> None:
    data = _Encoder().of(Extra(None, 2.0), "extra")
    assert data["fields"] == {"bias": {"number": None}, "scale": {"number": 2.0}}
    assert data["class"] == {"name": f"{Extra.__module__}:Extra"}
    with pytest.raises(UnstableError, match="act cannot be pickled"):
        _Encoder().of((x for x in ()), "act")


def test_threads_that_record_one_call_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a file of its own until it is whole, whatever the other does in between."""
    names: list[str] = []
    replace = os.replace
    both = threading.Barrier(2, timeout=60)

    def replacing(source: str, target: str) -> None:
        names.append(source)
        both.wait()
        replace(source, target)

    monkeypatch.setattr(os, "replace", replacing)
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(_write, str(tmp_path / "call.py"), "text") for _ in range(2)]:
            done.result()
    assert len(set(names)) == 2
    assert (tmp_path / "call.py").read_text() == "text"
