"""What a bundle says of where it came from."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aot_runtime.arch import Arch
from aot_runtime.errors import ManifestError

from aot.bundle.build_records import SourceRecord
from aot.bundle.provenance import read_provenance
from aot.compile.messages import Options
from aot.pipeline.assembling.provenance import build_record, joined, only
from aot.pipeline.settings import Settings

SM80, SM90 = Arch.parse("sm_80"), Arch.parse("sm_90a")


def test_a_build_records_its_options() -> None:
    source: SourceRecord = {"name": "add.py", "files": {"add.py": 64 * "1"}}
    linked = {"x86_64-linux-gnu/libcudart_static.a": 64 * "0"}
    record = build_record(
        Settings("add.py", ("sm_80",), options=Options(line_info=True, keep=("ptx",))), source, linked
    )
    assert record["options"] == {
        "cuda": None, "line_info": True, "keep": ["ptx"], "shared_cudart": False, "archives": True,
        "source": "declarations", "tilings": "core",
    }  # fmt: skip
    assert record["source"] == {**source, "linked": linked}
    assert set(record["versions"]) == {"python", "build_host"}


def built(**kernels: tuple[str, ...]) -> dict[str, Any]:
    files = {"files": {"add.py": "a"}, "modules": {}}
    return {"source": {"commit": "1"}, "built": {name: {"archs": [*archs], **files} for name, archs in kernels.items()}}


def test_builds_of_one_source_are_one_record_and_what_is_taken_out_goes_from_it() -> None:
    one, two = built(add=("sm_90a",)), built(add=("sm_80",), mul=("sm_80",))
    whole = built(add=("sm_80", "sm_90a"), mul=("sm_80",))
    assert joined([[one], [two]]) == joined([[two], [one]]) == (whole,)
    assert only([whole], [("add", SM90)]) == (one,)
    assert only([whole], [("add", SM80), ("mul", SM80)]) == (two,)
    assert only([whole], []) == ()
    unknown = {"source": {"commit": "1"}}  # by a version that recorded less
    assert only([unknown], []) == (unknown,)
    assert joined([[unknown], [one]]) == (unknown, one)


def test_builds_of_other_files_stay_apart() -> None:
    one, two = built(add=("sm_90a",)), built(add=("sm_80",))
    two["built"]["add"]["files"] = {"add.py": "b"}
    assert joined([[one], [two]]) == (one, two)


def test_records_of_several_bundles_are_joined_without_repetition() -> None:
    one, two, three = ({"source": {"commit": name}} for name in "123")
    assert joined([[one, two], [two, three], [one]]) == (one, two, three)


@pytest.mark.parametrize("name", ["../add.py", "/etc/passwd", "a//b"])
def test_sources_outside_the_tree_are_refused(name: str) -> None:
    built = {"archs": ["sm_90a"], "files": {name: "0" * 64}, "modules": {}}
    content = {"builds": [{"source": {}, "options": {}, "versions": {}, "built": {"add": built}}]}
    with pytest.raises(ManifestError):
        read_provenance(json.dumps(content).encode(), "provenance.json")
    built["files"] = {"add.py": "0" * 64}
    assert read_provenance(json.dumps(content).encode(), "provenance.json")
