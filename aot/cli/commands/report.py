"""Write one page of HTML about a bundle: variants, resources, sizes, measurements. It needs no network."""

from __future__ import annotations

import argparse
from pathlib import Path

from ...bundle.comparing.difference import differences
from ...bundle.details import read_details
from ...bundle.layout import details_name
from ...bundle.manifest import Manifest
from ...files import write_whole
from ...gpu.bench import read_results
from ...gpu.page import Contents, page
from ..options import add_bundle_argument, refuse_inside
from ..report import human_size, note, print_json
from ..schema import Key

__all__ = ["KEYS", "configure_parser", "execute"]

KEYS = (
    Key("path", str, "the page"),
    Key("bytes", int, "its size"),
)


def configure_parser(parser: argparse.ArgumentParser) -> None:
    add_bundle_argument(parser)
    add = parser.add_argument
    add(
        "--out",
        type=Path,
        default=Path("report.html"),
        metavar="FILE",
        help="where the page goes (default: report.html)",
    )
    add("--bench", type=Path, metavar="FILE", help="show these measurements, which `bench --out` wrote")
    add("--diff", type=Path, metavar="BUNDLE", help="show what differs from this bundle")


def execute(arguments: argparse.Namespace) -> int:
    refuse_inside(arguments.out, "--out")
    manifest = Manifest.read(arguments.bundle)
    gpu, results = read_results(arguments.bench) if arguments.bench is not None else ("", [])
    contents = Contents(
        manifest=manifest,
        variants=[
            (arch, one) for arch in manifest.archs for one in read_details(arguments.bundle / details_name(arch))
        ],
        gpu=gpu,
        results=results,
        other=str(arguments.diff) if arguments.diff is not None else "",
        changes=list(differences(arguments.diff, arguments.bundle)) if arguments.diff is not None else [],
    )
    text = page(contents)
    write_whole(arguments.out, text)
    if arguments.json:
        print_json({"path": str(arguments.out), "bytes": len(text.encode())})
    else:
        note(arguments, f"{arguments.out}: {human_size(len(text.encode()))}")
        print(arguments.out)
    return 0
