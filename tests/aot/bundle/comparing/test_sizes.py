"""Every byte of a bundle belongs to one purpose."""

from __future__ import annotations

from pathlib import Path

import pytest

from aot.bundle.comparing.sizes import purpose_of, shares
from aot.bundle.manifest import Manifest


@pytest.mark.parametrize(
    ("name", "purpose"),
    [
        ("lib/x86_64-linux-gnu/sm_90a/add.so", ("kernels", "sm_90a", "add")),
        ("lib/x86_64-linux-gnu/libb.so", ("entry points", "", "")),
        ("lib/x86_64-linux-gnu/libb_cuda.so", ("CUDA runtime and launch support", "", "")),
        ("lib/x86_64-linux-gnu/libb_sm_80.a", ("archives for static linking", "sm_80", "")),
        ("details/sm_100f.json", ("descriptions", "sm_100f", "")),
        ("sbom.cdx.json", ("descriptions", "", "")),
        ("include/b.h", ("headers", "", "")),
        ("contracts/add.py", ("contracts", "", "")),
        ("tuning/nvidia_h200_132.json", ("tables", "", "")),
        ("kept/sm_80/add__f32.ptx", ("kept intermediate files", "", "")),
    ],
)
def test_a_file_has_a_purpose(name: str, purpose: tuple[str, str, str]) -> None:
    assert purpose_of(name, "b") == purpose


def test_the_shares_are_all_of_the_bundle(small_bundle_path: Path) -> None:
    manifest = Manifest.read(small_bundle_path)
    found = shares(manifest)
    assert sum(share.size for share in found) == sum(record.size for record in manifest.files.values())
    assert sum(share.files for share in found) == len(manifest.files)
    assert [share.size for share in found] == sorted((share.size for share in found), reverse=True)
    assert {share.arch for share in found} == {"", "sm_80", "sm_90a"}
    assert {share.kernel for share in found} == {"", "fill_epilogue", "fill_stream_zero"}
