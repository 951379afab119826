"""Whose a module is."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path

import pytest
from aot_runtime.serving.values.libraries import takes_part, uses_cute_dsl


def test_settings_of_torchs_own_kernels_count_as_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch._vendor.lib.settings", "torch.nn.functions"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    assert uses_cute_dsl("torch._vendor.lib.settings") and not uses_cute_dsl("torch.nn.functions")
    assert not uses_cute_dsl("torch._vendor.lib.not_loaded")


def test_a_file_beside_a_script_may_be_called_as_a_module_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not takes_part("json") and not takes_part("os.path") and not takes_part("this")
    (tmp_path / "nturl2path.py").write_text("def scale(v):\n    return v\n")
    monkeypatch.delitem(sys.modules, "nturl2path", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("nturl2path")
    assert takes_part("nturl2path")
    monkeypatch.delitem(sys.modules, "nturl2path")
