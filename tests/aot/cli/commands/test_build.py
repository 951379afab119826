"""``build --dry-run`` prints a plan; it compiles nothing and writes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aot.cli.commands import build
from aot.cli.main import main
from aot.errors import Failure
from aot.pipeline.outlook import KernelOutlook, Outlook
from tools.json_types import problems


@pytest.fixture
def foreseen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    plan = (
        KernelOutlook("add", "sm_80", ("add__f16", "add__f32"), 1, (), True),
        KernelOutlook("gemm", "sm_90a", ("gemm__small",), 0, ("m <= 64",), False),
        KernelOutlook("gemm", "sm_100f", ("gemm__small",), 0, ("m <= 64",), False),
    )
    outlook = Outlook(Path("dist/kernels"), plan, (Failure("", "wrong", "", "bad", "sm_80"),), 75.0)
    monkeypatch.setattr(build, "foresee", lambda settings, progress, as_build: outlook)


@pytest.mark.usefixtures("foreseen")
def test_a_plan_is_a_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["build", "--arch", "sm80", "--jobs", "2", "--dry-run"]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "kernel  arch     variants  cached  contract",
        "add     sm_80           2       1  yes",
        "gemm    sm_90a          1       0  no",
        "gemm    sm_100f         1       0  no",
        "",
        "guards:",
        "  gemm (sm_90a, sm_100f): m <= 64",
    ]
    assert err.splitlines() == [
        "failed: sm_80 bad: wrong",
        "3 variants of 4 to compile for `dist/kernels`; time: about 1 min 15 s with 2 workers",
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("foreseen")
def test_a_plan_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "--arch", "sm80", "--dry-run", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert problems(data, build.KEYS, partly=True) == []
    assert data["estimate"] == 75.0
    assert [one["kernel"] for one in data["plan"]] == ["add", "gemm", "gemm"]
