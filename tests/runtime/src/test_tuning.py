"""The table of a device decides there, or that of the nearest device; blocks tell which variant ran: see ``tests/samples``."""

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
HALF = {20: 64, 200: 64, 2000: 32}  # the table of a device with half the multiprocessors
SLOW = {20: 128, 200: 128, 2000: 32}  # and of one with half the bandwidth
H200 = {"name": "Stand-in 9.0", "multiprocessors": 132, "capability": "9.0", "bandwidth": 4000}
OTHERS = (
    ({"name": "Half", "multiprocessors": 66, "capability": "9.0", "bandwidth": 2000}, [1, 1, 0]),
    ({"name": "Slow", "multiprocessors": 132, "capability": "9.0", "bandwidth": 2000}, [2, 2, 0]),
    ({"name": "Newer", "multiprocessors": 40, "capability": "9.1", "bandwidth": 100}, [0, 0, 0]),
)


def table(**changes: Any) -> dict[str, Any]:
    one = {"function": "fill_tuned", "point": {}, "variants": VARIANTS, "bins": [[50, 500]], "cells": [2, 0, 1]}
    kernel = {"kernel": "fill_tuned", "arch": "sm_90a", "by": ["n"], "sets": [{**one, **changes.pop("set", {})}]}
    return {"schema": 1, "device": H200, "kernels": [{**kernel, **changes.pop("kernel", {})}], **changes}


@pytest.fixture(scope="module")
def tuned_path(shared_bundle: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuning")
    (folder / "h200.json").write_text(json.dumps(table()))
    for device, cells in OTHERS:
        content = table(device=device, schema=4, kernel={"measured_on": "Stand-in 9.0"}, set={"cells": cells})
        (folder / f"{device['name']}.json").write_text(json.dumps(content))
    files = tuple(sorted(folder.iterdir()))
    settings = {"select": ("fill_tuned", "fill_guarded"), "shared_cudart": True, "tuning": files, "name": "tuned"}
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


def test_a_device_without_a_table_takes_that_of_the_nearest(
    load: Callable[..., aot_runtime.Bundle], cuda: Standin
) -> None:
    assert blocks(load(sm_counts=[60]), cuda) == HALF


@pytest.mark.parametrize(("machine", "asks"), [({}, False), ({"sm_counts": [60]}, True)])
def test_the_clock_of_the_memory_is_asked_only_if_the_nearest_table_is_wanted(
    load: Callable[..., aot_runtime.Bundle], cuda: Standin, machine: dict[str, Any], asks: bool
) -> None:
    """A driver takes longer for this than for the rest of the first call."""
    bundle = load(**machine)
    before = cuda.calls("cuDeviceGetAttribute")
    bundle.fill_tuned(cuda.tensor((8,), "float32"), 1.0)
    assert (cuda.calls("cuDeviceGetAttribute") - before > 3) == asks


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (Device("9.0", "Stand-in 9.0", 132, 1), MEASURED),
        (Device("9.0", "Other", 132, 3900), MEASURED),
        (Device("9.0", "Other", 132, 2100), SLOW),
        (Device("9.0", "Other", 114, 2100), SLOW),
        (Device("9.0", "Other", 70, 2100), HALF),
        (Device("9.0", "Other MIG 4g", 64, 4000), HALF),
        (Device("9.0", "", 0), USUAL),
        (Device("9.0", "Half", 66), HALF),
    ],
)
def test_the_nearest_is_by_multiprocessors_and_bandwidth(
    load: Callable[..., aot_runtime.Bundle], device: Device, expected: dict[int, int]
) -> None:
    bundle = load()
    chosen = {n: bundle.explain("fill_tuned", device, TensorInfo("float32", (n,)), 1.0).chosen for n in expected}
    assert {n: one and one.variant for n, one in chosen.items()} == {
        n: f"fill_tuned__t{b}" for n, b in expected.items()
    }


def test_explain_says_why_a_table_is_the_nearest(load: Callable[..., aot_runtime.Bundle]) -> None:
    device = Device("9.0", "Other", 114, 2100)
    chosen = load().explain("fill_tuned", device, TensorInfo("float32", (20,)), 1.0).chosen
    assert chosen is not None
    for fact in ("Slow, 132 multiprocessors", "times of Stand-in 9.0", "114 multiprocessors", "2100 GB/s", "2000 GB/s"):
        assert fact in chosen.table


def test_explain_says_which_table_decided(load: Callable[..., aot_runtime.Bundle]) -> None:
    bundle = load()
    for length in USUAL:
        out = TensorInfo("float32", (length,))
        by_table = bundle.explain("fill_tuned", Device("9.0", "Stand-in 9.0", 132), out, 1.0).chosen
        assert by_table is not None
        assert (by_table.variant, by_table.reason) == (f"fill_tuned__t{MEASURED[length]}", "")
        assert by_table.table == "Stand-in 9.0, 132 multiprocessors"
        usual = bundle.explain("fill_tuned", "9.0", out, 1.0).chosen
        assert usual is not None
        assert (usual.variant, usual.table) == (f"fill_tuned__t{USUAL[length]}", "")
    assert "chosen by the table of Stand-in 9.0, 132 multiprocessors" in str(
        bundle.explain("fill_tuned", Device("9.0", "Stand-in 9.0", 132), TensorInfo("float32", (20,)), 1.0)
    )


def test_the_command_explains_with_the_name_of_the_device(tuned_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(tuned_path), "fill_tuned", "out=f32[20]", "value=1.0", "--device", "stand-in 9.0"]) == 0
    said = capsys.readouterr().out
    assert "runs sm_90a fill_tuned__t128\n" in said
    assert "decided by the table of Stand-in 9.0, 132 multiprocessors\n" in said
    assert main(["explain", str(tuned_path), "fill_tuned", "out=f32[20]", "value=1.0", "--device", "H100"]) == 0
    said = capsys.readouterr().out
    assert "runs sm_90a fill_tuned__t128\n" in said
    assert "decided by the table of Stand-in 9.0" in said and "3352 GB/s" in said


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
    names = sorted(path.name for path in (kept / "tuning").iterdir())
    assert names == ["half_66.json", "newer_40.json", "slow_132.json", "stand_in_9_0_132.json"]
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
