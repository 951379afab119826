"""Locks of an entry library in a process that was forked, and forks while a library is being opened."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import aot_runtime.native
import pytest
from standin import compiler

pytestmark = pytest.mark.usefixtures("ends")


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = tmp_path_factory.mktemp("lock") / "shim.so"
    flags = ["-std=gnu99", "-O1", "-fPIC", "-shared", f"-I{aot_runtime.native.source_directory()}"]
    source = Path(__file__).with_name("lock_shim.c")
    subprocess.run([*compiler(), *flags, str(source), "-pthread", "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


def test_a_child_that_was_forked_while_locks_were_made_makes_its_own(shim: ctypes.CDLL) -> None:
    shim.shim_lock_of_a_child()


def test_a_fork_waits_for_a_thread_that_opens_a_library(shim: ctypes.CDLL) -> None:
    assert shim.shim_fork_beside_an_opening() == 0


def test_a_library_that_forks_while_it_is_opened_does_not_wait_for_itself(shim: ctypes.CDLL) -> None:
    assert shim.shim_fork_within_an_opening() == 0
    assert shim.shim_fork_beside_an_opening() == 0
