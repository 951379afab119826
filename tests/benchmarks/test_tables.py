"""``docs/performance.md`` and ``docs/proven.md`` say what the files in ``benchmarks/results`` say."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest
from places import PROJECT

RESULTS = PROJECT / "benchmarks" / "results"


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tables", PROJECT / "benchmarks" / "tables.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_table_is_made_from_the_files(tables: ModuleType) -> None:
    text = tables.PAGE.read_text() + tables.PROVEN.read_text()
    assert tables.rewritten(text) == text, "run `python benchmarks/tables.py`"
    for name in (*tables.TABLES, *tables.FACTS):
        assert text.count(f"<!-- table: {name} -->") == 1


def test_a_changed_number_is_noticed(tables: ModuleType) -> None:
    text = tables.PAGE.read_text()
    changed = re.sub(r"\| \d+\.\d us", "| 99.9 us", text, count=1)
    assert changed != text
    assert tables.rewritten(changed) == text


def test_the_sentences_about_kernels_are_true() -> None:
    results = json.loads((RESULTS / "h200-kernels.json").read_text())["results"]
    others = [value for row in results if row["kernel"] != "gemm" for value in row["speedups"].values()]
    assert min(others) >= 0.99  # "Every kernel is within 1% of torch and torch.compile, or faster."
    plain = {
        row["arguments"].split(",")[0]: row["speedups"]["torch"]
        for row in results
        if row["kernel"] == "gemm" and row["choices"] == {"epilogue": "identity"}
    }
    large = [plain[f"a {n}x{n}"] for n in (2048, 4096, 8192)]
    assert all(1.025 <= value < 1.065 for value in large)  # "3-6% faster than cuBLAS"
    assert all(plain[f"a {m}x8192"] >= 0.995 for m in (16, 64, 256))  # "equal when m is small"


def test_fresh_processes_are_held_against_the_limit_on_the_machine_that_it_is_for(tables: ModuleType) -> None:
    def rows(processor: str) -> list[tuple[str, str]]:
        bundle = {
            "without_torch": {"import_and_first_load_ms": 3.62},
            "with_torch": {"import_and_first_load_ms": 4.2, "collecting_older_ms": 0.0},
            "torch_installed_not_imported": {"import_and_first_load_ms": 4.9, "collecting_older_ms": 1.3},
            "warm": {"warm_load_ms": 0.5, "first_call_ms": 0.4},
            "first_error": {"after_a_call_ms": 1.2, "opening_the_library_ms": 1.6},
        }
        lists = {"torch_installed_not_imported": {"lists_ms": 1.4, "collecting_older_ms": 1.2}}
        data = {
            "machine": {"processor": processor},
            "results": {
                "limit_ms": 4.0,
                "error_limit_ms": 1.0,
                "lists_instead": lists,
                "1 kernel": {**bundle, "files_bytes": 1},
            },
        }
        return [(what, measured) for what, measured, _ in tables._load_rows("load.json", data)]

    assert rows("Neoverse-N1") == [
        (
            "1,000 empty lists in the place of import and first load, torch installed not imported",
            "1.4 ms; 1.2 ms of it collect older objects",
        ),
        ("Import and first load in a fresh process, without torch: 1 kernel", "3.6 ms; limit 4 ms, met"),
        ("Import and first load in a fresh process, with torch: 1 kernel", "4.2 ms; limit 4 ms, missed"),
        (
            "Import and first load in a fresh process, torch installed not imported: 1 kernel",
            "4.9 ms; limit 4 ms, missed; 1.3 ms of it collect older objects",
        ),
        ("Load, everything imported: 1 kernel", "0.50 ms"),
        ("First error of a kernel that was called before: 1 kernel", "1.20 ms; limit 1 ms, missed"),
        (
            "First error of a kernel whose library it opens: 1 kernel",
            "1.60 ms; a first call that succeeds takes 0.40 ms",
        ),
    ]
    assert rows("Xeon")[1][1] == "3.6 ms"


def test_every_benchmark_is_described() -> None:
    text = (PROJECT / "benchmarks" / "README.md").read_text()
    files = {path.name for path in (PROJECT / "benchmarks").glob("[!_]*.py")}
    assert {name for name in files if f"| `{name}` |" not in text} == set()


def test_every_file_of_results_that_a_page_names_exists(tables: ModuleType) -> None:
    named = {file for facts in tables.FACTS.values() for _, file, _ in facts}
    assert all(Path(RESULTS / name).is_file() for name in named)
