"""Check a bundle against its manifest, without executing any of it."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from aot_runtime.core.signature import public_keys
from aot_runtime.serving.values.sources import locate_source

from ...bundle.comparing.staleness import Stale, known_stale, stale_text
from ...bundle.manifest import Manifest
from ...bundle.signature import is_signed
from ...bundle.verifying.verify import missing_kernels, verify
from ...errors import UsageError, counted
from ...hosts import available_cores
from ...records import encode
from ..build_options import add_options
from ..options import add_bundle_argument, add_key_argument
from ..progress import make_progress
from ..report import note, print_json, print_message
from ..schema import Key

__all__ = ["KEYS", "configure_parser", "execute"]

KEYS = (
    Key("bundle", str, "directory of the bundle"),
    Key("sound", bool, "whether there is no problem"),
    Key("problems", tuple[str, ...], "what differs from the manifest, or is missing"),
    Key("signed", bool, "whether the bundle has a signature"),
    Key("stale", tuple[Stale, ...] | None, "kernels whose sources changed since; null: the sources are not here"),
    Key("signature_checked", bool, "whether the signature was compared with `--key`"),
)


def configure_parser(parser: argparse.ArgumentParser) -> None:
    add_bundle_argument(parser)
    add_key_argument(parser)
    add_options(parser, "--source")
    add = parser.add_argument
    add("--rebuild", action="store_true", help="also rebuild the bundle from `--source` and compare every byte")
    add("--jobs", type=int, metavar="N", help="with --rebuild: compile workers (default: one per core)")
    add("--wheelhouse", type=Path, metavar="DIR", help="with --rebuild: folder with NVIDIA's wheels for other hosts")


def execute(arguments: argparse.Namespace) -> int:
    for option, given in (("--jobs", arguments.jobs), ("--wheelhouse", arguments.wheelhouse)):
        if given is not None and not arguments.rebuild:
            raise UsageError(f"`{option}` is for `--rebuild`", hint="pass `--rebuild` too, or leave it out")
    if arguments.jobs is not None and arguments.jobs < 1:
        raise UsageError(f"`--jobs` is {arguments.jobs}", hint="pass at least 1")
    named = arguments.kernels
    if named is not None and not Path(named).exists() and locate_source(named) is None:
        raise UsageError(
            f"`--source {named}` is neither a path nor a module", hint="pass what the bundle was built from"
        )
    keys = public_keys(arguments.key) if arguments.key else ()
    # What a manifest says is missing counts only if the manifest itself does.
    problems = verify(arguments.bundle, keys) or missing_kernels(arguments.bundle)
    if arguments.rebuild and not problems:
        problems = _rebuilt(arguments)
    stale = _stale(arguments) if not problems else None
    if arguments.json:
        data = {"bundle": str(arguments.bundle), "sound": not problems, "problems": problems}
        data["stale"] = encode(tuple(stale)) if stale is not None else None
        print_json({**data, "signed": is_signed(arguments.bundle), "signature_checked": bool(keys)})
        return 1 if problems else 0
    for problem in problems:
        print(problem)
    if stale:
        print_message(f"warning: {arguments.bundle}: {stale_text(stale)}; `python -m aot build` rebuilds what is stale")
    verdict = counted(len(problems), "problem") if problems else f"sound{_signed(arguments)}"
    note(arguments, f"{arguments.bundle}: {verdict}")
    return 1 if problems else 0


def _stale(arguments: argparse.Namespace) -> list[Stale] | None:
    """A bundle that is sound may still be older than its sources."""
    source = Path(arguments.kernels) if arguments.kernels is not None else None
    return known_stale(arguments.bundle, Manifest.read(arguments.bundle), source)


def _signed(arguments: argparse.Namespace) -> str:
    if arguments.key:
        return ", signed by a trusted key"
    return "; its signature was not checked, pass `--key` for that" if is_signed(arguments.bundle) else ""


def _rebuilt(arguments: argparse.Namespace) -> list[str]:
    from ...cache.places import find_places
    from ...pipeline.rebuild import rebuild
    from ...pipeline.settings import Settings

    settings = Settings(
        kernels=arguments.kernels or "kernels",
        archs=(),
        jobs=arguments.jobs or available_cores(),
        cache=find_places(None, os.environ).tools,
        wheelhouse=arguments.wheelhouse,
    )
    with make_progress(arguments) as progress:
        return rebuild(arguments.bundle, settings, Path(tempfile.gettempdir()), progress)
