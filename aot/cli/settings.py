"""From the arguments of ``build`` to the settings of a build; in a kernel project, its pyproject.toml gives the defaults."""

from __future__ import annotations

import argparse
import os
import shlex
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..cache.places import find_places
from ..compile.messages import Options
from ..compile.sass import HINT, find_nvdisasm
from ..errors import UsageError
from ..hosts import Host, parse_glibc, parse_hosts
from ..pipeline.address import parse_cluster
from ..pipeline.settings import Settings
from ..pipeline.spellings import ALL
from .build_options import DEFAULT_TIMEOUT, KEEPABLE
from .options import parse_size

if TYPE_CHECKING:
    from ..wheel.pyproject import KernelProject

__all__ = ["build_settings", "list_settings"]

_LONGEST_TIMEOUT = 7 * 24 * 3600
_GLIBC = "2.28"
_SOURCE = "kernels"  # the folder or module of kernels if none is named


def build_settings(arguments: argparse.Namespace, archs: tuple[str, ...] = ()) -> Settings:
    """What the arguments ask for. Without ``--source``, the project in this folder is meant, if there is one.

    ``archs`` are meant if neither names some.
    """
    project = _project() if arguments.kernels is None else None
    if not (arguments.arch or archs) and project is None:
        _check_source(arguments.kernels)
        options = "pass `--arch sm90`, `--arch H100` or `--arch all`"
        if _may_be_project(Path()) and _project() is not None:
            raise UsageError(
                "no architecture was given: with `--source`, pyproject.toml does not count",
                hint=f"{options}, or leave `--source` out",
            )
        raise UsageError("no architecture was given", hint=f"{options}, or write [tool.cute-aot] in pyproject.toml")
    table = project.table if project is not None else None
    if table is not None:
        from ..wheel.pyproject import in_table

        with in_table("kernels"):
            _check_source(table.kernels)
    timeout = _first(arguments.timeout, table and table.timeout, DEFAULT_TIMEOUT)
    if arguments.jobs < 1:
        raise UsageError(f"`--jobs` is {arguments.jobs}", hint="pass at least 1")
    if not 0 < timeout <= _LONGEST_TIMEOUT:
        raise UsageError(f"`--timeout` is {timeout:g}", hint=f"pass seconds, at most {_LONGEST_TIMEOUT}")
    places = find_places(arguments.cache, os.environ)
    return Settings(
        kernels=_first(arguments.kernels, table and table.kernels, _SOURCE),
        archs=tuple(arguments.arch) or (table.archs if table is not None else archs),
        out=arguments.out,
        name=arguments.name or (project.project.identity.package if project is not None else None),
        select=tuple(arguments.kernel) or (table.select if table is not None else ()),
        families=tuple(arguments.family),
        tilings=_first(arguments.tilings, table and table.tilings, "core"),
        hosts=_hosts(arguments, project),
        jobs=arguments.jobs,
        memory=parse_size(arguments.memory) if arguments.memory is not None else None,
        timeout=timeout,
        executor=parse_cluster(arguments.executor, arguments.dask_security),
        options=Options(
            _first(arguments.cuda, table and table.cuda),
            arguments.line_info,
            _keep(arguments.keep, arguments.executor),
            trust=arguments.trust,
        ),
        add=arguments.add,
        replace=arguments.replace,
        shared_cudart=_first(arguments.cudart, table and table.cudart) == "shared",
        allow_incomplete=arguments.allow_incomplete,
        cache=places.tools,
        artifacts=places.artifacts,
        remote=places.remote,
        remote_read_only=arguments.cache_read_only,
        wheelhouse=_first(arguments.wheelhouse, Path(table.wheelhouse) if table and table.wheelhouse else None),
        archives=not arguments.no_archives,
        tuning=tuple(arguments.tuning),
        wait=not arguments.no_wait,
    )


def _check_source(kernels: str | None) -> None:
    """Raise if what ``--source`` names is neither a path nor a module: that is the first thing to fix."""
    if kernels is None or Path(kernels).exists():
        return
    if os.sep in kernels or find_spec(kernels.partition(".")[0] or " ") is None:
        raise UsageError(f"`{kernels}` does not exist", hint="pass a folder, a Python file, or an importable module")


def list_settings(arguments: argparse.Namespace) -> Settings:
    """What ``list`` plans: everything that is declared, unless arguments or the project in this folder narrow it."""
    settings = build_settings(arguments, archs=(ALL,))
    return replace(
        settings,
        name="list",  # nothing is built, so the name of the source need not be one of a bundle
        select=tuple(arguments.kernel),
        families=settings.families or ("all",),
        tilings="all",
    )


def _first(*values: Any) -> Any:
    """The first value that was given."""
    return next((value for value in values if value is not None), None)


def _project() -> KernelProject | None:
    """The kernel project in this folder, if there is one."""
    if _may_be_project(Path()):
        from ..wheel.pyproject import is_project, read_project

        if is_project(Path()):
            return read_project(Path())
    if not any(Path(name).exists() for name in (_SOURCE, f"{_SOURCE}.py")):
        _refuse_folder_of_project(Path.cwd())
    return None


def _may_be_project(folder: Path) -> bool:
    """Whether a closer look, which takes the time of some imports, may find a project. One that cannot be read may be one."""
    path = folder / "pyproject.toml"
    if not path.exists():
        return False
    with suppress(OSError):
        return b"aot" in path.read_bytes()
    return True


def _refuse_folder_of_project(here: Path) -> None:
    """Raise if a project is built from a folder inside it, where its pyproject.toml would not count."""
    from ..wheel.pyproject import is_project

    for above in here.parents:
        if _may_be_project(above) and is_project(above):
            raise UsageError(
                f"there is nothing to build in `{here}`, which lies in the kernel project `{above}`",
                hint=f"run this in the folder of the project: `cd {shlex.quote(str(above))}`, or pass `--source`",
            )


def _hosts(arguments: argparse.Namespace, project: KernelProject | None) -> tuple[Host, ...]:
    """Those that are named, else this machine's."""
    glibc = arguments.glibc or (project.table.glibc if project is not None else _GLIBC)
    return parse_hosts(arguments.host, parse_glibc(glibc))


def _keep(text: str, executor: str | None) -> tuple[str, ...]:
    kinds = tuple(kind.strip() for kind in text.split(",") if kind.strip())
    for kind in kinds:
        if kind not in KEEPABLE:
            raise UsageError(f"cannot keep {kind!r}", hint=f"known: {', '.join(KEEPABLE)}")
    if "sass" in kinds and executor is None and find_nvdisasm(os.environ) is None:
        raise UsageError("`--keep sass` needs nvdisasm, which is not installed", hint=HINT)
    return kinds
