"""Every ingredient of a compiled variant moves its key; what does not shape the code leaves it."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aot_runtime.arch import Arch

from aot.cache import keys
from aot.cache.recall import Request
from aot.compile.messages import KernelClosure, KernelInfo, Options, VariantInfo
from aot.files import sha256_of
from aot.hosts import Host
from aot.selection.subjects import VariantTable

AOT = Path(keys.__file__).parent.parent
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


def imported(path: Path) -> Iterator[Path]:
    """The files of ours that a file imports, at its top or inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            folder = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            yield from (file for alias in node.names if (file := folder / f"{alias.name}.py").is_file())
            yield from (file for file in (folder.with_suffix(".py"), folder / "__init__.py") if file.is_file())


def closure(*starts: str) -> set[str]:
    todo, seen = [AOT / start for start in starts], set()
    while todo:
        path = todo.pop()
        if path not in seen:
            seen.add(path)
            todo += imported(path)
    return {path.relative_to(AOT).as_posix() for path in seen}


def counted(patterns: Iterable[str]) -> set[str]:
    return {path.relative_to(AOT).as_posix() for path in keys._ours(patterns)}


def test_all_of_our_code_that_a_compile_runs_is_in_its_key() -> None:
    ran = closure("compile/worker.py")
    assert {"compile/launcher.py", "binary/elf.py", "binary/cubin.py"} <= ran
    # Sentences, digests and temporary folders, and where packages are installed.
    assert ran - counted(keys._GENERATION) == {"errors.py", "files.py", "versions.py"}
    assert not counted(keys._GENERATION) & {"cli/report.py", "bundle/publish.py", "pipeline/build.py"}
    assert {"aot_dispatch.c", "aot_select.h"} <= {path.name for path in keys._runtime_sources()}


def test_all_of_our_code_that_links_is_in_its_key() -> None:
    ran = {name for name in closure("link/libraries.py", "link/static.py", "link/zig.py") if "/" in name}
    # What these three stages decide reaches the linker as text, which is in the key itself.
    before = {name for name in ran if name.startswith(("compile/", "declare/", "selection/"))}
    assert ran - before - counted(keys._LINKING) == set()
    assert {"selection/tables.py", "compile/launcher.py"} <= counted(keys._LINKING)


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


def test_how_values_are_compared_is_in_the_key_of_a_captured_variant_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(captured: dict[str, Any] | None) -> dict[str, str]:
        kernel = dataclasses.replace(BASE["kernel"], captured=captured)
        variants, arch, closure = [BASE["variant"]], BASE["arch"], BASE["closure"]
        return keys.variant_keys(kernel, variants, arch, closure, options=Options(), cuda=12)

    before = found(None), found({"key": "k"})
    monkeypatch.setattr(keys, "comparing", lambda: "changed")
    assert found(None) == before[0]
    assert found({"key": "k"}) != before[1]


@pytest.mark.parametrize("name", ["forms.py", "held.py", "function_forms.py", "resolving.py", "sitecustomize.py"])
def test_all_of_our_code_that_words_values_counts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = keys.comparing.__wrapped__()
    monkeypatch.setattr(keys, "sha256_of", lambda path: "changed" if path.name == name else sha256_of(path))
    assert keys.comparing.__wrapped__() != before


HOST = Host.native()
REQUEST = Request("/kernels", ("sm90",), (), Options())


@pytest.mark.parametrize(
    "changes",
    [
        {"source": "/other"},
        {"archs": ("sm80",)},
        {"select": ("a*",)},
        {"options": Options(cuda=13)},
        {"families": ("rows",)},
        {"tilings": "all"},
    ],
    ids=str,
)
def test_every_ingredient_of_a_request_moves_its_key(changes: dict[str, Any]) -> None:
    assert keys.request_key(dataclasses.replace(REQUEST, **changes)) != keys.request_key(REQUEST)


def test_the_key_of_a_bundle_is_of_the_whole_record() -> None:
    assert keys.bundle_key(Options()) == keys.bundle_key(Options()) != keys.bundle_key(Options(line_info=True))


def test_every_ingredient_of_a_library_moves_its_key() -> None:
    own = keys.library_key(["kernel", "k"], "k.so", HOST)
    others = [
        keys.library_key(["kernel", "l"], "k.so", HOST),
        keys.library_key(["kernel", "k"], "l.so", HOST),
        keys.library_key(["kernel", "k"], "k.so", Host.native((2, 31))),
    ]
    assert len({own, *others}) == 4
