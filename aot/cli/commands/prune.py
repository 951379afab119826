"""Remove kernels or architectures from a bundle."""

from __future__ import annotations

import argparse

from aot_runtime.arch import Arch

from ...bundle.globs import matching
from ...bundle.manifest import Manifest
from ...errors import UsageError
from ...pipeline.combine import prune
from ...pipeline.spellings import Gpu, built_archs, parse_wanted
from ..build_options import add_options
from ..options import add_bundle_argument, add_kernel_argument, link_tools, print_warning
from ..report import human_size, note, print_json
from ..schema import Key

__all__ = ["KEYS", "configure_parser", "execute"]

KEYS = (
    Key("path", str, "directory of the bundle"),
    Key("bytes_before", int, "size before"),
    Key("bytes", int, "size now"),
)


def configure_parser(parser: argparse.ArgumentParser) -> None:
    add_bundle_argument(parser)
    add = parser.add_argument
    add("--arch", action="append", default=[], metavar="ARCH", help="remove these architectures; repeatable")
    add_kernel_argument(parser, "remove kernels")
    add_options(parser, "--no-wait")


def execute(arguments: argparse.Namespace) -> int:
    before = Manifest.read(arguments.bundle)
    archs = _named_archs(arguments.arch, before)
    if not archs and not arguments.kernel:
        raise UsageError("nothing to remove", hint="pass `--arch` or `--kernel`")
    named = matching(sorted({*before.kernels, *_failed(before, "kernel")}), arguments.kernel)

    def keeps(kernel: str, arch: Arch) -> bool:
        return not (kernel in named and (not archs or arch in archs))

    size_before = _size(before)  # a manifest reads the list of its files when they are first asked for
    after = prune(arguments.bundle, keeps, link_tools(arguments), print_warning)
    size = _size(after)
    if arguments.json:
        print_json({"path": str(arguments.bundle), "bytes_before": size_before, "bytes": size})
    else:
        note(arguments, f"{human_size(size_before)} became {human_size(size)}")
        print(arguments.bundle)
    return 0


def _size(manifest: Manifest) -> int:
    return sum(record.size for record in manifest.files.values())


def _failed(manifest: Manifest, key: str) -> set[str]:
    """What failed to build may be named too: a bundle that shall not have it is then complete."""
    return {failure.get(key, "") for failure in manifest.failures} - {""}


def _named_archs(texts: list[str], manifest: Manifest) -> tuple[Arch, ...]:
    built = {*manifest.archs, *map(Arch.parse, _failed(manifest, "arch"))}
    named: dict[Arch, None] = {}
    for wanted in parse_wanted(texts):
        found = built_archs(wanted, built)
        shared = [arch for arch in found if isinstance(wanted, Gpu) and arch.capability != wanted.capability]
        if shared:
            raise UsageError(
                f"{wanted} runs {shared[0]}, which other GPUs run too", hint=f"pass `--arch {shared[0]}` to remove it"
            )
        named.update(dict.fromkeys(found))
    return tuple(named)
