"""Pack a bundle into wheels, one per host. Installed wheels need neither CuTe DSL nor a compiler."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ...bundle.publish import check_writable
from ...errors import BuildError, UsageError
from ...hosts import DEFAULT_GLIBC, parse_hosts
from ..options import print_warning, refuse_inside
from ..progress import make_progress
from ..report import human_size, note, print_json
from ..schema import Key

if TYPE_CHECKING:
    from ...wheel.archive import Wheel

__all__ = ["KEYS", "configure_parser", "execute"]

KEYS = (
    Key("wheels", tuple[str, ...], "paths of the wheels", "without --layout hub"),
    Key("folders", tuple[str, ...], "paths of the folders", "with --layout hub"),
)

DEFAULT_VERSION = "0.0.0"


def configure_parser(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "bundle",
        type=Path,
        metavar="BUNDLE",
        help="directory that `build` printed, or a kernel project with a pyproject.toml that says what to build",
    )
    add("--out", type=Path, default=Path("dist"), metavar="DIR", help="where the wheels go (default: dist)")
    add("--package", metavar="NAME", help="name of the import package (default: the bundle's name)")
    add("--version", metavar="V", help=f"version of the package (default: {DEFAULT_VERSION})")
    add(
        "--host",
        action="append",
        default=[],
        metavar="CPU",
        help="x86_64, aarch64 or all (default: all that the bundle or project has); repeatable",
    )
    add(
        "--split-arch",
        action="store_true",
        help="make a slim base wheel and one wheel per architecture that is installed beside it",
    )
    add(
        "--sign",
        metavar="KEY",
        help="sign the wheels' bundle with this private key; the package then loads no other bundle",
    )
    add(
        "--key",
        action="append",
        default=[],
        type=Path,
        metavar="PUB",
        help="with --sign: the public keys that the package trusts (default: that of KEY); repeatable",
    )
    add(
        "--layout",
        choices=("wheel", "hub"),
        default="wheel",
        help="hub: write folders that Hugging Face's `kernels` loads, into `build` of --out, instead of wheels",
    )
    add("--license", metavar="NAME", help="with --layout hub: the licence of the kernels (default: other)")
    add("--allow-incomplete", action="store_true", help="pack a bundle even if some of its kernels failed to build")


def execute(arguments: argparse.Namespace) -> int:
    from ...wheel.archive import parse_epoch, write_wheels

    refuse_inside(arguments.out, "--out")
    check_writable(arguments.out)  # before a project is built
    is_project = (arguments.bundle / "pyproject.toml").is_file()
    if arguments.layout == "hub":
        return _write_hub(arguments, is_project)
    if arguments.license:
        raise UsageError("`--license` belongs to `--layout hub`", hint="a project's pyproject.toml states its licence")
    made = _of_project(arguments) if is_project else _of_bundle(arguments)
    paths = write_wheels(made, arguments.out, parse_epoch(os.environ.get("SOURCE_DATE_EPOCH")))
    if arguments.json:
        print_json({"wheels": [str(path) for path in paths]})
        return 0
    for path in paths:
        note(arguments, f"{path.name}: {human_size(path.stat().st_size)}")
        print(path)
    return 0


def _write_hub(arguments: argparse.Namespace, is_project: bool) -> int:
    from ...bundle.manifest import Manifest
    from ...wheel.hub import Hub, write_hub
    from ...wheel.identity import Identity

    if is_project or arguments.split_arch:
        given = f"`{arguments.bundle}` is a project" if is_project else "`--split-arch` splits wheels"
        raise UsageError(
            f"{given}, and `--layout hub` packs a whole bundle",
            hint="name what `build` printed, and leave `--split-arch` out",
        )
    made = _of_bundle(arguments)
    manifest = Manifest.read(arguments.bundle)
    identity = Identity.parse(arguments.package or manifest.name, arguments.version or DEFAULT_VERSION)
    folders = write_hub(made, Hub.of(manifest, identity, arguments.license or "other"), arguments.out)
    if arguments.json:
        print_json({"folders": [str(path) for path in folders]})
    else:
        print("\n".join(map(str, folders)))
    return 0


def _of_bundle(arguments: argparse.Namespace) -> list[Wheel]:
    from ...bundle.comparing.staleness import known_stale, stale_text
    from ...bundle.manifest import Manifest
    from ...bundle.signature import is_signed
    from ...wheel.identity import Identity
    from ...wheel.make import Project, wheels
    from ...wheel.signing import choose_signing

    manifest = Manifest.read(arguments.bundle)
    if stale := known_stale(arguments.bundle, manifest):
        raise BuildError(
            f"`{arguments.bundle}` is not what its sources say: {stale_text(stale)}",
            hint="build it again: `python -m aot build`, with the architectures and hosts that it has",
        )
    package = arguments.package or manifest.name
    if is_signed(arguments.bundle) and arguments.sign is None:
        print_warning(
            f"`{arguments.bundle}` is signed, and its wheels are not, since each has a manifest of its own: pass "
            "`--sign KEY` to sign them, or `--sign none` if they need no signature"
        )
    return wheels(
        arguments.bundle,
        Project(
            Identity.parse(package, arguments.version or DEFAULT_VERSION),
            signing=choose_signing(arguments.sign, arguments.key),
        ),
        hosts=parse_hosts(arguments.host, DEFAULT_GLIBC) if arguments.host else (),
        split_arch=arguments.split_arch,
        allow_incomplete=arguments.allow_incomplete,
    )


def _of_project(arguments: argparse.Namespace) -> list[Wheel]:
    from ...wheel.project import project_wheels
    from ...wheel.pyproject import ConfigSettings, read_project

    if arguments.package or arguments.version or arguments.allow_incomplete or arguments.key:
        raise UsageError(
            f"`{arguments.bundle}` is a project: its pyproject.toml states package, version and keys, and all kernels must build",
            hint="remove `--package`, `--version`, `--key` and `--allow-incomplete`",
        )
    project = read_project(arguments.bundle)
    config = ConfigSettings(sign=(arguments.sign,) if arguments.sign else ())
    hosts = parse_hosts(arguments.host, project.hosts[0].glibc) if arguments.host else project.hosts
    return project_wheels(project, hosts, config, make_progress(arguments), split_arch=arguments.split_arch)
