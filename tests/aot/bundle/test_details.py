"""``details/<arch>.json``: one kernel's variants are found without parsing all, and are the same as if all were."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from aot_runtime.arch import Arch
from aot_runtime.description.records import SCHEMA, FileRecord
from aot_runtime.errors import BundleError, DigestError

from aot.bundle.details import (
    LaunchDetails,
    RequirementDetails,
    VariantDetails,
    WorkDetails,
    details_text,
    read_details,
)
from aot.records import encode

ARCH = Arch.parse("sm_90a")


def variant(name: str, kernel: str, **more: Any) -> VariantDetails:
    launch = LaunchDetails("entry", 1, 0, None, None, (1, 1, 1), 0)
    requirement = RequirementDetails("x.shape[0]", "extent", 0, 2**63 - 1, 0)
    fields: dict[str, Any] = {
        "function": kernel, "point": {"dtype": "f16"}, "symbol": name, "cubin_sha256": (64 * "0",), "cubin_bytes": 1,
        "launches": (launch,), "requirements": (requirement,), "uses_tensors": True,
    }  # fmt: skip
    return VariantDetails(name, kernel, **{**fields, **more})


VARIANTS = [
    variant("add__f16", "add"),
    variant("mul__f16", "mul", point={"like": '"kernel": "add"'}),
    variant("odd", 'quo"ted\nname\u00e9'),
    variant("add__f32", "add", verified_on=("NVIDIA H200 2026-01-02",)),
    variant("nested", "mul", point={"kernel": "add"}),
    variant("tuned", "mul", tuned_by={"n": "x.shape[0]"}),
    variant("portable", "mul", written_for="sm_80"),
    variant("modelled", "mul", work=WorkDetails({"n": 8}, {}, "4 * n", 1, 1)),
]


def written(variants: list[VariantDetails]) -> list[dict[str, object]]:
    """As they are written: without an empty field that earlier versions did not have."""
    later = ("tuned_by", "written_for", "work")
    return [{name: value for name, value in row.items() if name not in later or value} for row in encode(variants)]


@pytest.mark.parametrize("indent", [None, 1])
def test_one_kernels_variants_are_those_among_all(tmp_path: Path, indent: int | None) -> None:
    path = tmp_path / "sm_90a.json"
    path.write_text(details_text(ARCH, VARIANTS))
    assert json.loads(path.read_text()) == {"schema": SCHEMA, "arch": "sm_90a", "variants": written(VARIANTS)}
    if indent is not None:  # laid out by another program
        path.write_text(json.dumps(json.loads(path.read_text()), indent=indent))
    assert read_details(path) == VARIANTS
    for kernel in ("add", "mul", 'quo"ted\nname\u00e9', "absent"):
        assert read_details(path, kernel) == [item for item in VARIANTS if item.kernel == kernel]


def test_only_code_that_says_what_it_was_written_for_is_portable() -> None:
    assert variant("v", "k", written_for="sm_80").is_portable(ARCH)
    assert not variant("v", "k", written_for="sm_90a").is_portable(ARCH)
    assert not variant("v", "k").is_portable(ARCH)  # of an earlier version, which did not record it


def test_no_variants_are_well_formed(tmp_path: Path) -> None:
    path = tmp_path / "sm_90a.json"
    path.write_text(details_text(ARCH, []))
    assert read_details(path) == read_details(path, "add") == []


PROBLEMS = {
    "not JSON": ('"name": "add__f16"', '"name": add__f16', "not valid JSON"),
    "a number for a text": ('"symbol": "add__f16"', '"symbol": 1', "symbol: expected str, got 1"),
    "a float for a number": ('"registers": 1', '"registers": 1.5', "launches: registers: expected int, got 1.5"),
    "a truth for a number": ('"registers": 1', '"registers": true', "expected int, got True"),
    "no launches": ('"launches": [{', '"launches": [], "was": [{', "'add__f16' has no launches"),
    "a block of two": ('"cluster": [1, 1, 1]', '"cluster": [1, 1]', "cluster: expected 3 items, got 2"),
    "half a letter": ('"label": "x.shape[0]"', '"label": "\\ud800"', "label: expected str"),
    "a missing field": ('"uses_tensors": true', '"was": true', "`uses_tensors` is missing"),
    "a schema of long ago": (f'"schema": {SCHEMA}', '"schema": 1', f"it has schema 1, this version reads {SCHEMA}"),
}


@pytest.mark.parametrize("kernel", [None, "add"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_damage_is_named(tmp_path: Path, problem: str, kernel: str | None) -> None:
    old, new, message = PROBLEMS[problem]
    path, text = tmp_path / "sm_90a.json", details_text(ARCH, VARIANTS)
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(BundleError, match=f"is not well-formed: .*{re.escape(message)}") as caught:
        read_details(path, kernel)
    assert "aot verify" in (caught.value.hint or "")


def test_fields_that_a_later_version_may_add_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "sm_90a.json"
    later = details_text(ARCH, VARIANTS).replace('"symbol"', '"added": [1], "symbol"')
    path.write_text(later.replace(f'"schema": {SCHEMA}', f'"schema": {SCHEMA + 1}'))
    assert read_details(path) == VARIANTS
    assert read_details(path, "add") == [VARIANTS[0], VARIANTS[3]]


@pytest.mark.parametrize("kernel", [None, "add"])
def test_details_are_compared_with_what_a_manifest_says(tmp_path: Path, kernel: str | None) -> None:
    path = tmp_path / "sm_90a.json"
    path.write_text(details_text(ARCH, VARIANTS))
    expected = FileRecord.of(path.read_bytes())
    assert read_details(path, kernel, expected) == read_details(path, kernel)
    path.write_text(details_text(ARCH, VARIANTS).replace('"registers": 1', '"registers": 2'))
    with pytest.raises(DigestError, match="not what its manifest says"):
        read_details(path, kernel, expected)


def test_missing_details_are_an_error_of_the_bundle(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="is missing"):
        read_details(tmp_path / "sm_90a.json")
