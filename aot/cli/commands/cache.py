"""Show, check or prune what builds have kept of compiled and linked code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ...cache.check import Findings, check
from ...cache.store import KINDS, Entry, Store
from ...errors import UsageError
from ..options import add_cache_argument, artifacts_folder, parse_age, parse_size, remote_cache
from ..report import human_size, print_json, print_table

__all__ = ["configure_parser", "execute"]


def configure_parser(parser: argparse.ArgumentParser) -> None:
    add_cache_argument(parser)
    parser.add_argument("--check", action="store_true", help="read every entry; remove those that are damaged")
    parser.add_argument("--prune", action="store_true", help="remove entries, the least recently used first")
    parser.add_argument("--max-size", metavar="SIZE", help="with --prune: until the rest is no larger (500M, 20G)")
    parser.add_argument("--older-than", metavar="TIME", help="with --prune: those not used for so long (36h, 30d)")


def execute(arguments: argparse.Namespace) -> int:
    store = Store(_folder(arguments))
    found = check(store) if arguments.check else Findings((), ())
    removed = _prune(store, arguments) if arguments.prune else []
    entries = list(store.entries())
    if arguments.json:
        print_json({
            "path": str(store.root),
            "entries": {kind: len(own) for kind, own in _by_kind(entries).items()},
            "bytes": sum(entry.size for entry in entries),
            "damaged": [f"{entry.kind}/{entry.key}" for entry in found.damaged],
            "untrusted": [f"{entry.kind}/{entry.key}" for entry in found.untrusted],
            "pruned": len(removed),
        })  # fmt: skip
    else:
        _print(store, entries, found, removed)
    return 1 if found.damaged else 0


def _folder(arguments: argparse.Namespace) -> Path:
    if remote_cache(arguments.cache) is not None and arguments.cache is not None:
        raise UsageError(f"`{arguments.cache}` is not a folder", hint="a shared cache is looked after where it lies")
    folder = artifacts_folder(arguments.cache)
    if folder is None:
        raise UsageError("the cache is turned off", hint="name one with `--cache DIR`")
    return folder


def _prune(store: Store, arguments: argparse.Namespace) -> list[Entry]:
    if arguments.max_size is None and arguments.older_than is None:
        raise UsageError("`--prune` needs to know how much", hint="say `--max-size 10G` or `--older-than 30d`")
    size = parse_size(arguments.max_size) if arguments.max_size is not None else None
    age = parse_age(arguments.older_than) if arguments.older_than is not None else None
    return store.prune(max_size=size, older_than=age)


def _by_kind(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    kinds = dict.fromkeys((*KINDS, *(entry.kind for entry in entries)))
    return {kind: [entry for entry in entries if entry.kind == kind] for kind in kinds}


def _print(store: Store, entries: Sequence[Entry], found: Findings, removed: Sequence[Entry]) -> None:
    for entry in found.damaged:
        print(f"damaged, removed: {entry.kind}/{entry.key}")
    for entry in found.untrusted:
        print(f"not trusted, not used: {entry.kind}/{entry.key}")
    rows = [(kind, len(own), human_size(sum(e.size for e in own))) for kind, own in _by_kind(entries).items() if own]
    print_table(("what", "entries", "size"), rows)
    said = f"{store.root}: {len(entries)} entries, {human_size(sum(entry.size for entry in entries))}"
    print(said + (f", {len(removed)} pruned" if removed else ""), file=sys.stderr)
