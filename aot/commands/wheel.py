"""Pack a bundle into wheels that pip installs: one per host, needing neither CuTe DSL nor a compiler."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from ..hosts import parse_hosts
from ..report import human_size, print_json
from ._common import add_bundle_argument

__all__ = ["configure_parser", "execute"]


def configure_parser(parser: argparse.ArgumentParser) -> None:
    add_bundle_argument(parser)
    add = parser.add_argument
    add("--out", type=Path, default=Path("dist"), metavar="DIR", help="where the wheels go (default: dist)")
    add("--package", metavar="NAME", help="what is imported (default: the bundle's name)")
    add("--version", default="0.0.0", metavar="V", help="version of the package (default: 0.0.0)")
    add(
        "--host",
        action="append",
        default=[],
        metavar="CPU",
        help="x86_64, aarch64 or all (default: all that the bundle has); repeatable",
    )
    add(
        "--split-arch",
        action="store_true",
        help="a slim base wheel and one more wheel per architecture, installed beside it",
    )
    add("--allow-incomplete", action="store_true", help="pack a bundle that lacks kernels which failed to build")


def execute(arguments: argparse.Namespace) -> int:
    from aot_runtime.manifest import Manifest

    from ..wheel.archive import parse_epoch, write_wheels
    from ..wheel.identity import Identity
    from ..wheel.make import Project, wheels

    package = arguments.package or Manifest.read(arguments.bundle).name
    made = wheels(
        arguments.bundle,
        Project(Identity.parse(package, arguments.version)),
        hosts=parse_hosts(arguments.host, (2, 28)) if arguments.host else (),
        split_arch=arguments.split_arch,
        allow_incomplete=arguments.allow_incomplete,
    )
    paths = write_wheels(made, arguments.out, parse_epoch(os.environ.get("SOURCE_DATE_EPOCH")))
    if arguments.json:
        print_json({"wheels": [str(path) for path in paths]})
        return 0
    for path in paths:
        print(f"{path.name}: {human_size(path.stat().st_size)}", file=sys.stderr)
        print(path)
    return 0
