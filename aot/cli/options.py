"""Arguments that several commands share, and what they mean."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot_runtime.core.trust import manifest_check
from aot_runtime.description.records import FILE_NAME, INDEX_NAMES

from ..bundle.contracts import Contract, load_contracts
from ..bundle.manifest import Manifest
from ..errors import UsageError
from ..files import write_whole
from ..gpu.running import Gpu, find_gpu, select_kernels
from ..kinds import DTYPES, dtype_of
from .report import print_message

if TYPE_CHECKING:  # the builder is not needed to check a bundle
    from aot_runtime import Bundle

    from ..pipeline.combine import Tools

__all__ = [
    "CommaLists",
    "add_bundle_argument",
    "add_kernel_argument",
    "add_key_argument",
    "add_old_spelling",
    "add_run_arguments",
    "check_file",
    "link_tools",
    "open_to_run",
    "parse_age",
    "parse_size",
    "print_warning",
    "read_trusted",
    "refuse_inside",
    "refuse_unused",
    "words_of_keys",
    "write_json",
]


@dataclass(frozen=True)
class Opened:
    """A loaded bundle, the selected kernels with their contracts, and the GPU to run them on."""

    bundle: Bundle
    kernels: list[str]
    contracts: dict[str, Contract]
    gpu: Gpu


_SIZES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_TIMES = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600, "w": 7 * 24 * 3600}


def add_old_spelling(
    parser: argparse.ArgumentParser, option: str, dest: str, parse: Callable[[str], Any] = str
) -> None:
    """An option under the name that it had before. It works, and no help names it."""
    parser.add_argument(option, dest=dest, type=parse, default=argparse.SUPPRESS, help=argparse.SUPPRESS)


class CommaLists(argparse.Action):
    """``--kernel a,b --kernel c`` becomes ``["a", "b", "c"]``; an option that has these is repeatable."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        names = [self.meant(name.strip()) for name in values.split(",") if name.strip()]
        if not names:  # empty variables of a script, which should not build something else
            raise UsageError(
                f"`{option_string} {values}` names nothing", hint=f"name some, or leave `{option_string}` out"
            )
        setattr(namespace, self.dest, [*getattr(namespace, self.dest), *names])

    def meant(self, name: str) -> str:
        return name


def add_kernel_argument(parser: argparse.ArgumentParser, what: str) -> None:
    """The option that every command has for choosing kernels."""
    told = f"{what} whose name matches, a comma list; repeatable"
    parser.add_argument("--kernel", action=CommaLists, default=[], metavar="GLOB", help=told)


def add_bundle_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="directory that `build` printed")


def add_key_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--key",
        action="append",
        default=[],
        metavar="PUB",
        help="the bundle must be signed by this public key, a PEM file; repeatable: by one of them",
    )


def read_trusted(arguments: argparse.Namespace) -> Manifest:
    """The manifest of the bundle, signed by one of the keys if there are any."""
    return Manifest.read(arguments.bundle, manifest_check(arguments.bundle, arguments.key or None))


def words_of_keys(arguments: argparse.Namespace) -> list[str]:
    """The same keys for another process."""
    return [word for key in arguments.key for word in ("--key", key)]


def add_run_arguments(parser: argparse.ArgumentParser, dtypes: str, out: str) -> None:
    """The arguments of commands that run kernels on a GPU."""
    add_bundle_argument(parser)
    add_key_argument(parser)
    add = parser.add_argument
    add_kernel_argument(parser, "only kernels")
    add("--dtype", action=_Dtypes, default=[], metavar="DTYPE", help=f"{dtypes}, a comma list; repeatable")
    add("--out", type=Path, metavar="FILE", help=f"write the {out} here, as JSON")


class _Dtypes(CommaLists):
    """Our names of dtypes, whichever of their names were given."""

    def meant(self, name: str) -> str:
        found = dtype_of(name)
        if found is None:
            raise argparse.ArgumentError(self, f"unknown dtype: {name!r}; known: {', '.join(DTYPES)}")
        return found.name


def refuse_unused(arguments: argparse.Namespace, mode: str, *options: str) -> None:
    """Raise for options that a mode passes over: what they ask for would be missing without a word."""
    for option in options:
        if getattr(arguments, option.removeprefix("--").replace("-", "_")):
            raise UsageError(
                f"`{option}` cannot be combined with `{mode}`, which does not use it", hint="leave one of them out"
            )


def open_to_run(arguments: argparse.Namespace, command: str) -> Opened:
    check_file(arguments.out, "--out")
    manifest = read_trusted(arguments)
    kernels = select_kernels(manifest, arguments.kernel)
    gpu = find_gpu(command)
    contracts = load_contracts(arguments.bundle, manifest, kernels)
    import aot_runtime

    bundle = aot_runtime.load(arguments.bundle, manifest_sha256=manifest.sha256)
    return Opened(bundle, kernels, contracts, gpu)


def check_file(path: Path | None, option: str) -> None:
    """Raise if a file cannot be written there: what takes long to measure would be lost."""
    if path is None:
        return
    refuse_inside(path, option)
    if path.is_dir():
        raise UsageError(f"`{option} {path}` is a folder", hint="pass the name of a file")
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder `{path.parent}` for `{option} {path}`", hint="make it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"`{option} {path}` cannot be written", hint="pass another file, or change its permissions")


def refuse_inside(path: Path, option: str) -> None:
    """Raise if a file would lie in a bundle, which holds what its manifest names and nothing else."""
    place = Path(os.path.realpath(path))
    for folder in (place, *place.parents):
        if all((folder / name).is_file() for name in (FILE_NAME, *INDEX_NAMES)):
            raise UsageError(
                f"`{option} {path}` lies in the bundle `{folder}`, which it is no part of", hint="name another folder"
            )


def write_json(path: Path | None, data: Any) -> None:
    """Write data to the file that ``--out`` names, if there is one."""
    if path is not None:
        write_whole(path, json.dumps(data, indent=1) + "\n")


def link_tools(arguments: argparse.Namespace) -> Tools:
    """The linking tools of commands without options for them: caches of ``AOT_CACHE``, or else of the user."""
    from ..cache.places import find_places
    from ..pipeline.combine import Tools

    places = find_places(None, os.environ)
    return Tools(places.tools, places.artifacts, wait=not arguments.no_wait)


def print_warning(text: str) -> None:
    print_message(f"warning: {text}")


def parse_size(text: str) -> int:
    """``500M`` -> bytes."""
    return _quantity(text, _SIZES, "10G")


def parse_age(text: str) -> int:
    """``36h`` -> seconds."""
    return _quantity(text, _TIMES, "30d")


def _quantity(text: str, units: dict[str, int], example: str) -> int:
    match = re.fullmatch(r"(\d{1,15})([A-Za-z]?)", text)
    if match is None or match[2] not in units:
        raise UsageError(f"not a quantity: {text!r}", hint=f"write it like {example}")
    return int(match[1]) * units[match[2]]
