"""Bundles grow, slim and join: kernel libraries go over byte for byte, what does not fit is refused with the reason."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from forging import forge
from places import PROJECT, SAMPLES
from written import WRITE

from aot import BuildError, UsageError
from aot.bundle.manifest import Manifest
from aot.bundle.verifying.verify import verify
from aot.cli.main import main
from aot.pipeline.settings import BuildResult

Build = Callable[..., BuildResult]
FILL = SAMPLES / "fill.py"


@pytest.fixture(scope="module")
def make(build_bundle: Build) -> Callable[..., Path]:
    def run(out: Path | None, kernel: str, *archs: str, **settings: object) -> Path:
        kernels = settings.pop("kernels", FILL)
        result = build_bundle(kernels, archs, select=(kernel,), out=out, **settings)
        assert not result.failures
        assert verify(result.path) == []
        return result.path

    return run


def libraries(bundle: Path) -> dict[str, bytes]:
    return {p.relative_to(bundle).as_posix(): p.read_bytes() for p in bundle.glob("lib/*/sm_*/*.so")}


def contents(bundle: Path) -> dict[str, bytes]:
    return {p.relative_to(bundle).as_posix(): p.read_bytes() for p in bundle.rglob("*") if p.is_file()}


def kernels_of(bundle: Path) -> dict[str, list[str]]:
    return {name: [str(arch) for arch in kernel.archs] for name, kernel in Manifest.read(bundle).kernels.items()}


@pytest.fixture(scope="module")
def grown(make: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A bundle as it was, with an architecture more, with a kernel more."""
    folder = tmp_path_factory.mktemp("grown")
    stages = []
    for number, (kernel, arch) in enumerate(
        [("fill_epilogue", "sm_80"), ("fill_epilogue", "sm_90a"), ("fill_everywhere", "sm_80")]
    ):
        make(folder / "bundle", kernel, arch, add=True)
        stages.append(shutil.copytree(folder / "bundle", folder / f"stage{number}"))
    return stages


def test_add_keeps_the_rest_and_what_was_there_stays_byte_for_byte(grown: list[Path]) -> None:
    assert kernels_of(grown[0]) == {"fill_epilogue": ["sm_80"]}
    assert kernels_of(grown[1]) == {"fill_epilogue": ["sm_80", "sm_90a"]}
    assert kernels_of(grown[2]) == {"fill_epilogue": ["sm_80", "sm_90a"], "fill_everywhere": ["sm_80"]}
    for before, after in pairwise(grown):
        assert libraries(before).items() < libraries(after).items()


def test_a_bundle_grown_in_steps_is_the_bundle_built_at_once(make: Callable[..., Path], grown: list[Path]) -> None:
    at_once = make(None, "fill_epilogue", "sm_80", "sm_90a")
    assert contents(grown[1]) == contents(at_once)


def test_replace_begins_anew(make: Callable[..., Path], grown: list[Path], tmp_path: Path) -> None:
    shutil.copytree(grown[2], tmp_path / "bundle")
    make(tmp_path / "bundle", "fill_everywhere", "sm_80", replace=True)
    assert kernels_of(tmp_path / "bundle") == {"fill_everywhere": ["sm_80"]}


def test_a_damaged_library_is_not_carried_over(build_bundle: Build, grown: list[Path], tmp_path: Path) -> None:
    out = shutil.copytree(grown[0], tmp_path / "bundle")
    (library,) = out.glob("lib/*/sm_80/fill_epilogue.so")
    library.write_bytes(library.read_bytes()[:-1])
    with pytest.raises(BuildError, match=r"fill_epilogue\.so` is not what its manifest says"):
        build_bundle(FILL, ("sm_80",), select=("fill_everywhere",), out=out, add=True)


