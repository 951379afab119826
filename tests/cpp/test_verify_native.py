"""``verify`` looks into what C programs use: the note on the entry library, and the archives."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from forging import accept

from aot.bundle.verifying.verify import verify
from tests.cpp.conftest import HOST, Project

FOLDER = f"lib/{HOST}"


def record_again(bundle: Path) -> None:
    """Let the manifest agree with the files, so that only what they say can be wrong."""
    accept(bundle)


def rename_in(path: Path, old: bytes, new: bytes) -> None:
    assert len(old) == len(new)
    path.write_bytes(path.read_bytes().replace(old, new))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lib: (lib / "libbundle_sm_80.a").unlink(), "libbundle_sm_80.a is missing"),
        (lambda lib: (lib / "libbundle_sm_80.a").rename(lib / "libbundle_sm_75.a"), "an archive of nothing"),
        (lambda lib: (lib / "libbundle.a").write_bytes(b"no archive"), "cannot be read: not an archive"),
        (lambda lib: rename_in(lib / "libbundle_sm_90a.a", b"aot_bundle_kernel__fill__sm_90a", b"aot_bundle_kernel__fall__sm_90a"),
         "lacks aot_bundle_kernel__fill__sm_90a"),
        (lambda lib: rename_in(lib / "libbundle_sm_90a.a", b"aot_bundle_kernel__fill__sm_90a", b"aot_bandle_kernel__fill__sm_90a"),
         "which other bundles may define too"),
    ],
)  # fmt: skip
def test_verify_sees(project: Project, tmp_path: Path, change: Callable[[Path], object], said: str) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(project.bundle, bundle)
    assert verify(bundle) == []
    change(bundle / FOLDER)
    record_again(bundle)
    assert any(said in problem for problem in verify(bundle)), verify(bundle)
