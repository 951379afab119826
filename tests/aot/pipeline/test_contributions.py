"""What stays of a bundle when a build adds to it, and files that are taken only as they were described."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from aot_runtime.arch import Arch
from aot_runtime.manifest import FileRecord
from contributed import contribution, file, kernel

from aot.errors import BuildError
from aot.pipeline.contributions import File, remaining

SM80, SM90 = Arch.parse("sm_80"), Arch.parse("sm_90a")


def contracts(*names: str) -> dict[str, File]:
    return {f"contracts/{name}.py": file(name) for name in names}


def test_kernels_that_the_build_gives_are_left_out_and_the_others_stay_as_they_are() -> None:
    old = contribution(kernel("add", "sm_80"), kernel("add", "sm_90a"), kernel("mul", "sm_80"))
    left = remaining(old, contribution(kernel("add", "sm_80", code="new")))
    assert left.kernels == {pair: old.kernels[pair] for pair in (("add", SM90), ("mul", SM80))}


def test_failures_stay_with_the_kernels_that_they_are_of() -> None:
    failed = [{"kernel": name, "arch": arch} for name, arch in (("add", "sm_80"), ("mul", "sm_80"), ("", ""))]
    old = contribution(kernel("add", "sm_80"), kernel("mul", "sm_80"), failures=tuple(failed))
    left = remaining(old, contribution(kernel("add", "sm_80")))
    assert left.failures == ({"kernel": "mul", "arch": "sm_80"},)


def test_a_contract_stays_with_its_kernel_and_shared_files_with_any_contract() -> None:
    old = contribution(
        kernel("add", "sm_80"), kernel("mul", "sm_80"), contracts=contracts("add", "mul", "_shared", "_old")
    )
    left = remaining(old, contribution(kernel("add", "sm_90a"), contracts=contracts("add", "_shared")))
    assert left.contracts.keys() == {"contracts/mul.py", "contracts/_old.py"}
    only = contribution(kernel("add", "sm_80"), contracts=contracts("add", "_shared"))
    assert (
        remaining(only, contribution(kernel("add", "sm_90a"))).contracts == {}
    )  # the contract is gone from the source


def test_a_build_without_archives_takes_those_of_the_bundle_away() -> None:
    old = contribution(kernel("add", "sm_80"))
    assert remaining(old, contribution(kernel("mul", "sm_80"))).has_archives
    left = remaining(old, contribution(kernel("mul", "sm_80", archives=False), archives=False))
    assert not left.has_archives
    assert all(code.objects is None for one in left.kernels.values() for code in one.code.values())


def test_a_file_that_is_not_what_was_described_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "library.so"
    path.write_bytes(b"code")
    taken = File.at(path)
    assert taken.record == FileRecord(hashlib.sha256(b"code").hexdigest(), 4)
    link = tmp_path / "link"
    link.symlink_to(path)
    assert File(link, taken.record).checked() == path  # what an installed link leads to
    path.write_bytes(b"Code")
    for wrong in (taken, File(tmp_path / "gone", taken.record)):
        with pytest.raises(BuildError, match="is not what its manifest says") as caught:
            wrong.checked()
        assert caught.value.hint == "rebuild that bundle"
