"""Errors as people read them: plain text, right numbers."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest

from aot.errors import NO_TEMPORARY, Failure, counted, failure_lines, plain_text, system_hint


def test_what_a_compiler_colours_is_plain_in_a_failure() -> None:
    coloured = "\x1b[1m\x1b[91merror\x1b[0m: \x1b[38;5;9mtype mismatch\x1b[m"
    failure = Failure("add__f32", coloured, f"{coloured}\n  \x1b]8;;http://x\x07here\x1b]8;;\x07", "add", "sm_80")
    assert failure.message == "error: type mismatch"
    assert failure.log == "error: type mismatch\n  here"
    assert not any("\x1b" in line for line in failure_lines([failure]))


def test_text_without_escape_codes_is_left_alone() -> None:
    for text in ("", "a [1m b", "tensor[0m]", "x\ny\tz"):
        assert plain_text(text) == text
    assert plain_text("cut off \x1b[3") == "cut off 3"
    assert plain_text("\x1b") == ""


def test_one_is_not_many() -> None:
    assert [counted(number, "kernel") for number in (0, 1, 2)] == ["0 kernels", "1 kernel", "2 kernels"]


def test_one_cause_is_one_report_and_frames_are_for_those_who_ask() -> None:
    failures = [
        Failure(f"add__{t}", "k.py:3: no", "printed", "add", arch, "frame")
        for t in "ab"
        for arch in ("sm_80", "sm_90a")
    ]
    failures.append(Failure("mul", "k.py:9: no", "", "mul", "sm_80"))
    first, log, second = failure_lines(failures)
    assert first.startswith("failed: sm_80 add__a") and first.endswith("k.py:3: no")
    assert all(part in first for part in ("3", "sm_90a"))
    assert "printed" in log
    assert second == "failed: sm_80 mul: k.py:9: no"
    verbose = list(failure_lines(failures, verbose=True))
    assert all(f"{one.arch} {one.variant}" in verbose[0] for one in failures[:4])
    assert sum("frame" in line for line in verbose) == 1


def test_the_disk_that_is_full_is_that_of_the_copy_and_not_of_what_was_copied() -> None:
    error = OSError(errno.ENOSPC, "No space left on device", "here/add.so", None, "there/add.so")
    assert system_hint(error) == "the disk of `there/add.so` is full; free some space there"
    alone = OSError(errno.ENOSPC, "No space left on device", "there/add.so")
    assert system_hint(alone) == system_hint(error)


def test_without_a_folder_for_temporary_files_one_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/nowhere"])
    with pytest.raises(FileNotFoundError) as caught:
        tempfile.gettempdir()
    assert system_hint(caught.value) == NO_TEMPORARY


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENAMETOOLONG, "use a shorter name"),
        (errno.ELOOP, "a link that leads to itself"),
        (errno.EFBIG, "`ulimit -f`"),
    ],
)
def test_a_path_that_cannot_be_has_a_next_step(number: int, said: str) -> None:
    assert said in (system_hint(OSError(number, os.strerror(number), "a")) or "")


def test_a_folder_that_a_path_only_passes_through_is_missing_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    error = OSError(errno.ENOENT, os.strerror(errno.ENOENT), "missing/../key")
    assert f"there is no folder `{tmp_path}/missing/..`" in (system_hint(error) or "")
