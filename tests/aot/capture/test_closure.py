"""The files that the build cache watches are those of the modules that a captured call leads to."""

from __future__ import annotations

import importlib
import sys
import zipfile
from pathlib import Path

import pytest

from aot.capture.closure import source_files
from aot.files import sha256_of


def test_the_file_of_a_module_in_an_archive_is_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "library.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("zipped_kernels/__init__.py", "")
        file.writestr("zipped_kernels/norms.py", "n = 2\n")
    monkeypatch.syspath_prepend(archive)
    importlib.import_module("zipped_kernels.norms")
    modules = ["zipped_kernels", "zipped_kernels.norms"]
    assert source_files(modules) == {str(archive): sha256_of(archive)}
    for module in modules:
        monkeypatch.delitem(sys.modules, module)
