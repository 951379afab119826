"""Wheels whose bundle is signed: the package pins the keys, and refuses a bundle that was altered after it was made."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from aot_runtime.core.signature import public_key
from forging import forge
from observing import run_python

from aot.bundle.manifest import Manifest
from aot.bundle.signature import Signer, new_key, public_path
from aot.bundle.verifying.verify import verify
from aot.cli.main import main
from aot.errors import UsageError
from aot.wheel.pyproject import ConfigSettings, read_project
from aot.wheel.sdist import write_sdist
from aot.wheel.signing import choose_signing

LOAD = """
import sys
sys.path.insert(0, sys.argv[1])
import sample_kernels
try:
    print(*sample_kernels._bundle().kernels)
except sample_kernels.AotError as error:
    print(type(error).__name__, error.message)
"""
PROJECT = """
[project]
name = "sample-kernels"
version = "1.0"

[tool.cute-aot]
archs = ["sm90"]
key = ["release.pub", "next.pub"]
"""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the key pairs ``release`` and ``next``."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("release", "next"):
        new_key(folder / name)
    return folder


@pytest.fixture
def install(sample_bundle: Path, tmp_path: Path) -> Callable[..., Path]:
    """Make wheels with those options and unpack them as pip does; returns the package."""

    def make(*options: object) -> Path:
        command = ["wheel", sample_bundle, "--package", "sample_kernels", "--out", tmp_path / "wheels", *options]
        assert main([str(item) for item in command]) == 0
        for wheel in (tmp_path / "wheels").iterdir():
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(tmp_path / "site")
        return tmp_path / "site" / "sample_kernels"

    return make


def load(package: Path) -> str:
    return run_python(LOAD, package.parent)


@pytest.mark.parametrize("split", [(), ("--split-arch",)], ids=["whole", "split"])
def test_a_signed_package_loads_its_own_bundle_and_no_other(
    split: tuple[str, ...], install: Callable[..., Path], keys: Path
) -> None:
    package = install("--sign", keys / "release", *split)
    bundle = package / "_bundle"
    assert verify(bundle, [public_key(keys / "release.pub")]) == []
    assert load(package) == " ".join(Manifest.read(bundle).kernels)
    content = (bundle / "manifest.json").read_bytes()
    (bundle / "manifest.json").write_bytes(content + b"\n")
    assert load(package).startswith("SignatureError the signature of")
    (bundle / "manifest.json").write_bytes(content)
    (bundle / "manifest.sig").unlink()
    assert "is not signed" in load(package)


def test_a_package_refuses_another_bundle_of_its_signer(install: Callable[..., Path], keys: Path) -> None:
    package = install("--sign", keys / "release")
    bundle = package / "_bundle"
    forge(bundle, lambda data: data["toolchain"].update(cuda="99"))
    (bundle / "manifest.sig").write_bytes(
        Signer.read(keys / "release").signature((bundle / "manifest.json").read_bytes())
    )
    assert load(package).startswith("DigestError")


def test_a_package_may_trust_several_keys(install: Callable[..., Path], keys: Path) -> None:
    pinned = ["--key", keys / "release.pub", "--key", keys / "next.pub"]
    package = install("--sign", keys / "next", *pinned)
    assert load(package) == " ".join(Manifest.read(package / "_bundle").kernels)
    text = (package / "__init__.py").read_text()
    for name in ("release", "next"):
        assert public_key(keys / f"{name}.pub").hex() in text


def test_a_package_without_a_key_pins_nothing(install: Callable[..., Path]) -> None:
    package = install()
    assert "_KEYS" not in (package / "__init__.py").read_text()
    assert not (package / "_bundle" / "manifest.sig").exists()
    assert load(package) == " ".join(Manifest.read(package / "_bundle").kernels)


def test_wheels_of_a_signed_bundle_that_are_not_signed_are_announced(
    sample_bundle: Path, keys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    signed = shutil.copytree(sample_bundle, tmp_path / "bundle")
    assert main(["sign", str(signed), "--key", str(keys / "release")]) == 0
    for options, warned in ((), True), (("--sign", str(keys / "release")), False), (("--sign", "none"), False):
        capsys.readouterr()
        assert main(["wheel", str(signed), "--out", str(tmp_path / "wheels"), *options]) == 0
        said = capsys.readouterr().err
        assert (f"warning: `{signed}` is signed" in said and "`--sign KEY`" in said) is warned


def test_a_signer_that_is_not_pinned_is_refused(keys: Path) -> None:
    with pytest.raises(UsageError, match="does not pin its public key"):
        choose_signing(str(keys / "release"), [keys / "next.pub"])


def test_pinning_without_signing_is_refused_unless_it_is_meant(keys: Path) -> None:
    with pytest.raises(UsageError, match="no private key signs its bundle"):
        choose_signing(None, [keys / "release.pub"])
    assert choose_signing("none", [keys / "release.pub"]) is None
    assert choose_signing(None, []) is None


# Projects


@pytest.fixture
def project(keys: Path, tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "kernels").mkdir(parents=True)
    (root / "kernels" / "none.py").touch()
    (root / "pyproject.toml").write_text(PROJECT)
    for name in ("release", "next"):
        (root / f"{name}.pub").write_bytes(public_path(keys / name).read_bytes())
    return root


def test_a_project_pins_its_keys_and_is_signed_by_one_of_them(project: Path, keys: Path) -> None:
    read = read_project(project)
    signing = read.signed(str(keys / "next")).signing
    assert signing is not None
    assert signing.trusted == (public_key(keys / "release.pub"), public_key(keys / "next.pub"))
    assert signing.signer.public == public_key(keys / "next.pub")
    assert read.signed("none").signing is None
    with pytest.raises(UsageError, match="no private key signs its bundle"):
        read.signed(None)


def test_frontends_name_the_private_key() -> None:
    assert ConfigSettings.parse({"sign": "/secure/release"}).sign == ("/secure/release",)


def test_a_source_distribution_holds_the_public_keys(project: Path, tmp_path: Path) -> None:
    with tarfile.open(write_sdist(read_project(project), tmp_path, None)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"release.pub", "next.pub"} <= names


def test_a_project_names_its_keys_itself(project: Path, keys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["wheel", str(project), "--sign", str(keys / "next"), "--key", str(keys / "next.pub")]) == 2
    assert "its pyproject.toml states package, version and keys" in capsys.readouterr().err
    assert main(["wheel", str(project)]) == 2
    assert "no private key signs its bundle" in capsys.readouterr().err
