"""What torch does not document is used in one file."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import aot_runtime
import pytest

FOLDER = Path(aot_runtime.__file__).parent
USED = FOLDER / "frameworks" / "torch_internals.py"
# Names in quotes are of modules whose kernels are captured.
UNDOCUMENTED = re.compile(r"(?<!\")\btorch\._\w+|\b_current_level\b|\._schema\b|\._destroy\b")


def test_what_torch_does_not_document_is_used_in_one_file() -> None:
    found = {path.name for path in FOLDER.rglob("*.py") if UNDOCUMENTED.search(path.read_text())}
    assert found == {"torch_internals.py"}


@pytest.mark.torch
def test_this_torch_has_what_the_shortcut_asks_for() -> None:
    pytest.importorskip("torch", reason="these are names of torch")
    assert runpy.run_path(str(USED))["IS_KNOWN"]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("module", "name"), [("torch._C", "_len_torch_dispatch_stack"), ("torch.autograd.forward_ad", "_current_level")]
)
def test_a_torch_without_one_of_these_names_gets_no_shortcut(
    module: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="these are names of torch")
    monkeypatch.delattr(f"{module}.{name}")
    assert not runpy.run_path(str(USED))["IS_KNOWN"]
