"""What torch does not document is used in one file."""

from __future__ import annotations

import re
from pathlib import Path

import aot_runtime

# Names in quotes are of modules whose kernels are captured.
UNDOCUMENTED = re.compile(r"(?<!\")\btorch\._\w+|\b_current_level\b|\._schema\b|\._destroy\b")


def test_what_torch_does_not_document_is_used_in_one_file() -> None:
    folder = Path(aot_runtime.__file__).parent
    found = {path.name for path in folder.rglob("*.py") if UNDOCUMENTED.search(path.read_text())}
    assert found == {"torch_internals.py"}
