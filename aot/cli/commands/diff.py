"""Compare two bundles: kernels, signatures, variants, registers, shared memory, code, sizes, hosts, toolchain."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ...bundle.comparing.difference import KINDS, Change, differences
from ...errors import UsageError, counted
from ...records import encode
from ..options import CommaLists
from ..report import note, print_json, print_table
from ..schema import Key

__all__ = ["KEYS", "configure_parser", "execute"]

KEYS = (
    Key("a", str, "directory of the first bundle"),
    Key("b", str, "directory of the second bundle"),
    Key("same", bool, "whether nothing differs"),
    Key("changes", tuple[Change, ...], "what differs"),
)


def configure_parser(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("a", type=Path, metavar="A", help="a bundle")
    add("b", type=Path, metavar="B", help="the bundle to compare with it")
    add(
        "--only",
        action=CommaLists,
        default=[],
        metavar="KINDS",
        help=f"look at these differences alone: a comma list of {', '.join(KINDS)}; repeatable",
    )


def execute(arguments: argparse.Namespace) -> int:
    kinds = _kinds(arguments.only)
    changes = [change for change in differences(arguments.a, arguments.b) if change.kind in kinds]
    if arguments.json:
        data = {"a": str(arguments.a), "b": str(arguments.b), "same": not changes}
        print_json({**data, "changes": encode(changes)})
    else:
        for kind in kinds:
            _print([change for change in changes if change.kind == kind], kind)
        note(arguments, counted(len(changes), "difference") if changes else "no differences")
    return 1 if changes else 0


def _kinds(named: Sequence[str]) -> tuple[str, ...]:
    for name in named:
        if name not in KINDS:
            raise UsageError(f"there is no kind of difference {name!r}", hint=f"known: {', '.join(KINDS)}")
    return tuple(kind for kind in KINDS if not named or kind in named)


def _print(changes: Sequence[Change], kind: str) -> None:
    if changes:
        rows = [(f"  {change.what}", change.before or "-", change.after or "-") for change in changes]
        print_table(("  what", "before", "after"), rows, title=kind)
        print()
