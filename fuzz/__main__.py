"""Run the fuzzers: ``python -m fuzz --cases 1000000 --seed 1 --out FILE``."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import binaries, bundles, descriptions, entries, overlap
from .corpus import PROJECT, Corpus, make_corpus
from .engine import Target, run_case, run_target

__all__ = ["fuzz", "main"]


def fuzz(corpus: Corpus, folder: Path, seed: int, cases: int, only: str | None = None) -> Iterator[tuple[str, Any]]:
    """What became of each target: its name, and the numbers with the findings."""
    if only in (None, "overlap"):
        yield "overlap", overlap.run(overlap.compile_program(folder), seed, round(cases * overlap.SHARE)).data()
    for target in _targets(corpus, folder):
        if only in (None, target.name):
            started = time.process_time()
            outcome = run_target(target, seed, range(max(1, round(cases * target.share))))
            yield target.name, {**outcome.data(), "cpu_seconds": round(time.process_time() - started, 1)}


def _targets(corpus: Corpus, folder: Path) -> list[Target]:
    return [target for module in (entries, descriptions, binaries, bundles) for target in module.make(corpus, folder)]


def main() -> int:
    arguments = _parser().parse_args()
    with tempfile.TemporaryDirectory(prefix="aot-fuzz-") as scratch:
        folder = Path(scratch)
        from aot.cache.places import find_places

        corpus = make_corpus(folder, find_places(None, os.environ).tools)
        if arguments.case is not None:
            return _one(corpus, folder, arguments)
        results = {}
        for name, data in fuzz(corpus, folder, arguments.seed, arguments.cases, arguments.only):
            results[name] = data
            print(f"{name}: { ({**data, 'findings': len(data['findings'])}) }", file=sys.stderr, flush=True)
            for finding in data["findings"]:
                print(f"  case {finding['case']}: {finding['kind']}: {finding['message']}", flush=True)
            if arguments.out is not None:  # after each target: a long run that is ended leaves what it has done
                _write(arguments, results)
    return 1 if any(data["findings"] for data in results.values()) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000, help="in all; targets get shares of them")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", metavar="TARGET", help="one target alone")
    parser.add_argument("--case", type=int, help="with --only: repeat this case alone, with its traceback")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the figures here, as JSON")
    return parser


def _one(corpus: Corpus, folder: Path, arguments: argparse.Namespace) -> int:
    (target,) = [target for target in _targets(corpus, folder) if target.name == arguments.only]
    finding = run_case(target, arguments.seed, arguments.case, Counter())
    target.close()
    print(finding.trace if finding is not None else "nothing was found")
    return 1 if finding is not None else 0


def _write(arguments: argparse.Namespace, results: dict[str, Any]) -> None:
    sys.path.append(str(PROJECT / "benchmarks"))
    from _common import machine_facts

    data = {
        "benchmark": "fuzz",
        "machine": machine_facts(),
        "results": {
            "seed": arguments.seed,
            "cases": sum(data["cases"] for data in results.values()),
            "findings": sum(data.get("found", 0) for data in results.values()),
            "targets": results,
        },
    }
    arguments.out.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
