"""What the commands of this package share: the corpus in a temporary folder, lines for a person, figures as JSON."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aot.cache.places import find_places

from .corpus import PROJECT, Corpus, make_corpus, make_kinds, make_samples, read_corpus
from .dispatch import KERNELS
from .unaltered import write_expected

__all__ = ["corpus_and_folder", "parser", "run_all", "run_with_corpus"]

Results = Iterable[tuple[str, dict[str, Any]]]


def parser(name: str, description: str | None) -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(prog=f"python -m {name}", description=description)
    arguments.add_argument("--out", type=Path, metavar="FILE", help="write the figures here, as JSON")
    return arguments


def corpus_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """For commands that draw cases from a corpus."""
    arguments = parser(name, description)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument(
        "--corpus", type=Path, metavar="DIR", help="bundles of an earlier run; made there if it is missing"
    )
    return arguments


@contextmanager
def corpus_and_folder(kept: Path | None = None) -> Iterator[tuple[Corpus, Path]]:
    """A corpus, and a folder to work in; ``kept`` is where an earlier run has left the corpus, or where it shall be left."""
    with tempfile.TemporaryDirectory(prefix="aot-fuzz-") as scratch:
        where = kept or Path(scratch) / "corpus"
        if not where.exists():
            _make_all(where)
        yield read_corpus(where), Path(scratch)


def _make_all(where: Path) -> None:
    """Under another name until it is complete: a run that is ended leaves no part of a corpus behind."""
    where.parent.mkdir(parents=True, exist_ok=True)
    tools = find_places(None, os.environ).tools
    with tempfile.TemporaryDirectory(prefix=f"{where.name}.", dir=where.parent) as scratch:
        folder = Path(scratch) / "corpus"
        folder.mkdir()
        make_corpus(folder, tools)
        make_kinds(folder / "kinds", tools)
        make_samples(folder, tools, KERNELS)
        write_expected(read_corpus(folder))
        folder.rename(where)


def run_with_corpus(name: str, description: str | None, run: Callable[[Corpus, Path], Results]) -> int:
    """A command that takes no other arguments than where to write its figures."""
    options = parser(f"fuzz.{name}", description).parse_args()
    with corpus_and_folder() as (corpus, folder):
        return run_all(name, run(corpus, folder), options.out)


def run_all(benchmark: str, targets: Results, out: Path | None, **facts: Any) -> int:
    """Run targets one by one, and write what became of them; the exit code is 1 if something was found."""
    results: dict[str, Any] = {}
    for name, data in targets:
        results[name] = data
        print(f"{name}: { ({**data, 'findings': len(data['findings'])}) }", file=sys.stderr, flush=True)
        for finding in data["findings"]:
            print(f"  case {finding['case']}: {finding['kind']}: {finding['message']}", flush=True)
        if out is not None:  # after each target: a long run that is ended leaves what it has done
            _write(benchmark, results, out, facts)
    return 1 if any(data["findings"] for data in results.values()) else 0


def _write(benchmark: str, results: dict[str, Any], out: Path, facts: dict[str, Any]) -> None:
    sys.path.append(str(PROJECT / "benchmarks"))
    from _common import machine_facts

    totals = {
        "cases": sum(data["cases"] for data in results.values()),
        "findings": sum(data.get("found", 0) for data in results.values()),
    }
    data = {"benchmark": benchmark, "machine": machine_facts(), "results": {**facts, **totals, "targets": results}}
    out.write_text(json.dumps(data, indent=1) + "\n")
