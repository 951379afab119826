"""TVM-FFI is found without importing it, and imported without torch, which it would import in turn."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aot import versions
from aot.errors import ToolchainError

FIND = """
import sys
from pathlib import Path
from aot import versions
from aot.pipeline.linking import linkers
assert versions.tvm_ffi_library().is_file()
with linkers(Path(sys.argv[1]), Path(sys.argv[1]), 1, None) as linker_for:
    assert (versions.tvm_ffi_headers() / "tvm" / "ffi" / "c_api.h").is_file()
sys.exit("tvm_ffi" in sys.modules)
"""


def test_its_files_are_found_and_nothing_is_imported(tmp_path: Path) -> None:
    path = os.pathsep.join(map(os.path.abspath, sys.path))
    subprocess.run([sys.executable, "-c", FIND, str(tmp_path)], env={**os.environ, "PYTHONPATH": path}, check=True)


def test_a_missing_tvm_ffi_is_said_with_the_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "tvm_ffi", raising=False)
    with pytest.raises(ToolchainError) as error:
        versions.tvm_ffi_headers()
    assert "apache-tvm-ffi" in str(error.value.hint)


def test_torch_is_missing_while_tvm_ffi_is_imported_and_there_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with versions.without_torch(), pytest.raises(ImportError):
        import torch
    import torch

    assert torch.__file__ == str(tmp_path / "torch.py")
    with versions.without_torch():  # it is imported already, and may be in use
        assert sys.modules["torch"] is torch
    del sys.modules["torch"]
