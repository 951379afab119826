"""A bundle is what the sources and the settings say now: nothing stale survives a build, nothing is lost unnamed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from written import WRITE

from aot.bundle.comparing.staleness import known_stale
from aot.bundle.description import file_record, write_description
from aot.bundle.details import details_text, read_details
from aot.bundle.manifest import Manifest
from aot.bundle.publish import publish
from aot.bundle.verifying.verify import verify
from aot.cli.main import main
from aot.errors import AotError, BuildError, UsageError
from aot.hosts import Host
from aot.pipeline.build import build
from aot.pipeline.settings import BuildResult, Changes, Settings

KERNEL = (
    WRITE.replace("VALUE", "1")
    + """
@aot.kernel(parameters=(aot.Out("out", shape="out.shape", dtype="out.dtype"),), archs=("sm_80", "sm_90a"))
def NAME(target):
    return aot.Spec(launch, {"out": aot.Tensor("f32", ("n",)), "stream": aot.Stream()})
"""
)
BOTH = ("sm_80", "sm_90a")
Run = Callable[..., BuildResult]


def write_kernel(folder: Path, name: str, value: int = 1, lines: str = "") -> None:
    text = KERNEL.replace("NAME", name).replace("element_type(1)", f"element_type({value})")
    (folder / f"{name}.py").write_text(lines + text)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """Two kernels for two architectures, and the bundle built from them."""
    folder = tmp_path_factory.mktemp("first")
    (folder / "kernels").mkdir()
    for name in ("one", "two"):
        write_kernel(folder / "kernels", name)
    result = _build(folder, cache)
    assert result.changes == Changes(compiled=4)
    return folder


def _build(folder: Path, cache: Path, **changes: object) -> BuildResult:
    settings = Settings(
        str(folder / "kernels"), BOTH, out=folder / "dist" / "bundle", name="bundle", jobs=1, cache=cache,
        artifacts=folder / "cache",
    )  # fmt: skip
    return build(replace(settings, **changes))  # type: ignore[arg-type]


@pytest.fixture
def folder(first: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(first, tmp_path / "copy"))


@pytest.fixture
def run(folder: Path, cache: Path) -> Run:
    return lambda **changes: _build(folder, cache, **changes)


def contents(bundle: Path) -> dict[str, bytes]:
    return {path.relative_to(bundle).as_posix(): path.read_bytes() for path in bundle.rglob("*") if path.is_file()}


def held(bundle: Path) -> dict[str, list[str]]:
    return {name: [str(arch) for arch in kernel.archs] for name, kernel in Manifest.read(bundle).kernels.items()}


def test_what_changed_is_rebuilt_for_every_architecture_and_what_is_gone_goes(run: Run, folder: Path) -> None:
    bundle = folder / "dist" / "bundle"
    before = contents(bundle)
    write_kernel(folder / "kernels", "one", value=2)
    (folder / "kernels" / "two.py").rename(folder / "kernels" / "three.py")
    write_kernel(folder / "kernels", "three")
    result = run()
    assert held(bundle) == {"one": [*BOTH], "three": [*BOTH]}
    assert result.changes == Changes(compiled=4, dropped=("two for sm_80, sm_90a",))
    after = contents(bundle)
    assert [path for path in before if path.endswith("/one.so") and after[path] == before[path]] == []
    assert not [path for path in after if "two" in path]
    assert verify(bundle) == []
    assert run().changes == Changes(kept=4)  # nothing has changed since


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"archs": ("sm_90a",)}, ["every kernel for sm_80"]),
        ({"select": ("one",)}, ["two for sm_80, sm_90a"]),
        ({"select": ("o*",), "archs": ("sm_80",)}, ["one for sm_90a", "two for sm_80, sm_90a"]),
        ({"hosts": (Host("x86_64" if Host.native().cpu == "aarch64" else "aarch64", (2, 28)),)}, [Host.native().name]),
    ],
)
def test_a_narrower_build_stops_before_it_compiles_and_names_what_would_go(
    run: Run, folder: Path, asked: dict[str, object], named: list[str]
) -> None:
    write_kernel(folder / "kernels", "one", value=7)  # there would be something to compile
    before, entries = contents(folder / "dist"), contents(folder / "cache" / "variants")
    with pytest.raises(UsageError) as caught:
        run(**asked)
    assert [line for line in named if line not in caught.value.message] == []
    assert "`--add`" in str(caught.value.hint) and "`--replace`" in str(caught.value.hint)
    assert (contents(folder / "dist"), contents(folder / "cache" / "variants")) == (before, entries)


def test_add_keeps_the_rest_and_replace_makes_exactly_what_was_asked(run: Run, folder: Path) -> None:
    bundle = folder / "dist" / "bundle"
    before = contents(bundle)
    write_kernel(folder / "kernels", "three")
    added = run(select=("three",), add=True)
    assert held(bundle) == {"one": [*BOTH], "three": [*BOTH], "two": [*BOTH]}
    assert added.changes == Changes(compiled=2, kept=4)
    libraries = {path: content for path, content in before.items() if path.endswith(".so") and "/sm_" in path}
    assert len(libraries) == 4 and contents(bundle).items() > libraries.items()
    assert verify(bundle) == []
    exactly = run(select=("t*",), archs=("sm_80",), replace=True)
    assert held(bundle) == {"three": ["sm_80"], "two": ["sm_80"]}
    assert exactly.changes.dropped == ("one for sm_80, sm_90a", "three, two for sm_90a")
    assert exactly.changes.cached == 2


@pytest.mark.parametrize("how", ["changed", "gone", "shared", "unknown"])
def test_add_refuses_to_keep_what_is_out_of_date_and_says_what_brings_it_up_to_date(
    run: Run, folder: Path, how: str, capsys: pytest.CaptureFixture[str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, kernels = folder / "dist" / "bundle", folder / "kernels"
    if how == "changed":
        write_kernel(kernels, "two", value=3)
    elif how == "gone":
        (kernels / "two.py").unlink()
    elif how == "shared":  # a file that the kernel imports from beside the folder
        (folder / "common_tile.py").write_text("TILE = 1\n")
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.chdir(folder)  # from where workers import too
        write_kernel(kernels, "two", lines="import common_tile\n")
        run()
        (folder / "common_tile.py").write_text("TILE = 2\n")
    else:  # a bundle of a version that did not record what it was built from
        path = bundle / "provenance.json"
        data = json.loads(path.read_text())
        del data["builds"][0]["built"]
        _forge(bundle, data)
    before = contents(bundle)
    with pytest.raises(UsageError) as caught:
        run(select=("one",), add=True)
    assert "two for sm_80, sm_90a" in caught.value.message
    assert contents(bundle) == before
    command = str(caught.value.hint).partition("`python -m aot ")[2].partition("`")[0]
    monkeypatch.setenv("AOT_CACHE", str(folder / "cache"))
    assert main(command.split()) == 0
    assert held(bundle) == {"one": [*BOTH], **({} if how == "gone" else {"two": [*BOTH]})}
    assert known_stale(bundle, Manifest.read(bundle), kernels) == []


def _forge(bundle: Path, provenance: dict[str, object]) -> None:
    """The bundle with another provenance, as if a build had written it."""
    manifest = Manifest.read(bundle).replace(provenance=provenance["builds"])
    staged = Path(shutil.copytree(bundle, bundle.with_name("staged")))
    for name, text in manifest.texts().items():
        (staged / name).write_bytes(text)
    publish(staged, bundle)
    shutil.rmtree(staged)
    assert verify(bundle) == []


def test_another_bundle_at_the_place_is_refused_with_the_way_out(run: Run, folder: Path, tmp_path: Path) -> None:
    bundle = folder / "dist" / "bundle"
    before = contents(bundle)
    (tmp_path / "elsewhere").mkdir()
    write_kernel(tmp_path / "elsewhere", "other")
    (bundle / "manifest.sig").write_bytes(bytes(64))
    signed = contents(bundle)
    for changes in ({"archs": ("sm_80", "sm_90a"), "archives": False},):  # it would change what was signed
        with pytest.raises(UsageError, match="is signed") as caught:
            run(**changes)
        assert "`--replace`" in str(caught.value.hint)
    assert contents(bundle) == signed
    (bundle / "manifest.sig").unlink()
    for changes, said in (
        ({"name": "other"}, "holds the bundle bundle, and this build makes other"),
        ({"kernels": str(tmp_path / "elsewhere")}, "has kernels of another source"),
    ):
        for more in ({}, {"add": True}):
            with pytest.raises(UsageError, match=said) as caught:
                run(**changes, **more)
            assert "`--out`" in str(caught.value.hint) and "`--replace`" in str(caught.value.hint)
            assert contents(bundle) == before
    assert list(run(kernels=str(tmp_path / "elsewhere"), replace=True).manifest.kernels) == ["other"]


def test_a_kernel_is_not_lost_because_its_file_cannot_be_read(run: Run, folder: Path) -> None:
    bundle = folder / "dist" / "bundle"
    (folder / "kernels" / "third.py").write_text("raise OSError('no table')\n")
    assert not run(allow_incomplete=True).manifest.complete
    before = contents(bundle)
    (folder / "kernels" / "two.py").write_text("def\n")
    with pytest.raises(BuildError, match="two for sm_80, sm_90a"):
        run()
    assert contents(bundle) == before


def test_what_a_gpu_has_verified_stays_with_code_that_stays(run: Run, folder: Path, cache: Path) -> None:
    bundle = folder / "dist" / "bundle"
    manifest = Manifest.read(bundle)
    details = bundle / "details" / "sm_90a.json"
    arch = next(arch for arch in manifest.archs if str(arch) == "sm_90a")
    details.write_text(details_text(arch, [replace(one, verified_on=("a GPU",)) for one in read_details(details)]))
    known = {path: record for path, record in manifest.files.items() if path != "details/sm_90a.json"}
    write_description(bundle, manifest, {**known, "details/sm_90a.json": file_record(details)})
    assert verify(bundle) == []
    write_kernel(folder / "kernels", "two", value=5)
    run()
    assert {one.kernel: one.verified_on for one in read_details(details)} == {"one": ("a GPU",), "two": ()}


def test_options_are_looked_at_even_if_nothing_has_to_be_compiled(run: Run, folder: Path) -> None:
    assert run().changes.compiled == 0
    wrong: list[dict[str, object]] = [
        {"tuning": (folder / "missing.json",)},
        {"tuning": (folder,)},
        {"remote": "nosuchscheme://x"},
        {"memory": 10 << 20},
    ]
    for changes in wrong:
        with pytest.raises(AotError) as caught:
            run(**changes)
        assert caught.value.hint, changes


def test_a_dry_run_stops_where_the_build_would(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOT_CACHE", str(folder / "cache"))
    command = ["build", "--kernels", str(folder / "kernels"), "--out", str(folder / "dist" / "bundle"), "--dry-run"]
    assert main([*command, "--name", "bundle", "--arch", "sm80,sm90"]) == 0
    assert main([*command, "--name", "bundle", "--arch", "sm80"]) == 2
    assert main([*command, "--name", "bundle", "--arch", "sm80", "--add"]) == 0
    assert main([*command, "--name", "other", "--arch", "sm80,sm90"]) == 2


def test_a_bundle_beside_its_sources_says_what_is_stale_and_is_not_packed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = folder / "dist" / "bundle"

    def stale(command: str) -> list[str] | None:
        capsys.readouterr()
        assert main([command, str(bundle), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)["stale"]
        return None if found is None else [one["kernel"] for one in found]

    assert stale("verify") == stale("inspect") == []
    assert main(["wheel", str(bundle), "--out", str(tmp_path / "wheels")]) == 0
    write_kernel(folder / "kernels", "two", value=5)
    assert stale("verify") == stale("inspect") == ["two"]
    assert main(["wheel", str(bundle), "--out", str(tmp_path / "stale")]) == 1
    assert "two.py changed" in capsys.readouterr().err
    assert not (tmp_path / "stale").exists()
    moved = Path(shutil.copytree(bundle, tmp_path / "far" / "away" / "from" / "sources"))
    assert main(["verify", str(moved), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stale"] is None  # nobody can tell
    assert main(["verify", str(moved), "--json", "--kernels", str(folder / "kernels")]) == 0
    assert [one["kernel"] for one in json.loads(capsys.readouterr().out)["stale"]] == ["two"]