def test_a_kernel_whose_parameters_changed_is_not_mixed_with_the_old(
    build_bundle: Build, grown: list[Path], tmp_path: Path
) -> None:
    out = shutil.copytree(grown[0], tmp_path / "bundle")
    before = contents(out)
    changed = tmp_path / "changed.py"
    changed.write_text(FILL.read_text().replace('aot.Out("out", "what is filled"', 'aot.Out("out", "another word"'))
    with pytest.raises(UsageError, match=r"fill_epilogue for sm_80: fill\.py is gone"):
        build_bundle(changed, ("sm_90a",), select=("fill_epilogue",), out=out, add=True)
    assert contents(out) == before


def test_prune_takes_out_what_is_named_and_the_rest_stays_byte_for_byte(
    grown: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = shutil.copytree(grown[2], tmp_path / "bundle")
    assert main(["prune", str(out), "--arch", "sm80", "--kernel", "fill_ep*"]) == 0
    assert kernels_of(out) == {"fill_epilogue": ["sm_90a"], "fill_everywhere": ["sm_80"]}
    assert libraries(out).items() < libraries(grown[2]).items()
    assert main(["prune", str(out), "--arch", "sm_80"]) == 0
    assert kernels_of(out) == {"fill_epilogue": ["sm_90a"]}
    assert list(Manifest.read(out).requires["driver"]) == ["sm_90a"]
    assert verify(out) == []
    capsys.readouterr()
    before = contents(out)
    for arguments, said in [
        (["--arch", "sm90"], "no kernel would be left"),
        (["--arch", "sm80"], "the bundle has no code for sm_80"),
        (["--kernel", "gemm*"], "no kernel matches gemm*"),
        ([], "nothing to remove"),
    ]:
        assert main(["prune", str(out), *arguments]) != 0
        assert said in capsys.readouterr().err
    assert contents(out) == before


def test_merge_joins_what_was_built_apart(make: Callable[..., Path], grown: list[Path], tmp_path: Path) -> None:
    apart = make(None, "fill_everywhere", "sm_80")
    assert main(["merge", str(grown[1]), str(apart), "--out", str(tmp_path / "joined")]) == 0
    assert contents(tmp_path / "joined") == contents(grown[2])
    assert main(["merge", str(grown[2]), str(grown[0]), "--out", str(tmp_path / "again")]) == 0  # they agree
    assert contents(tmp_path / "again") == contents(grown[2])


def test_merge_drops_nothing_of_the_bundle_that_it_replaces(
    grown: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = shutil.copytree(grown[2], tmp_path / "bundle")
    before = contents(out)
    assert main(["merge", str(grown[1]), "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert "it would drop\n  fill_everywhere for sm_80\n" in said and f"name `{out}` among the bundles" in said
    assert contents(out) == before
    assert main(["merge", str(grown[1]), str(out), "--out", str(out)]) == 0
    assert contents(out) == before
    other = shutil.copytree(grown[0], tmp_path / "other")
    assert main(["merge", str(grown[1]), "--out", str(other)]) == 0  # it has all that was there
    assert contents(other) == contents(grown[1])


def test_merge_replaces_no_bundle_of_another_name(
    build_bundle: Build, grown: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "other"
    build_bundle(FILL, ("sm_80",), select=("fill_epilogue",), out=out, name="other")
    before = contents(out)
    assert main(["merge", str(grown[0]), "--out", str(out)]) == 2
    assert f"`{out}` holds the bundle other" in capsys.readouterr().err
    assert contents(out) == before


def test_merge_refuses_conflicts_with_the_reason(
    make: Callable[..., Path], grown: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = tmp_path / "changed.py"
    changed.write_text(FILL.read_text().replace("Float32(6.0)", "Float32(6.5)"))
    other = make(None, "fill_epilogue", "sm_80", kernels=changed)
    named = make(None, "fill_everywhere", "sm_80", name="named")
    shared = make(None, "fill_everywhere", "sm_80", shared_cudart=True)
    forged = shutil.copytree(grown[0], tmp_path / "forged")
    forge(forged, lambda data: data["toolchain"].update(cuda="13"))
    for bundle, said in [
        (other, "sm_80/fill_epilogue.so differs between the bundles"),
        (named, "the bundles are called bundle and named"),
        (shared, "CUDA runtime static and"),
        (forged, "is not sound"),  # its libraries say that they were built with another manifest
    ]:
        assert main(["merge", str(grown[0]), str(bundle), "--out", str(tmp_path / "out")]) == 1
        assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_headers_notes_and_archives_go_with_what_the_bundle_holds(grown: list[Path], tmp_path: Path) -> None:
    out = shutil.copytree(grown[2], tmp_path / "bundle")
    header = (out / "include" / "bundle.h").read_text()
    assert "bundle_fill_everywhere(" in header
    assert len(list(out.glob("lib/*/libbundle_sm_80.a"))) == len(list(out.glob("lib/*/libbundle_sm_90a.a"))) == 1
    assert main(["prune", str(out), "--kernel", "fill_everywhere"]) == 0
    assert contents(out) == contents(grown[1])
    assert main(["prune", str(out), "--arch", "sm_90a"]) == 0
    assert contents(out) == contents(grown[0])


def test_archives_are_of_all_kernels_or_of_none(
    make: Callable[..., Path], build_bundle: Build, grown: list[Path], tmp_path: Path
) -> None:
    without = make(None, "fill_everywhere", "sm_80", archives=False)
    assert not list(without.rglob("*.a"))
    assert main(["merge", str(grown[0]), str(without), "--out", str(tmp_path / "joined")]) == 1
    with pytest.raises(BuildError, match="has no archives for static linking"):
        build_bundle(FILL, ("sm_80",), select=("fill_epilogue",), out=without, add=True)
    out = shutil.copytree(grown[0], tmp_path / "bundle")
    make(out, "fill_everywhere", "sm_80", archives=False, add=True)
    assert not list(out.rglob("*.a"))
    assert len(kernels_of(out)) == 2


def kernels_with_contracts(folder: Path) -> Path:
    """Two kernels of one variant each, with the contracts of shipped ones, which share a file."""
    shutil.copytree(
        PROJECT / "kernels" / "contracts", folder / "contracts", ignore=shutil.ignore_patterns("__pycache__")
    )
    (folder / "__init__.py").touch()
    for name, family, inputs in (("add", "elementwise", ("x", "y")), ("softmax", "rows", ("x",))):
        taken = "".join(f"{one}: cute.Tensor, " for one in inputs)
        declared = "".join(f'aot.In("{one}"), ' for one in inputs)
        tensors = "".join(f'"{one}": aot.Tensor("f32", (32,)), ' for one in (*inputs, "out"))
        (folder / f"{name}.py").write_text(
            WRITE.replace("VALUE", "1").replace("def launch(", f"def launch({taken}")
            + f"""
from .contracts.{family} import {name} as contract

@aot.kernel(parameters=({declared}aot.Out("out", shape="x.shape", dtype="x.dtype")), archs=("sm_90a",),
            reference=contract.reference, inputs=contract.inputs)
def {name}(target):
    return aot.Spec(launch, {{{tensors}"stream": aot.Stream()}})
"""
        )
    return folder


def test_contracts_go_with_their_kernels(tmp_path: Path, build_bundle: Build) -> None:
    kernels = kernels_with_contracts(tmp_path / "kernels")

    def build(kernel: str) -> set[str]:
        result = build_bundle(kernels, select=(kernel,), out=tmp_path / "bundle", add=True)
        assert verify(result.path) == []
        return carried()

    def carried() -> set[str]:
        folder = tmp_path / "bundle" / "contracts"
        return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}

    add, softmax = (
        {f"{family}/__init__.py", f"{family}/{name}.py"}
        for family, name in (("elementwise", "add"), ("rows", "softmax"))
    )
    shared = build("add") - add
    assert "__init__.py" in shared and all(name.startswith("_") for name in shared)
    assert build("softmax") == shared | add | softmax
    assert main(["prune", str(tmp_path / "bundle"), "--kernel", "add"]) == 0
    assert carried() == shared | softmax
    for path in (kernels / "contracts").rglob("*.py"):
        with path.open("a") as file:  # as an editor that saves in place
            file.write("# edited\n")
    assert verify(tmp_path / "bundle") == []
