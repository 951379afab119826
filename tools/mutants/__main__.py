"""Put mistakes into the code, one by one, and see whether the tests notice: ``python -m tools.mutants --out FILE``."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from .check import AREAS, LIMIT, Check, Result, is_prepared, prepare
from .report import why_it_survives, write
from .sites import draw
from .trees import PROJECT


def main() -> int:
    options = _parser().parse_args()
    areas = {name: (options.count or count, patterns) for name, (count, patterns) in AREAS.items()}
    if options.area:
        areas = {name: areas[name] for name in options.area}
    if options.list:
        for mutation in draw(PROJECT, areas, options.seed):
            print(f"{mutation.path}:{mutation.line}: {mutation.kind}: {mutation.old!r} -> {mutation.new!r}")
        return 0
    with tempfile.TemporaryDirectory(prefix="aot-mutants-") as scratch:
        prepared = options.prepared or Path(scratch) / "prepared"
        if not is_prepared(prepared):
            paths = {one.path for one in draw(PROJECT, areas, options.seed)}
            prepare(prepared, options.jobs, paths, few=options.few)
        if options.prepare:
            return 0
        known = _read(options.record)
        check = Check(Path(scratch), prepared, options.jobs, options.seconds, known, options.limit)
        results = []
        for result in check.run(options.seed, areas):
            results.append(result)
            if not result.stillborn:
                _tell(result)
            _keep(options, results, known)
    print(json.dumps(_summary(results)))
    return 0


def _read(record: Path | None) -> dict[str, dict[str, Any]]:
    """The last line on each mutation."""
    if record is None or not record.exists():
        return {}
    return {line["id"]: line for line in map(json.loads, record.read_text().splitlines())}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    add = parser.add_argument
    add("--seed", type=int, default=1, help="which mutations are drawn (default: 1)")
    add("--area", action="append", choices=list(AREAS), help="this area alone; may be repeated")
    add("--count", type=int, metavar="N", help="mutations of each area (default: 200 in all)")
    add("--jobs", type=int, default=1, metavar="N", help="copies of the project that are tested at the same time")
    add("--seconds", type=float, default=1e9, help="begin no mutation after this time")
    add(
        "--limit",
        type=float,
        default=LIMIT,
        metavar="SECONDS",
        help="tests of a mutation that take longer hang (default: 400)",
    )
    add("--prepared", type=Path, metavar="DIR", help="what an earlier run with this option and --prepare has built")
    add("--prepare", action="store_true", help="only run the tests on the unaltered code, and keep what they build")
    add("--few", action="store_true", help="with --prepare: run no more tests than it takes to build what they share")
    add("--list", action="store_true", help="print the mutations and run nothing")
    add(
        "--record",
        type=Path,
        metavar="FILE",
        help="add a line for each mutation; what it says was noticed is not tried again",
    )
    add("--out", type=Path, metavar="FILE", help="write the results here, as JSON")
    return parser


def _tell(result: Result) -> None:
    said = f"noticed by {result.how}" if result.killed else "SURVIVED"
    mutation = result.mutation
    place = f"{mutation.path}:{mutation.line}: {mutation.kind}: {mutation.old[:60]!r} -> {mutation.new[:60]!r}"
    print(f"{place}: {said} ({result.seconds:.0f} s)", file=sys.stderr, flush=True)


def _summary(results: list[Result]) -> dict[str, object]:
    tried = [result for result in results if not result.stillborn]
    killed = Counter(result.area for result in tried if result.killed)
    areas = Counter(result.area for result in tried)
    return {
        "mutations": len(tried),
        "noticed": sum(killed.values()),
        "hosts": dict(sorted(Counter(result.host for result in tried).items())),
        "areas": {area: {"mutations": count, "noticed": killed[area]} for area, count in sorted(areas.items())},
    }


def _survivor(result: Result) -> dict[str, object]:
    data = result.mutation.data()
    return {name: data[name] for name in ("file", "code", "old", "new")} | {"reason": why_it_survives(result.mutation)}


def _keep(options: argparse.Namespace, results: list[Result], known: dict[str, dict[str, Any]]) -> None:
    line = results[-1].data()
    if options.record is not None and known.get(line["id"], {}).get("how") != line["how"]:
        with options.record.open("a") as record:
            record.write(json.dumps(line) + "\n")
    survivors = [_survivor(result) for result in results if not result.killed and not result.stillborn]
    write(options.out, "mutants", {"seed": options.seed, **_summary(results), "survivors": survivors})


if __name__ == "__main__":
    sys.exit(main())
