"""Compile kernels and pack them into a bundle."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from ...cache.places import find_places
from ...compile.messages import Options
from ...errors import UsageError, counted
from ...hosts import parse_glibc, parse_hosts
from ...pipeline.build import build
from ...pipeline.events import Clock
from ...pipeline.settings import BuildResult, Settings
from ...records import encode
from ..options import (
    add_cache_argument,
    add_family_argument,
    add_kernels_argument,
    add_wait_argument,
    parse_families,
    parse_size,
)
from ..progress import make_progress
from ..report import human_size, human_time, note, print_failures, print_json
from ..schema import Key

__all__ = [
    "KEYS",
    "add_content_arguments",
    "add_resource_arguments",
    "add_target_arguments",
    "configure_parser",
    "execute",
    "make_settings",
    "result_data",
    "summary",
]

KEYS = (
    Key("path", "string", "directory of the bundle"),
    Key("complete", "boolean", "whether the bundle has everything that was ever asked of it"),
    Key("kernels", "object", "number of variants by name"),
    Key("hosts", "list of string", "CPUs and C libraries that it runs on"),
    Key("failures", "list of object", "what failed: kernel, variant, arch, message, log"),
    Key("seconds", "object", "how long each phase took, and `total`"),
)

KEEPABLE = ("ptx", "cubin", "ll")
DEFAULT_TIMEOUT = 3600
LONGEST_TIMEOUT = 7 * 24 * 3600


def configure_parser(parser: argparse.ArgumentParser) -> None:
    add_kernels_argument(parser)
    parser.add_argument(
        "--kernel", action="append", default=[], metavar="GLOB", help="only kernels whose name matches; repeatable"
    )
    add_family_argument(parser)
    add_target_arguments(parser)
    add_resource_arguments(parser)
    _add_cluster(parser)
    add_content_arguments(parser)
    _add_changes(parser)


def add_target_arguments(parser: argparse.ArgumentParser) -> None:
    """What the bundle is for, and where it goes."""
    add = parser.add_argument
    add(
        "--arch",
        action="append",
        required=True,
        metavar="ARCH",
        help="sm80, sm90, sm100, ..., exact names (sm_90a), GPUs (H100, RTX4090), compute capabilities (9.0), comma lists, "
        "or all; repeatable",
    )
    add("--name", help="name of the bundle (default: the name of the source's folder, file or module)")
    add("--out", type=Path, metavar="DIR", help="where the bundle goes (default: dist/<name>)")
    add(
        "--host",
        action="append",
        default=[],
        metavar="CPU",
        help="x86_64, aarch64 or all (default: this machine's); repeatable",
    )
    add("--glibc", default="2.28", metavar="VERSION", help="lowest glibc to run on (default: 2.28)")
    add(
        "--cudart",
        choices=("static", "shared"),
        default="static",
        help="link the CUDA runtime into the bundle, or use the one of the process (default: static)",
    )
    add(
        "--cuda",
        type=int,
        choices=(12, 13),
        help="CUDA major version of CuTe DSL's backend (default: the installed one)",
    )


def add_resource_arguments(parser: argparse.ArgumentParser) -> None:
    """What the build may use."""
    add = parser.add_argument
    add("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="compile workers (default: one per core)")
    add(
        "--memory",
        metavar="SIZE",
        help="limit the memory of the build with all its processes, such as 4G (default: no limit)",
    )
    add(
        "--timeout",
        type=float,
        default=DEFAULT_TIMEOUT,
        metavar="SECONDS",
        help=f"time limit for one variant, and for importing one file of the kernels (default: {DEFAULT_TIMEOUT})",
    )


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--executor",
        metavar="URL",
        help="compile on a cluster: dask://host:port, or tls://host:port through TLS (default: on this machine)",
    )
    add(
        "--dask-security",
        type=Path,
        metavar="FILE",
        help="certificates for tls:// as TOML, JSON or YAML: ca, cert and key (default: Dask's configuration)",
    )


def add_content_arguments(parser: argparse.ArgumentParser) -> None:
    """What the bundle holds, and what becomes of the one that is there."""
    add = parser.add_argument
    add(
        "--keep",
        default="",
        metavar="KINDS",
        help=f"keep intermediate files in the bundle: a comma list of {', '.join(KEEPABLE)}",
    )
    add_cache_argument(parser)
    add("--line-info", action="store_true", help="let profilers show source lines; this puts paths into the code")
    add("--no-archives", action="store_true", help="leave out the archives for static linking")
    add_wait_argument(parser)
    add("--allow-incomplete", action="store_true", help="let an incomplete build replace a complete bundle")
    add(
        "--wheelhouse",
        type=Path,
        metavar="DIR",
        help="folder with NVIDIA's wheels for other hosts, for machines without a network",
    )


def _add_changes(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--cache-read-only", action="store_true", help="do not write to the shared cache")
    add("--replace", action="store_true", help="start with an empty bundle instead of extending the existing one")


def execute(arguments: argparse.Namespace) -> int:
    progress = make_progress(arguments)
    with progress:
        result = build(make_settings(arguments), progress)
    progress.clock.enter("")
    print_failures(result.failures)
    if arguments.json:
        print_json(result_data(result, progress.clock))
    else:
        note(arguments, summary(result, progress.clock))
        print(result.path)
    return 1 if result.failures else 0


def make_settings(arguments: argparse.Namespace) -> Settings:
    if arguments.jobs < 1:
        raise UsageError(f"`--jobs` is {arguments.jobs}", hint="pass at least 1")
    if not 0 < arguments.timeout <= LONGEST_TIMEOUT:
        raise UsageError(f"`--timeout` is {arguments.timeout:g}", hint=f"pass seconds, at most {LONGEST_TIMEOUT}")
    places = find_places(arguments.cache, os.environ)
    return Settings(
        kernels=arguments.kernels,
        archs=tuple(arguments.arch),
        out=arguments.out,
        name=arguments.name,
        select=tuple(arguments.kernel),
        families=parse_families(arguments.family),
        hosts=parse_hosts(arguments.host, parse_glibc(arguments.glibc)),
        jobs=arguments.jobs,
        memory=parse_size(arguments.memory) if arguments.memory is not None else None,
        timeout=arguments.timeout,
        executor=arguments.executor,
        dask_security=arguments.dask_security,
        options=Options(arguments.cuda, arguments.line_info, _keep(arguments.keep)),
        replace=arguments.replace,
        shared_cudart=arguments.cudart == "shared",
        allow_incomplete=arguments.allow_incomplete,
        cache=places.tools,
        artifacts=places.artifacts,
        remote=places.remote,
        remote_read_only=arguments.cache_read_only,
        wheelhouse=arguments.wheelhouse,
        archives=not arguments.no_archives,
        wait=not arguments.no_wait,
    )


def _keep(text: str) -> tuple[str, ...]:
    kinds = tuple(kind.strip() for kind in text.split(",") if kind.strip())
    for kind in kinds:
        if kind not in KEEPABLE:
            raise UsageError(f"cannot keep {kind!r}", hint=f"known: {', '.join(KEEPABLE)}")
    return kinds


def summary(result: BuildResult, clock: Clock) -> str:
    manifest = result.manifest
    variants = sum(kernel.variants for kernel in manifest.kernels.values())
    size = sum(record.size for record in manifest.files.values())
    state = "verified" if manifest.complete else f"INCOMPLETE: {_missing(result)}"
    phases = ", ".join(f"{phase} {human_time(took)}" for phase, took in clock.took.items() if took >= 0.05)
    return (
        f"bundle {manifest.name}: {counted(len(manifest.kernels), 'kernel')} ({', '.join(manifest.kernels)}), "
        f"{counted(variants, 'variant')}, {', '.join(map(str, manifest.archs))}, "
        f"{'host' if len(manifest.hosts) == 1 else 'hosts'} {', '.join(manifest.hosts)}, {human_size(size)}, {state}, "
        f"in {human_time(clock.elapsed)}{f' ({phases})' if phases else ''}"
    )


def _missing(result: BuildResult) -> str:
    """How much is missing from the bundle, and how much of it since an earlier build that this one did not repeat."""
    earlier = len(result.manifest.failures) - len(result.failures)
    parts = [f"{len(result.failures)} failed"] if result.failures else []
    return ", ".join([*parts, f"{earlier} failed in earlier builds"] if earlier > 0 else parts)


def result_data(result: BuildResult, clock: Clock) -> dict[str, object]:
    return {
        "path": str(result.path),
        "complete": result.manifest.complete,
        "kernels": {name: kernel.variants for name, kernel in result.manifest.kernels.items()},
        "hosts": list(result.manifest.hosts),
        "failures": encode(result.failures),
        "seconds": {**{phase: round(took, 3) for phase, took in clock.took.items()}, "total": round(clock.elapsed, 3)},
    }
