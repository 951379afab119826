"""A measured table decides on its own device, and on no other; blocks tell which variant ran: see ``tests/samples``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aot_runtime
import pytest
from aot_runtime import ArgumentError, Device, TensorInfo
from aot_runtime.core.asking import variant_function
from observing import only_block
from places import SAMPLES
from standin import Standin

from aot.cli.main import main
from aot.errors import UsageError
from aot.pipeline.settings import BuildResult

VARIANTS = ["fill_tuned__t32", "fill_tuned__t64", "fill_tuned__t128"]
USUAL = {20: 32, 200: 64, 2000: 128}  # by preference
MEASURED = {20: 128, 200: 32, 2000: 64}
H200 = {"name": "Stand-in 9.0", "multiprocessors": 132, "capability": "9.0"}


def table(**changes: Any) -> dict[str, Any]:
    one = {"function": "fill_tuned", "point": {}, "variants": VARIANTS, "bins": [[50, 500]], "cells": [2, 0, 1]}
    kernel = {"kernel": "fill_tuned", "arch": "sm_90a", "by": ["n"], "sets": [{**one, **changes.pop("set", {})}]}
    return {"schema": 1, "device": H200, "kernels": [{**kernel, **changes.pop("kernel", {})}], **changes}


@pytest.fixture(scope="module")
def tuned_path(shared_bundle: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("tuning") / "h200.json"
    file.write_text(json.dumps(table()))
    settings = {"select": ("fill_tuned", "fill_guarded"), "shared_cudart": True, "tuning": (file,), "name": "tuned"}
    return shared_bundle("tuned", SAMPLES / "fill.py", ("sm_90a",), **settings)


@pytest.fixture
def load(cuda: Standin, tuned_path: Path, tmp_path: Path) -> Callable[..., aot_runtime.Bundle]:
    """The bundle, not used by anyone yet, on a machine with one device."""

    def make(**device: Any) -> aot_runtime.Bundle:
        cuda.reset(capabilities=[(9, 0)], **device)
        return aot_runtime.load(shutil.copytree(tuned_path, tmp_path / "bundle"))

    return make


def blocks(bundle: aot_runtime.Bundle, cuda: Standin) -> dict[int, int]:
    found = {}
    for length in USUAL:
        cuda.clear()
        bundle.fill_tuned(cuda.tensor((length,), "float32"), 1.0)
        found[length] = only_block(cuda)
    return found


def test_the_table_of_the_device_decides(load: Callable[..., aot_runtime.Bundle], cuda: Standin) -> None:
    assert blocks(load(), cuda) == MEASURED


def test_a_bin_begins_with_its_bound(load: Callable[..., aot_runtime.Bundle], cuda: Standin) -> None:
    bundle, found = load(), {}
    for length in (1, 49, 50, 51, 64, 499, 500, 501, 512):
        bundle.fill_tuned(cuda.tensor((length,), "float32"), 1.0)
        found[length] = only_block(cuda)
    assert found == {1: 128, 49: 128, 50: 32, 51: 32, 64: 32, 499: 32, 500: 64, 501: 64, 512: 64}


def test_a_device_with_other_multiprocessors_goes_by_preference(
    load: Callable[..., aot_runtime.Bundle], cuda: Standin
) -> None:
    assert blocks(load(sm_counts=[66]), cuda) == USUAL, "a slice of the device that was measured"


def test_explain_says_which_table_decided(load: Callable[..., aot_runtime.Bundle]) -> None:
    bundle = load()
    for length in USUAL:
        out = TensorInfo("float32", (length,))
        by_table = bundle.explain("fill_tuned", Device("9.0", "Stand-in 9.0", 132), out, 1.0).chosen
        assert by_table is not None
        assert (by_table.variant, by_table.reason) == (f"fill_tuned__t{MEASURED[length]}", "")
        assert by_table.table == "Stand-in 9.0, 132 multiprocessors"
        for other in ("9.0", Device("9.0", "Stand-in 9.0", 66), Device("9.0", "NVIDIA H200", 132)):
            usual = bundle.explain("fill_tuned", other, out, 1.0).chosen
            assert usual is not None
            assert (usual.variant, usual.table) == (f"fill_tuned__t{USUAL[length]}", "")
    assert "chosen by the table of Stand-in 9.0, 132 multiprocessors" in str(
        bundle.explain("fill_tuned", Device("9.0", "Stand-in 9.0", 132), TensorInfo("float32", (20,)), 1.0)
    )


def test_the_command_explains_with_the_name_of_the_device(tuned_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(tuned_path), "fill_tuned", "out=f32[20]", "value=1.0", "--cc", "stand-in 9.0"]) == 0
    said = capsys.readouterr().out
    assert "runs sm_90a fill_tuned__t128\n" in said
    assert "decided by the measured table of Stand-in 9.0, 132 multiprocessors\n" in said
    assert main(["explain", str(tuned_path), "fill_tuned", "out=f32[20]", "value=1.0", "--cc", "9.0"]) == 0
    said = capsys.readouterr().out
    assert "runs sm_90a fill_tuned__t32\n" in said
    assert "decided by guards; measured tables are for Stand-in 9.0 (132 multiprocessors)\n" in said


def test_a_variant_can_be_run_by_name(load: Callable[..., aot_runtime.Bundle], cuda: Standin) -> None:
    bundle = load()
    out = cuda.tensor((20,), "float32")
    for variant, block in zip(VARIANTS, (32, 64, 128), strict=True):
        cuda.clear()
        variant_function(bundle, "fill_tuned", variant)(out, 1.0)
        assert only_block(cuda) == block
    with pytest.raises(ArgumentError, match="fill_tuned has no variant `fill_tuned__t1` for device 0"):
        variant_function(bundle, "fill_tuned", "fill_tuned__t1")(out, 1.0)
    with pytest.raises(ArgumentError, match=r"out\.dtype is float16, must be float32"):
        variant_function(bundle, "fill_tuned", "fill_tuned__t32")(cuda.tensor((20,), "float16"), 1.0)


def test_pruning_keeps_the_table_and_drops_it_with_its_kernel(
    tuned_path: Path, tmp_path: Path, commands_share_artifacts: None, cuda: Standin
) -> None:
    kept = shutil.copytree(tuned_path, tmp_path / "kept")
    assert main(["prune", str(kept), "--kernel", "fill_guarded"]) == 0
    assert [path.name for path in (kept / "tuning").iterdir()] == ["stand_in_9_0_132.json"]
    assert blocks(aot_runtime.load(kept), cuda) == MEASURED
    dropped = shutil.copytree(tuned_path, tmp_path / "dropped")
    assert main(["prune", str(dropped), "--kernel", "fill_tuned"]) == 0
    assert not (dropped / "tuning").exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(table(kernel={"kernel": "other"}), "matches no kernel of this build: it has tables of other for sm_90a", id="another kernel"),
        pytest.param(table(kernel={"arch": "sm_80"}), "matches no kernel of this build", id="another architecture"),
        pytest.param(table(set={"variants": ["fill_tuned__t32", "fill_tuned__t64", "gone"]}), "names gone, a variant that no longer exists", id="a spec that is gone"),
        pytest.param(table(kernel={"by": ["m"]}), "was tuned by m, the declaration is by n", id="another extent"),
        pytest.param({}, "is not what `tune` writes: it has schema None", id="no table at all"),
    ],
)  # fmt: skip
def test_a_build_refuses_a_table_that_does_not_fit(
    builder: Callable[..., BuildResult], tmp_path: Path, data: Any, message: str
) -> None:
    file = tmp_path / "h200.json"
    file.write_text(json.dumps(data))
    with pytest.raises(UsageError) as error:
        builder(SAMPLES / "fill.py", select=("fill_tuned",), tuning=(file,), shared_cudart=True, archives=False)
    assert message in error.value.message
    assert "\n" not in error.value.message
