"""Show, check, prune or clear the cache of compiled and linked code."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from ...cache.check import Findings, check
from ...cache.places import TOOLS, clear_tools, folders_of, size_of_tools
from ...cache.remote import without_secrets
from ...cache.store import Entry, Store
from ...errors import UsageError
from ...pipeline.plan import read_plan
from ..build_options import add_options
from ..options import parse_age, parse_size
from ..report import human_size, note, print_json, print_table
from ..schema import Key

__all__ = ["KEYS", "configure_parser", "execute"]


class KeptData(TypedDict):
    """What one folder holds of one kind."""

    what: str  # the kind of entries, or of tools
    path: str  # the folder
    files: int  # how many there are
    bytes: int  # their size


KEYS = (
    Key("path", str, "folder of the cache"),
    Key("entries", Mapping[str, int], "number of entries by kind"),
    Key("bytes", int, "size of the entries"),
    Key("kept", tuple[KeptData, ...], "what each folder of the cache holds"),
    Key("damaged", tuple[str, ...], "entries that `--check` removed"),
    Key("untrusted", tuple[str, ...], "entries that somebody else may have written; they are not used"),
    Key("pruned", int, "how many entries `--prune` removed"),
    Key("cleared", int, "how many bytes `--clear` removed"),
)


def configure_parser(parser: argparse.ArgumentParser) -> None:
    add_options(parser, "--cache")
    add = parser.add_argument
    add("--check", action="store_true", help="decode every entry; remove damaged ones")
    add("--prune", action="store_true", help="remove entries, the least recently used first")
    add("--max-size", metavar="SIZE", help="with --prune: until the cache is no larger than this (500M, 20G)")
    add("--older-than", metavar="TIME", help="with --prune: entries that were not used for this long (36h, 30d)")
    add(
        "--clear",
        action="store_true",
        help="remove what builds kept in this cache: compiled code, zig's cache, and the NVIDIA libraries that were fetched",
    )


@dataclass(frozen=True)
class _Kept:
    """What one folder holds of one kind."""

    what: str
    folder: Path
    count: int
    size: int


def execute(arguments: argparse.Namespace) -> int:
    _refuse_contradictions(arguments)
    _refuse_urls(arguments)
    folders = folders_of(arguments.cache, os.environ)
    store = Store(folders[0])
    found = check(store, read_plan) if arguments.check else Findings((), ())
    removed = _prune(store, arguments) if arguments.prune else []
    cleared = [kept for folder in folders for kept in _clear(folder)] if arguments.clear else []
    kept = [item for folder in folders for item in _kept(folder)]
    if arguments.json:
        print_json(_data(store, kept, found, removed, cleared))
    else:
        _print(arguments, store, kept, found, removed, cleared)
    return 1 if found.damaged else 0


def _refuse_contradictions(arguments: argparse.Namespace) -> None:
    if arguments.clear and (arguments.check or arguments.prune):
        other = "--check" if arguments.check else "--prune"
        raise UsageError(f"`--clear` leaves nothing for `{other}`", hint="pass one of them")
    if not arguments.prune and (arguments.max_size is not None or arguments.older_than is not None):
        option = "--max-size" if arguments.max_size is not None else "--older-than"
        raise UsageError(f"`{option}` belongs to `--prune`", hint=f"pass `--prune {option} ...`")


def _refuse_urls(arguments: argparse.Namespace) -> None:
    named = arguments.cache or os.environ.get("AOT_CACHE", "")
    if "://" not in named:
        return
    named = without_secrets(named)
    if arguments.cache:
        raise UsageError(f"`{named}` is not a folder", hint="clean a shared cache with the tools of its provider")
    if arguments.clear:  # which of the two is meant?
        raise UsageError(
            f"AOT_CACHE is a shared cache, `{named}`, which this command does not clear",
            hint="to clear the folder in front of it, unset AOT_CACHE; clean a shared cache with the tools of its provider",
        )


def _prune(store: Store, arguments: argparse.Namespace) -> list[Entry]:
    if arguments.max_size is None and arguments.older_than is None:
        raise UsageError(
            "`--prune` requires `--max-size` or `--older-than`", hint="pass `--max-size 10G` or `--older-than 30d`"
        )
    size = parse_size(arguments.max_size) if arguments.max_size is not None else None
    age = parse_age(arguments.older_than) if arguments.older_than is not None else None
    return store.prune(max_size=size, older_than=age)


def _kept(folder: Path) -> Iterator[_Kept]:
    by_kind: dict[str, list[Entry]] = {}
    for entry in Store(folder).entries():
        by_kind.setdefault(entry.kind, []).append(entry)
    for kind, entries in sorted(by_kind.items()):
        yield _Kept(kind, folder, len(entries), sum(entry.size for entry in entries))
    for name in TOOLS:
        count, size = size_of_tools(folder, name)
        if count:
            yield _Kept(name, folder, count, size)


def _clear(folder: Path) -> list[_Kept]:
    before = list(_kept(folder))
    Store(folder).clear()
    clear_tools(folder)
    return before


def _data(
    store: Store, kept: Sequence[_Kept], found: Findings, removed: Sequence[Entry], cleared: Sequence[_Kept]
) -> dict[str, object]:
    every: list[KeptData] = [
        {"what": item.what, "path": str(item.folder), "files": item.count, "bytes": item.size} for item in kept
    ]
    own = [item for item in kept if item.folder == store.root and item.what not in TOOLS]
    return {
        "path": str(store.root),
        "entries": {item.what: item.count for item in own},
        "bytes": sum(item.size for item in own),
        "kept": every,
        "damaged": [f"{entry.kind}/{entry.key}" for entry in found.damaged],
        "untrusted": [f"{entry.kind}/{entry.key}" for entry in found.untrusted],
        "pruned": len(removed),
        "cleared": sum(item.size for item in cleared),
    }


def _print(
    arguments: argparse.Namespace,
    store: Store,
    kept: Sequence[_Kept],
    found: Findings,
    removed: Sequence[Entry],
    cleared: Sequence[_Kept],
) -> None:
    for entry in found.damaged:
        print(f"damaged, removed: {entry.kind}/{entry.key}")
    for entry in found.untrusted:
        print(f"not trusted, not used: {entry.kind}/{entry.key}")
    rows = [(item.what, item.count, human_size(item.size), item.folder) for item in kept]
    print_table(("what", "files", "size", "folder"), rows)
    said = f"{store.root}: {human_size(sum(item.size for item in kept))} in all"
    said += f", {len(removed)} pruned" if removed else ""
    said += f", {human_size(sum(item.size for item in cleared))} cleared" if cleared else ""
    note(arguments, said)
