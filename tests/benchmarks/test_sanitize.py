"""The script that compute-sanitizer watches: complete with torch and a bundle alone, and no kernel of torch's on the GPU."""

from __future__ import annotations

import ast
import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from aot_runtime.description.kernel_records import KernelRecord, Parameter
from places import PROJECT

SCRIPT = PROJECT / "benchmarks" / "sanitize.py"
PARAMETERS = (Parameter("x"), Parameter("out", output=True, shape="(x.shape[0], x.shape[1] // 2)", dtype="x.dtype"))
RECORD = KernelRecord("silu_and_mul", "", PARAMETERS, (), ("silu_and_mul",), (), 1)


def test_it_imports_nothing_of_the_builder() -> None:
    nodes = [node for node in ast.walk(ast.parse(SCRIPT.read_text())) if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {alias.name for node in nodes for alias in node.names} | {getattr(node, "module", None) for node in nodes}
    assert {name.split(".")[0] for name in names if name}.isdisjoint({"aot", "cutlass", "_common"})


def test_it_says_how_to_call_it() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--help"], capture_output=True, text=True, check=True)
    assert "compute-sanitizer --tool racecheck" in done.stdout


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("torch", reason="its inputs are torch's")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = importlib.util.spec_from_file_location("sanitize", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # its dataclasses look for it there
    spec.loader.exec_module(module)
    return module


def played(folder: Path, kernel: Any) -> SimpleNamespace:
    """A bundle that has the shipped contracts, and a function for its kernel."""
    shutil.copytree(
        PROJECT / "kernels" / "contracts", folder / "contracts", ignore=shutil.ignore_patterns("__pycache__")
    )
    return SimpleNamespace(path=folder, manifest=SimpleNamespace(kernels={"silu_and_mul": RECORD}), kernel=kernel)


def play(script: ModuleType, monkeypatch: pytest.MonkeyPatch, takers: Any) -> None:
    """Replace what asks a bundle which variants take a call, and what runs one: it tells the played kernel which."""
    monkeypatch.setattr(script, "takers", lambda bundle, kernel, arguments: takers(arguments))
    monkeypatch.setattr(
        script, "run_variant", lambda bundle, kernel, variant, arguments: bundle.kernel(variant, **arguments)
    )


@pytest.mark.torch
@pytest.mark.parametrize("flaw", ["", "wrong", "outside", "unwritten"])
def test_results_are_compared_on_the_cpu(
    script: ModuleType, tmp_path: Path, flaw: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kernel(variant: str, x: Any, out: Any) -> None:
        if flaw == "unwritten":
            return
        gate, up = x.double().chunk(2, dim=-1)
        out.copy_(gate * gate.sigmoid() * up * (1.1 if flaw == "wrong" else 1.0))
        if flaw == "outside" and out.numel():
            out.untyped_storage()[0] = 0

    play(script, monkeypatch, lambda arguments: ["silu_and_mul__f32"])
    bundle = played(tmp_path, kernel)
    outcomes = list(script.calls_of(bundle, "silu_and_mul", ["f32"], 20_000, "cpu", script.Wanted()))
    assert len(outcomes) > 10
    assert any(problem for _, problem in outcomes) == bool(flaw)
    assert sorted(path.name for path in tmp_path.rglob("__pycache__")) == []


@pytest.mark.torch
def test_only_dtypes_that_were_built_are_called(script: ModuleType, tmp_path: Path) -> None:
    points = {"a": {"dtype": "f16"}, "b": {"dtype": "f32"}, "without_an_axis": {"precision": "exact"}}
    variants = [{"kernel": kernel, "point": point} for kernel, point in points.items()]
    (tmp_path / "details").mkdir()
    (tmp_path / "details" / "sm_90a.json").write_text(json.dumps({"variants": variants}))
    assert script.dtypes_of(SimpleNamespace(path=tmp_path), "a") == ["f16"]
    assert script.dtypes_of(SimpleNamespace(path=tmp_path), "without_an_axis") == ["f32"]


@pytest.mark.torch
def test_views_keep_their_strides_and_offsets(script: ModuleType) -> None:
    tensor = script.Inputs().tensor((3, 5), "bf16", stride=8, offset=2)
    moved = script.on_device(tensor, "cpu")
    assert (moved.stride(), moved.storage_offset()) == (tensor.stride(), tensor.storage_offset()) == ((8, 1), 2)
    assert moved.equal(tensor) and moved.data_ptr() != tensor.data_ptr()


@pytest.mark.torch
@pytest.mark.parametrize(
    ("every", "ran"),
    [(False, {"a__vector": 2}), (True, {"a__vector": 2, "a__vector_wide": 2})],
    ids=["selected", "every"],
)
def test_only_calls_of_wanted_variants_are_made(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: bool, ran: dict[str, int]
) -> None:
    def kernel(variant: str, x: Any, out: Any) -> None:
        assert "scalar" not in variant and x.shape[-1] % 4 == 0
        gate, up = x.double().chunk(2, dim=-1)
        out.copy_(gate * gate.sigmoid() * up)

    def takers(arguments: Any) -> list[str]:
        return ["a__vector", "a__scalar", "a__vector_wide"] if arguments["x"].shape[-1] % 4 == 0 else ["a__scalar"]

    play(script, monkeypatch, takers)
    bundle = played(tmp_path, kernel)
    wanted = script.Wanted(("*__vector*",), each=2, every=every)
    calls = list(script.calls_of(bundle, "silu_and_mul", ["f32"], 20_000, "cpu", wanted))
    assert wanted.made == ran and len(calls) == sum(ran.values())
    assert not any(problem for _, problem in calls)
    assert list(script.calls_of(bundle, "silu_and_mul", ["f32"], 20_000, "cpu", script.Wanted(until=0.0))) == []
