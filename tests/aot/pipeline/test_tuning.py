"""Measured tables are read, and compared with what is planned, before anything is compiled."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from aot_runtime.arch import Arch

from aot.bundle.tables.models import ModelledKernel, ModelledSet, Models, models_text
from aot.bundle.tables.tuning import TunedDevice, TunedKernel, TunedSet, Tuning, tuning_text
from aot.compile.messages import KernelInfo, VariantInfo
from aot.errors import Failure, ToolchainError, UsageError
from aot.files import sha256_of
from aot.pipeline.events import Progress
from aot.pipeline.outlook import foresee
from aot.pipeline.plan import KernelPlan, Plan
from aot.pipeline.planning import earlier
from aot.pipeline.planning.planner import NewPlan
from aot.pipeline.settings import Settings
from aot.pipeline.tuning import read_tables
from aot.selection.subjects import VariantTable

SM90 = Arch.parse("sm_90a")
H200 = TunedDevice("NVIDIA H200", 132, "9.0")


def write(path: Path, device: TunedDevice = H200, kernel: str = "scale", variant: str = "small") -> Path:
    one = TunedSet(kernel, {}, (f"{kernel}__{variant}",), ((),), (0,))
    path.write_text(tuning_text(Tuning(device, (TunedKernel(kernel, SM90, ("n",), (one,)),))))
    return path


@pytest.mark.parametrize("other", [TunedDevice("NVIDIA H200", 132, "9.1"), TunedDevice("NVIDIA-H200", 132, "9.0")])
def test_two_tables_for_one_device_are_refused(tmp_path: Path, other: TunedDevice) -> None:
    """A bundle has one file for a device, and dispatch looks for its name and its number of multiprocessors."""
    files = (write(tmp_path / "one.json"), write(tmp_path / "two.json", other))
    with pytest.raises(UsageError, match="there are two tables for NVIDIA H200") as error:
        read_tables(Settings("kernels", ("sm_90a",), tuning=files))
    assert error.value.hint == "pass one of them"
    files = (files[0], write(tmp_path / "two.json", TunedDevice("NVIDIA H200", 16, "9.0")))
    tables = read_tables(Settings("kernels", ("sm_90a",), tuning=files))
    assert (*tables.sources,) == files
    assert tables.digests == tuple(map(sha256_of, files))


@pytest.mark.parametrize(
    ("kernel", "variant", "message"),
    [
        ("other", "small", "it has tables of other for sm_90a; this build has scale for sm_90a"),
        ("scale", "gone", "the table of scale for sm_90a names scale__gone, a variant that no longer exists"),
    ],
)
def test_a_plan_is_compared_with_the_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: str, variant: str, message: str
) -> None:
    info = KernelInfo("scale", "", "scale.py:1", (), (), ("scale",), (SM90,), {})
    variants = (VariantInfo("scale", {}, VariantTable("scale__small", "scale", (), (), None, -1, 1, True), ""),)
    plan = Plan(12, (KernelPlan(info, SM90, variants, ()),))
    failures: list[Failure] = []
    monkeypatch.setattr(earlier, "make_plan", lambda *_, **__: NewPlan(plan, (), tuple(failures)))
    file = tmp_path / "h200.json"
    settings = Settings("kernels", ("sm_90a",), out=tmp_path / "out", artifacts=None, tuning=(file,))
    with pytest.raises(UsageError, match="there is no file"):
        foresee(settings, Progress(), as_build=True)
    write(file)
    assert foresee(settings, Progress(), as_build=True).variants == 1
    write(file, kernel=kernel, variant=variant)
    with pytest.raises(UsageError, match=message) as error:
        foresee(settings, Progress(), as_build=True)
    assert error.value.hint is not None
    assert foresee(settings, Progress()).variants == 1  # `list` does not look at tables
    failures.append(Failure("", "wrong", "", "other", "sm_90a"))
    assert foresee(settings, Progress(), as_build=True).failures  # what failed goes first


def test_tables_of_a_model_without_numpy_name_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = ModelledKernel("scale", SM90, ("n",), (ModelledSet({}, ((),), {}),))
    path = tmp_path / "models.json"
    path.write_text(models_text(Models(TunedDevice("NVIDIA H200", 132, "9.0", 4814), 1980, (kernel,))))
    tables = read_tables(Settings("kernels", ("sm_90a",), tuning=(path,)))
    monkeypatch.setitem(sys.modules, "aot.model.tables", None)
    with pytest.raises(ToolchainError, match="NumPy") as error:
        tables.of_built({("scale", SM90): ()})
    assert "build" in (error.value.hint or "")
