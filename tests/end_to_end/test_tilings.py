"""How deep a build goes: variants that only make some calls faster are built with ``--tilings all``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from written import WRITE

from aot.bundle.details import read_details
from aot.bundle.manifest import Manifest
from aot.cli.main import main
from aot.errors import UsageError
from aot.pipeline.build import build
from aot.pipeline.events import Progress
from aot.pipeline.outlook import foresee
from aot.pipeline.rebuild import rebuild
from aot.pipeline.settings import Settings

KERNEL = (
    WRITE.replace("VALUE", "1")
    + """
@aot.kernel(
    parameters=(aot.Out("out", shape="out.shape", dtype="out.dtype"),), archs=("sm_80", "sm_90a"), tuned_by=("n",)
)
def fill(target):
    arguments = {"out": aot.Tensor("f32", ("n",)), "stream": aot.Stream()}
    return [
        aot.Spec(launch, arguments, label="general"),
        aot.Spec(launch, arguments, guards="n >= 4", label="wide", core=False),
    ]
"""
)
GENERAL, WIDE = "fill__general", "fill__wide"


class Notes(Progress):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def settings(tmp_path: Path, cache: Path) -> Settings:
    source = tmp_path / "fill.py"
    source.write_text(KERNEL)
    return Settings(
        str(source), ("sm_90a",), out=tmp_path / "bundle", name="bundle", cache=cache, artifacts=tmp_path / "artifacts"
    )


def built(settings: Settings) -> tuple[list[str], list[str]]:
    """The variants of a bundle, and what the build said."""
    progress = Notes()
    path = build(settings, progress).path
    (details,) = (path / "details").iterdir()
    return [variant.name for variant in read_details(details)], progress.notes


def test_a_build_has_the_core_unless_all_is_asked_for_and_loses_nothing_unnamed(settings: Settings) -> None:
    deep = replace(settings, tilings="all")
    names, notes = built(settings)
    assert names == [GENERAL]
    assert any("1 of 2 variants" in note and "`--tilings all` adds 1 of fill" in note for note in notes)
    names, notes = built(deep)
    assert names == [GENERAL, WIDE]
    assert any("`--tilings core` leaves out 1 of fill" in note for note in notes)
    for shallow in (settings, replace(settings, add=True)):
        with pytest.raises(UsageError, match="1 variant of fill for sm_90a") as caught:
            built(shallow)
        assert "`--tilings all`" in str(caught.value.hint) and "`--replace`" in str(caught.value.hint)
    assert built(replace(settings, replace=True))[0] == [GENERAL]


def test_another_architecture_can_be_added_without_its_deeper_variants(settings: Settings) -> None:
    """What stays of the bundle is not asked for again, so nothing of it is dropped."""
    assert built(replace(settings, tilings="all"))[0] == [GENERAL, WIDE]
    path = build(replace(settings, archs=("sm_80",), add=True)).path  # type: ignore[arg-type]
    found = {arch: [one.name for one in read_details(path / f"details/{arch}.json")] for arch in ("sm_80", "sm_90a")}
    assert found == {"sm_80": [GENERAL], "sm_90a": [GENERAL, WIDE]}


@pytest.mark.parametrize("tilings", ["core", "all"])
def test_a_bundle_is_rebuilt_with_the_tilings_that_it_has(settings: Settings, tilings: str, tmp_path: Path) -> None:
    path = build(replace(settings, tilings=tilings)).path  # type: ignore[arg-type]
    (record,) = Manifest.read(path).provenance
    assert record["options"]["tilings"] == tilings
    assert rebuild(path, settings, tmp_path) == []


def test_a_dry_run_says_what_the_other_depth_would_add(settings: Settings) -> None:
    progress = Notes()
    assert foresee(settings, progress, as_build=True).variants == 1
    assert any("`--tilings all` adds 1 of fill" in note for note in progress.notes)


def test_list_shows_all_that_is_declared(
    settings: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AOT_CACHE", str(settings.artifacts))
    assert main(["list", "--source", settings.kernels, "--arch", "sm90", "--json"]) == 0
    (planned,) = json.loads(capsys.readouterr().out)["plan"]
    assert planned["variants"] == [GENERAL, WIDE]


def test_a_project_may_ask_for_all(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from aot.cli.parser import parse
    from aot.cli.settings import build_settings

    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "deep"\nversion = "1"\n[tool.cute-aot]\narchs = ["sm90"]\nkernels = "fill.py"\ntilings = "all"\n'
    )
    monkeypatch.chdir(tmp_path)
    assert build_settings(parse(["build"])).tilings == "all"
    assert build_settings(parse(["build", "--tilings", "core"])).tilings == "core"
