"""Reading ``provenance.json``, which a stranger may have written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aot_runtime.errors import ManifestError

from aot.bundle.provenance import read_provenance


def build_that_says(built: dict[str, Any]) -> bytes:
    record = {"source": {"files": {}, "linked": {}}, "versions": {}, "built": {"add": built}}
    return json.dumps({"builds": [record]}).encode()


def test_what_a_build_says_of_a_kernel_is_read() -> None:
    built = {"archs": ["sm_90a"], "files": {"kernels/add.py": "0" * 64}, "modules": {"kernels.add": "kernels/add.py"}}
    (record,) = read_provenance(build_that_says(built), "provenance.json")
    assert record["built"] == {"add": built}


@pytest.mark.parametrize("name", ["../add.py", "/etc/passwd", "kernels/../../add.py", "..", "", "add\n.py"])
def test_a_source_outside_the_tree_is_refused(name: str) -> None:
    with pytest.raises(ManifestError):
        read_provenance(build_that_says({"archs": [], "files": {name: "0" * 64}, "modules": {}}), "provenance.json")
