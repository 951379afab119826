"""Slim packages: a base wheel, and one wheel per architecture that drops its files beside it."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from email.parser import Parser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aot.bundle.manifest import Manifest
from aot.bundle.verifying.verify import verify
from aot.cli.main import main
from aot.errors import UsageError
from aot.wheel.identity import Identity
from aot.wheel.make import Project, wheels

if TYPE_CHECKING:
    from packaged import Environment

CALL = """
import sample_kernels
x, out = cuda.tensor((1000,), "float16"), cuda.tensor((1000,), "float16")
try:
    sample_kernels.scale(x, out)
    print(len(cuda.launches))
except sample_kernels.AotError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def split(make_wheels: Callable[..., list[Path]]) -> dict[str, Path]:
    return {path.name.split("-")[0]: path for path in make_wheels(split_arch=True)}


def metadata(wheel: Path) -> dict[str, list[str]]:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        message = Parser().parsestr(archive.read(name).decode())
    return {key: message.get_all(key, []) for key in message}


def test_split_makes_a_base_and_one_wheel_per_architecture(split: dict[str, Path]) -> None:
    assert sorted(split) == ["sample_kernels", "sample_kernels_sm_80", "sample_kernels_sm_90a"]
    contents = {}
    for name, wheel in split.items():
        with zipfile.ZipFile(wheel) as archive:
            contents[name] = set(archive.namelist())
    assert not any(one & other for one in contents.values() for other in contents.values() if one is not other)
    assert not any("/sm_80/" in name or "/sm_90a/" in name for name in contents["sample_kernels"])


def test_parts_are_pinned_to_the_base_and_the_base_names_them(split: dict[str, Path]) -> None:
    assert metadata(split["sample_kernels_sm_90a"])["Requires-Dist"] == ["sample-kernels==1.0"]
    base = metadata(split["sample_kernels"])
    assert set(base["Provides-Extra"]) == {"all-archs", "sm-80", "sm-90a"}
    assert any(
        "sample-kernels-sm-90a==1.0" in text and "sm-90a" in text.partition(";")[2] for text in base["Requires-Dist"]
    )


def test_missing_part_is_named_in_the_refusal_and_then_installed(
    split: dict[str, Path], new_environment: Callable[..., Environment]
) -> None:
    environment = new_environment(split["sample_kernels"], split["sample_kernels_sm_80"])
    bundle = environment.site_packages / "sample_kernels" / "_bundle"
    assert verify(bundle) == []
    refusal = environment.output(CALL, standin=True)
    assert "sm_90a/scale.so` is missing: this part of bundle `sample_kernels` is not installed" in refusal
    assert "hint: `pip install sample-kernels-sm-90a==1.0`" in refusal
    environment.install("--find-links", split["sample_kernels"].parent, "sample_kernels[sm-90a]")
    assert environment.output(CALL, standin=True) == "1"
    assert verify(bundle) == []


def test_missing_part_is_named_without_verification_too(
    split: dict[str, Path], new_environment: Callable[..., Environment]
) -> None:
    environment = new_environment(split["sample_kernels"])
    refusal = environment.output(
        """
from sample_kernels._aot_runtime.core.bundle import load
import sample_kernels
bundle = load(Path(sample_kernels.__file__).parent / "_bundle", verify=False)
x, out = cuda.tensor((1000,), "float16"), cuda.tensor((1000,), "float16")
try:
    bundle.scale(x, out)
except sample_kernels.AotError as error:
    print(error.hint)
""",
        standin=True,
    )
    assert refusal == "`pip install sample-kernels-sm-90a==1.0`"


@pytest.fixture
def installed_split(split: dict[str, Path], tmp_path: Path) -> Path:
    """Base and both parts, as pip would unpack them."""
    for wheel in split.values():
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(tmp_path)
    return tmp_path / "sample_kernels" / "_bundle"


def test_verify_knows_optional_parts(installed_split: Path, native: object) -> None:
    assert verify(installed_split) == []
    library = f"lib/{native}/sm_80/scale.so"
    (installed_split / library).unlink()
    assert verify(installed_split) == [f"{library} is missing"]  # a part that is there is there whole
    (installed_split / library).touch()
    remove_part(installed_split, "sm_80", native)
    assert verify(installed_split) == []


def test_part_of_another_build_is_refused(
    installed_split: Path, make_wheels: Callable[..., list[Path]], tmp_path: Path
) -> None:
    other = {path.name.split("-")[0]: path for path in make_wheels(version="1.1", split_arch=True)}
    with zipfile.ZipFile(other["sample_kernels_sm_80"]) as archive:
        archive.extractall(installed_split.parents[1])
    (problem,) = verify(installed_split)
    assert "sm_80 belongs to a bundle with manifest" in problem
    assert "install sample-kernels-sm-80==1.0" in problem


def test_base_without_the_support_library_is_not_sound(installed_split: Path, native: object) -> None:
    name = f"lib/{native}/libsample_kernels_cuda.so"
    (installed_split / name).unlink()
    assert verify(installed_split) == [f"{name} is missing"]


def test_bundle_that_was_split_is_not_packed_again(installed_split: Path) -> None:
    with pytest.raises(UsageError, match="is already split by architecture"):
        wheels(installed_split, Project(Identity.parse("again", "1.0")))


def remove_part(bundle: Path, arch: str, host: object) -> None:
    """As `pip uninstall` of the distribution leaves it."""
    shutil.rmtree(bundle / "lib" / str(host) / arch)
    (bundle / "details" / f"{arch}.json").unlink()
    (bundle / "parts" / f"{arch}.json").unlink()


def test_parts_that_are_installed_compose_into_a_whole_bundle(installed_split: Path, tmp_path: Path) -> None:
    joined = tmp_path / "joined"
    assert main(["merge", str(installed_split), str(installed_split), "--out", str(joined)]) == 0
    assert verify(joined) == []
    whole, split = Manifest.read(joined), Manifest.read(installed_split)
    assert (whole.distributions, whole.kernels) == ({}, split.kernels)
    assert main(["prune", str(joined), "--arch", "sm80"]) == 0
    assert verify(joined) == []
    assert wheels(joined, Project(Identity.parse("again", "1.0")), split_arch=True), "it can be split once more"


def test_part_that_is_not_installed_is_named_when_composing(
    installed_split: Path, native: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    remove_part(installed_split, "sm_80", native)
    before = sorted(installed_split.rglob("*"))
    assert main(["prune", str(installed_split), "--kernel", "clip"]) == 1
    said = capsys.readouterr().err
    assert f"`{installed_split}` lacks its code for sm_80: that part is not installed" in said
    assert "hint: `pip install sample-kernels-sm-80==1.0`" in said
    assert main(["prune", str(installed_split), "--arch", "sm80"]) == 2
    assert "belongs to an installed package" in capsys.readouterr().err
    assert sorted(installed_split.rglob("*")) == before
