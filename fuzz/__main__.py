"""Run the fuzzers: ``python -m fuzz --cases 1000000 --seed 1 --out FILE``."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import binaries, bundles, descriptions, dispatch, entries, overlap, unaltered, worlds
from .command import corpus_and_folder, corpus_parser, run_all
from .corpus import Corpus
from .engine import Target, run_case, run_target

__all__ = ["READERS", "fuzz", "main"]

READERS = "readers"


def fuzz(corpus: Corpus, folder: Path, seed: int, cases: int, only: str | None = None) -> Iterator[tuple[str, Any]]:
    """What became of each target: its name, and the numbers with the findings."""
    if only in (None, "overlap"):
        yield "overlap", overlap.run(overlap.compile_program(folder), seed, round(cases * overlap.SHARE)).data()
    if only in (None, "worlds"):
        yield (
            "worlds",
            worlds.run(worlds.compile_program(folder, corpus.standin), seed, round(cases * worlds.SHARE)).data(),
        )
    if only in (None, "dispatch"):
        program = dispatch.compile_program(corpus.bundle.with_name("samples"), corpus.standin, folder)
        yield "dispatch", dispatch.run(program, seed, round(cases * dispatch.SHARE)).data()
    for target in _targets(corpus, folder):
        if only in (None, READERS, target.name):
            started = time.process_time()
            outcome = run_target(target, seed, range(max(1, round(cases * target.share))))
            yield target.name, {**outcome.data(), "cpu_seconds": round(time.process_time() - started, 1)}


def _targets(corpus: Corpus, folder: Path) -> list[Target]:
    return [
        target
        for module in (unaltered, entries, descriptions, binaries, bundles)
        for target in module.make(corpus, folder)
    ]


def main() -> int:
    options = _parser().parse_args()
    with corpus_and_folder(options.corpus) as (corpus, folder):
        if options.case is not None:
            return _one(corpus, folder, options)
        targets = fuzz(corpus, folder, options.seed, options.cases, options.only)
        return run_all("fuzz", targets, options.out, seed=options.seed)


def _parser() -> argparse.ArgumentParser:
    arguments = corpus_parser("fuzz", __doc__)
    arguments.add_argument("--cases", type=int, default=10_000, help="in all; targets get shares of them")
    arguments.add_argument("--only", metavar="TARGET", help="one target alone, or `readers`: all that are in Python")
    arguments.add_argument("--case", type=int, help="with --only: repeat this case alone, with its traceback")
    return arguments


def _one(corpus: Corpus, folder: Path, options: argparse.Namespace) -> int:
    (target,) = [target for target in _targets(corpus, folder) if target.name == options.only]
    finding = run_case(target, options.seed, options.case, Counter())
    target.close()
    print(finding.trace if finding is not None else "nothing was found")
    return 1 if finding is not None else 0


if __name__ == "__main__":
    sys.exit(main())
