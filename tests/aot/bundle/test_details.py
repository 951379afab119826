"""``details/<arch>.json``: one kernel's variants are found without parsing all, and are the same as if all were."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from aot_runtime.arch import Arch
from aot_runtime.errors import BundleError

from aot.bundle.details import details_text, read_details

ARCH = Arch.parse("sm_90a")


def variant(name: str, kernel: str, **more: object) -> dict[str, object]:
    launch = {
        "registers": 1, "static_shared_memory": 0, "dynamic_shared_memory": None, "block": None, "cluster": None,
        "local_memory": 0,
    }  # fmt: skip
    return {
        "name": name, "kernel": kernel, "function": kernel, "symbol": name, "cubin_sha256": [], "cubin_bytes": 0,
        "launches": [launch], "verified_on": [], **more,
    }  # fmt: skip


VARIANTS = [
    variant("add__f16", "add"),
    variant("mul__f16", "mul", point={"like": '"kernel": "add"'}),
    variant("odd", 'quo"ted\nname\u00e9'),
    variant("add__f32", "add"),
    variant("nested", "mul", point={"kernel": "add"}),
]


@pytest.mark.parametrize("indent", [None, 1])
def test_one_kernels_variants_are_those_among_all(tmp_path: Path, indent: int | None) -> None:
    path = tmp_path / "sm_90a.json"
    path.write_text(details_text(ARCH, VARIANTS))
    assert json.loads(path.read_text()) == {"arch": "sm_90a", "variants": VARIANTS}
    if indent is not None:  # laid out by another program
        path.write_text(json.dumps(json.loads(path.read_text()), indent=indent))
    assert read_details(path) == VARIANTS
    for kernel in ("add", "mul", 'quo"ted\nname\u00e9', "absent"):
        assert read_details(path, kernel) == [item for item in VARIANTS if item["kernel"] == kernel]


def test_no_variants_are_well_formed(tmp_path: Path) -> None:
    path = tmp_path / "sm_90a.json"
    path.write_text(details_text(ARCH, []))
    assert read_details(path) == read_details(path, "add") == []


@pytest.mark.parametrize("kernel", [None, "add"])
def test_damage_is_named(tmp_path: Path, kernel: str | None) -> None:
    path = tmp_path / "sm_90a.json"
    path.write_text(details_text(ARCH, VARIANTS).replace('"name": "add__f16"', '"name": add__f16'))
    with pytest.raises(BundleError, match="is not well-formed"):
        read_details(path, kernel)
