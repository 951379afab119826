"""Locks of an entry library in a process that was forked."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import aot_runtime.native
import pytest
from standin import compiler


@pytest.mark.usefixtures("ends")
def test_a_child_that_was_forked_while_locks_were_made_makes_its_own(tmp_path: Path) -> None:
    library = tmp_path / "shim.so"
    flags = ["-std=gnu99", "-O1", "-fPIC", "-shared", f"-I{aot_runtime.native.source_directory()}"]
    source = Path(__file__).with_name("lock_shim.c")
    subprocess.run([*compiler(), *flags, str(source), "-pthread", "-o", str(library)], check=True)
    ctypes.CDLL(str(library)).shim_lock_of_a_child()
