"""Join bundles of the same name that were built separately."""

from __future__ import annotations

import argparse
from pathlib import Path

from ...bundle.signature import is_signed
from ...errors import counted
from ...pipeline.combine import merge
from ..build_options import add_options
from ..options import link_tools, print_warning
from ..report import note, print_json
from ..schema import Key

__all__ = ["KEYS", "configure_parser", "execute"]

KEYS = (
    Key("path", str, "directory of the joined bundle"),
    Key("kernels", int, "how many kernels it has"),
    Key("variants", int, "how many variants it has"),
)


def configure_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundles", type=Path, nargs="+", metavar="BUNDLE", help="bundles to join; they are not changed")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="directory of the joined bundle")
    add_options(parser, "--no-wait")


def execute(arguments: argparse.Namespace) -> int:
    if any(is_signed(path) for path in arguments.bundles):
        print_warning(f"`{arguments.out}` is a new bundle: signatures of what it is joined from do not cover it")
    manifest = merge(arguments.bundles, arguments.out, link_tools(arguments), print_warning)
    if arguments.json:
        print_json({"path": str(arguments.out), "kernels": len(manifest.kernels), "variants": manifest.variant_count})
    else:
        kernels = counted(len(manifest.kernels), "kernel")
        note(arguments, f"{kernels}, {counted(manifest.variant_count, 'variant')}, {', '.join(manifest.hosts)}")
        print(arguments.out)
    return 0
