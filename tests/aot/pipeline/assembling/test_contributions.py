"""What stays of a bundle when a build adds to it, and files that are taken only as they were described."""

from __future__ import annotations

import hashlib
from itertools import permutations
from pathlib import Path

import pytest
from aot_runtime.arch import Arch
from aot_runtime.description.records import FileRecord
from contributed import contribution, file, kernel

from aot.bundle.manifest import Manifest
from aot.errors import BuildError
from aot.pipeline.assembling.contributions import Contribution, File, not_settled, remaining, still_missing

SM80, SM90 = Arch.parse("sm_80"), Arch.parse("sm_90a")


def contracts(*names: str) -> dict[str, File]:
    return {f"contracts/{name}.py": file(name) for name in names}


def test_kernels_that_the_build_gives_are_left_out_and_the_others_stay_as_they_are() -> None:
    old = contribution(kernel("add", "sm_80"), kernel("add", "sm_90a"), kernel("mul", "sm_80"))
    left = remaining(old, contribution(kernel("add", "sm_80", code="new")))
    assert left.kernels == {pair: old.kernels[pair] for pair in (("add", SM90), ("mul", SM80))}


def failures(*pairs: tuple[str, str]) -> tuple[dict[str, str], ...]:
    return tuple({"kernel": name, "arch": arch} for name, arch in pairs)


def bundle_of(one: Contribution) -> Manifest:
    kernels = {kernel.name: kernel.signature for kernel in one.kernels.values()}
    return Manifest("b", False, kernels, {}, failures=one.failures)


ADD, MUL, FILE = ("add", "sm_80"), ("mul", "sm_80"), ("", "")  # a failure without a kernel is of a file


@pytest.mark.parametrize(
    ("given", "failed", "is_all", "left"),
    [
        ([ADD], [], False, [MUL, FILE]),  # mul failed entirely, and nobody tried it again
        ([("add", "sm_90a")], [], True, [ADD, MUL, FILE]),
        ([ADD, MUL], [], False, [FILE]),  # the file may hold kernels that were not selected
        ([ADD, MUL], [], True, []),
        ([MUL], [], True, [ADD, FILE]),  # what the file may hold for the rest of the bundle is still missing
        ([ADD], [MUL], True, []),  # the build itself says what failed again
    ],
)
def test_what_failed_is_missing_until_it_is_built(
    given: list[tuple[str, str]], failed: list[tuple[str, str]], is_all: bool, left: list[tuple[str, str]]
) -> None:
    old = bundle_of(contribution(kernel("add", "sm_80"), failures=failures(ADD, MUL, FILE)))
    new = contribution(*(kernel(name, arch) for name, arch in given), failures=failures(*failed))
    assert still_missing(old, new, is_all=is_all) == failures(*left)


def test_a_bundle_that_is_joined_with_what_it_lacks_no_longer_lacks_it() -> None:
    lacking = contribution(kernel("add", "sm_80"), failures=failures(MUL, FILE))
    whole = contribution(kernel("mul", "sm_80"))
    partly = contribution(kernel("mul", "sm_80"), failures=failures(MUL))
    for order in permutations([lacking, whole]):
        assert sum((one.failures for one in not_settled(order)), ()) == failures(FILE)
    assert [one.failures for one in not_settled([lacking, partly])] == [failures(MUL, FILE), failures(MUL)]


def test_a_contract_stays_with_its_kernel_and_shared_files_with_any_contract() -> None:
    old = contribution(
        kernel("add", "sm_80"), kernel("mul", "sm_80"), contracts=contracts("add", "mul", "_shared", "_old")
    )
    left = remaining(old, contribution(kernel("add", "sm_90a"), contracts=contracts("add", "_shared")))
    assert left.contracts.keys() == {"contracts/mul.py", "contracts/_old.py"}
    moved = remaining(old, contribution(kernel("add", "sm_90a"), contracts=contracts("rows/add", "rows/_shared")))
    assert moved.contracts.keys() == {f"contracts/{name}.py" for name in ("mul", "_shared", "_old")}
    only = contribution(kernel("add", "sm_80"), contracts=contracts("add", "_shared"))
    # The contract is gone from the source.
    assert remaining(only, contribution(kernel("add", "sm_90a"))).contracts == {}


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
