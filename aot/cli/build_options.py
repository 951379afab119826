"""The options of ``build``, each declared once. ``list`` and ``capture`` offer some of them, and mean the same by them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..hosts import available_cores
from .options import CommaLists, add_old_spelling

__all__ = ["DEFAULT_TIMEOUT", "KEEPABLE", "OPTIONS", "add_build_options", "add_options"]

KEEPABLE = ("ptx", "cubin", "ll", "mlir", "sass", "o")
DEFAULT_TIMEOUT = 3600


@dataclass(frozen=True)
class Option:
    """An option of the command line; ``absent`` says in ``--help`` what holds if it is not passed."""

    name: str
    help: str
    absent: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)  # for ``add_argument``
    before: str = ""  # the name that it had, which still works

    @property
    def destination(self) -> str:
        return str(self.settings.get("dest") or self.name.removeprefix("--").replace("-", "_"))

    @property
    def default(self) -> Any:
        if "default" in self.settings:
            return self.settings["default"]
        return False if self.settings.get("action") == "store_true" else None


_REPEATED: dict[str, Any] = {"action": "append", "default": []}
_LISTED: dict[str, Any] = {"action": CommaLists, "default": []}
_FLAG: dict[str, Any] = {"action": "store_true"}
_DECLARED = (
    Option(
        "--source",
        "folder, Python file, or importable module that declares the kernels",
        "`kernels`",
        {"dest": "kernels", "metavar": "PATH_OR_MODULE"},
        "--kernels",
    ),
    Option("--kernel", "only kernels whose name matches, a comma list; repeatable", "", {**_LISTED, "metavar": "GLOB"}),
    Option(
        "--family",
        "only kernels of this folder inside that of the kernels, a comma list, or all; repeatable",
        "the core families, or every family if `--kernel` is passed",
        {**_LISTED, "metavar": "FAMILY"},
    ),
    Option(
        "--tilings",
        "the variants that serve most calls well, or also those that only make some calls faster",
        "core",
        {"choices": ("core", "all")},
    ),
    # What the bundle is for, and where it goes.
    Option(
        "--arch",
        "sm80, sm90, sm100, ..., exact names (sm_90a), GPUs (H100, RTX4090), compute capabilities (9.0), native, comma lists, "
        "or all; repeatable",
        "in a kernel project, those of its pyproject.toml",
        {**_REPEATED, "metavar": "ARCH"},
    ),
    Option("--name", "name of the bundle", "the name of the source's folder, file or module"),
    Option("--out", "where the bundle goes", "dist/<name>", {"type": Path, "metavar": "DIR"}),
    Option("--host", "x86_64, aarch64 or all; repeatable", "this machine's", {**_REPEATED, "metavar": "CPU"}),
    Option("--glibc", "lowest glibc to run on", "2.28", {"metavar": "VERSION"}),
    Option(
        "--cudart",
        "link the CUDA runtime into the bundle, or use the one of the process",
        "static",
        {"choices": ("static", "shared")},
    ),
    Option(
        "--cuda",
        "CUDA major version of CuTe DSL's backend",
        "the installed one",
        {"type": int, "choices": (12, 13)},
    ),
    # What the build may use.
    Option("--jobs", "compile workers", "one per core", {"type": int, "default": available_cores(), "metavar": "N"}),
    Option(
        "--memory",
        "limit the memory of the build with all its processes, such as 4G",
        "no limit",
        {"metavar": "SIZE"},
    ),
    Option(
        "--timeout",
        "time limit for one variant, and for importing one file of the kernels",
        str(DEFAULT_TIMEOUT),
        {"type": float, "metavar": "SECONDS"},
    ),
    Option(
        "--executor",
        "compile on a cluster: dask://host:port, or tls://host:port through TLS",
        "on this machine",
        {"metavar": "URL"},
    ),
    Option(
        "--dask-security",
        "certificates for tls:// as TOML, JSON or YAML: ca, cert and key",
        "Dask's configuration",
        {"type": Path, "metavar": "FILE"},
    ),
    # What the bundle holds.
    Option(
        "--keep",
        f"keep intermediate files in the bundle: a comma list of {', '.join(KEEPABLE)}",
        "",
        {"default": "", "metavar": "KINDS"},
    ),
    Option(
        "--cache",
        "where compiled code and zig's cache are kept between builds: a folder, `none`, or the URL of a shared cache such as "
        "s3://bucket/prefix, used behind the local folder",
        "AOT_CACHE, or else the user's cache folder",
        {"metavar": "DIR_OR_URL"},
    ),
    Option("--cache-read-only", "do not write to the shared cache", "", _FLAG),
    Option(
        "--tuning",
        "compile these measured choices into the bundle: a file that `tune` wrote; repeatable",
        "the files in a folder `tuning` of the kernels' folder",
        {**_REPEATED, "type": Path, "metavar": "FILE"},
    ),
    Option("--line-info", "let profilers show source lines; this puts paths into the code", "", _FLAG),
    Option(
        "--trust",
        "let recorded calls hold pickles and name code of any module: who wrote them chooses what is executed",
        "",
        _FLAG,
    ),
    Option("--no-archives", "leave out the archives for static linking", "", _FLAG),
    Option("--no-wait", "fail at once if another process is writing to the same directory", "", _FLAG),
    Option("--allow-incomplete", "let an incomplete build replace a complete bundle", "", _FLAG),
    Option(
        "--wheelhouse",
        "folder with NVIDIA's wheels for other hosts, for machines without a network",
        "",
        {"type": Path, "metavar": "DIR"},
    ),
)
OPTIONS = {option.name: option for option in _DECLARED}


def add_options(parser: argparse.ArgumentParser, *names: str, absent: Mapping[str, str] | None = None) -> None:
    """Offer these options; ``absent`` says what holds in this command if one is not passed."""
    for name in names:
        option = OPTIONS[name]
        told = (absent or {}).get(name, option.absent)
        parser.add_argument(name, help=f"{option.help} (default: {told})" if told else option.help, **option.settings)
        if option.before:
            add_old_spelling(parser, option.before, option.destination)


def add_build_options(
    parser: argparse.ArgumentParser, *names: str, absent: Mapping[str, str] | None = None, keep_rest: str = ""
) -> None:
    """Offer these options of a command whose arguments become the settings of a build. All others have their defaults.

    ``keep_rest`` names the option that keeps what else a bundle at the destination holds.
    """
    add_options(parser, *names, absent=absent)
    parser.set_defaults(**{one.destination: one.default for one in OPTIONS.values() if one.name not in names})
    if not keep_rest:
        parser.set_defaults(add=False, replace=False)
        return
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument(
        keep_rest,
        dest="add",
        action="store_true",
        help="keep what else the bundle at `--out` holds; fails if that is out of date (default: stop if it holds more "
        "than this build makes)",
    )
    ways.add_argument(
        "--replace", action="store_true", help="make exactly this bundle, whatever bundle is at `--out` now"
    )
