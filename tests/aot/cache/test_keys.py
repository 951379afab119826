"""Every ingredient of a compiled variant moves its key; what does not shape the code leaves it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from aot_runtime.arch import Arch

from aot.cache import keys
from aot.compile.messages import KernelClosure, KernelInfo, Options, VariantInfo
from aot.selection.requirements import VariantTable

TABLE = VariantTable("k__f32", "k", (), (), None, -1, 2, True)
BASE: dict[str, Any] = {
    "kernel": KernelInfo("k", "doc", "k.py:3", (), (), ("k",), (Arch.parse("sm_90a"),), {}),
    "variant": VariantInfo("k", {"dtype": "f32"}, TABLE, "Tensor(f32)"),
    "arch": Arch.parse("sm_90a"),
    "options": Options(),
    "cuda": 12,
    "closure": KernelClosure({"k": "aa"}, {"numpy": "2.0"}, {"TILE": None}),
    "cutlass": {"nvidia_cutlass_dsl": "4.8.1", "nvidia_cutlass_dsl_libs_cu12": "4.8.1"},
    "python": "3.11",
    "code": "cc",
}


def key(**changes: Any) -> str:
    settings = {**BASE, **changes}
    return keys.variant_key(settings.pop("kernel"), settings.pop("variant"), settings.pop("arch"), **settings)


def changed(what: str, /, **fields: Any) -> dict[str, Any]:
    return {what: dataclasses.replace(BASE[what], **fields)}


@pytest.mark.parametrize(
    "changes",
    [
        changed("kernel", name="other"),
        changed("variant", point={"dtype": "f16"}),
        changed("variant", arguments="Tensor(f16)"),
        changed("variant", table=dataclasses.replace(TABLE, stream=-2)),
        {"arch": Arch.parse("sm_90")},
        {"options": Options(line_info=True)},
        {"options": Options(keep=("ptx",))},
        {"cuda": 13},
        changed("closure", modules={"k": "ab"}),
        changed("closure", modules={"k": "aa", "helper": "aa"}),
        changed("closure", distributions={"numpy": "2.1"}),
        changed("closure", environment={"TILE": "64"}),
        {"cutlass": {**BASE["cutlass"], "nvidia_cutlass_dsl": "4.8.2"}},
        {"cutlass": {**BASE["cutlass"], "nvidia_cutlass_dsl_libs_cu12": "4.8.2"}},
        {"cutlass": {**BASE["cutlass"], "nvidia_cutlass_dsl_extras": "1"}},
        {"python": "3.12"},
        {"code": "cd"},
    ],
    ids=str,
)
def test_every_ingredient_moves_the_key(changes: dict[str, Any]) -> None:
    assert key(**changes) != key()


def test_where_the_source_lies_matters_only_with_line_info() -> None:
    moved = changed("kernel", origin="/elsewhere/k.py:3")
    assert key(**moved) == key()
    lines = {"options": Options(line_info=True)}
    assert key(**moved, **lines) != key(**lines)


def test_documentation_leaves_the_key() -> None:
    assert key(**changed("kernel", doc="better words")) == key()


def test_every_cutlass_distribution_counts(tmp_path: Path) -> None:
    for name in ("nvidia_cutlass_dsl-4.8.1", "nvidia_cutlass_dsl_libs_cu13-4.8.1", "numpy-2.0"):
        (tmp_path / f"{name}.dist-info").mkdir()
    found = keys.cutlass_distributions([str(tmp_path)])
    assert found == {"nvidia_cutlass_dsl": "4.8.1", "nvidia_cutlass_dsl_libs_cu13": "4.8.1"}
    assert keys.cutlass_distributions().keys() >= {"nvidia_cutlass_dsl"}


def test_our_own_code_generation_counts_and_the_rest_of_our_code_does_not() -> None:
    counted = {path.name for path in keys._ours(keys._GENERATION)} | {path.name for path in keys._runtime_sources()}
    assert counted >= {
        "cute_dsl.py",
        "launcher.py",
        "v4_8.py",
        "requirements.py",
        "tables.py",
        "decision.py",
        "aot_dispatch.c",
    }
    assert not counted & {"report.py", "cli.py", "inspect.py", "publish.py"}


@pytest.mark.parametrize("digest", [keys.generation, keys.linking, keys.ourselves])
def test_a_changed_file_of_ours_changes_the_digest(digest: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest()
    digest.cache_clear()
    monkeypatch.setattr(keys, "sha256_of", lambda path: "0" if path.name == "tables.py" else "1")
    one = digest()
    digest.cache_clear()
    monkeypatch.setattr(keys, "sha256_of", lambda path: "1")
    assert len({before, one, digest()}) == 3
    digest.cache_clear()
