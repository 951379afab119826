"""The PEP 517 backend: ``build-backend = "aot.build_backend"`` in a kernel project's ``pyproject.toml``.

``pip wheel .`` and ``python -m build`` then compile the project's kernels and make one wheel, for this
machine or for ``--config-settings=host=x86_64``. ``examples/kernel_package`` is such a project.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from .errors import AotError, BuildError, error_lines

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

_Config = Mapping[str, Any] | None
_F = TypeVar("_F", bound=Callable[..., str])


def _hook(function: _F) -> _F:
    """End the frontend's subprocess with a message, not with a traceback, if the caller made a mistake."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> str:
        try:
            return function(*args, **kwargs)
        except AotError as error:
            failures = error.failures if isinstance(error, BuildError) else ()
            print(*error_lines(error.message, error.hint, failures), sep="\n", file=sys.stderr, flush=True)
            raise SystemExit(1 if isinstance(error, BuildError) else 2) from None

    return wrapped  # type: ignore[return-value]


def get_requires_for_build_wheel(config_settings: _Config = None) -> list[str]:
    """The extra ``build`` without cute-aot: a project requires ``cute-aot`` alone, which older pips can constrain to a file."""
    from importlib.metadata import PackageNotFoundError

    from .versions import extra_requirements

    try:
        return extra_requirements("build")
    except PackageNotFoundError:  # a checkout on the path of Python, whose requirements are the user's
        return []


get_requires_for_build_sdist = get_requires_for_build_wheel
get_requires_for_build_editable = get_requires_for_build_wheel


@_hook
def build_wheel(wheel_directory: str, config_settings: _Config = None, metadata_directory: str | None = None) -> str:
    from .pipeline.events import LineProgress
    from .wheel.archive import write_wheels
    from .wheel.project import project_wheels
    from .wheel.pyproject import ConfigSettings, read_project

    config = ConfigSettings.parse(config_settings)
    project = read_project(Path.cwd())
    made = project_wheels(project, (project.host(config),), config, LineProgress())
    return write_wheels(made, Path(wheel_directory), _epoch())[0].name


@_hook
def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: _Config = None) -> str:
    """Compiles nothing, so that resolving dependencies is quick."""
    from .wheel.archive import write_files
    from .wheel.project import metadata_files
    from .wheel.pyproject import ConfigSettings, read_project

    config = ConfigSettings.parse(config_settings)
    project = read_project(Path.cwd())
    files = metadata_files(project, project.host(config))
    write_files(files, Path(metadata_directory))
    return next(iter(files)).split("/")[0]


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


@_hook
def build_editable(wheel_directory: str, config_settings: _Config = None, metadata_directory: str | None = None) -> str:
    """Build the package inside the project, in ``build/aot``, and install a pointer to it."""
    from .pipeline.events import LineProgress
    from .wheel.archive import write_wheels
    from .wheel.project import editable_wheel
    from .wheel.pyproject import ConfigSettings, read_project

    config = ConfigSettings.parse(config_settings)
    project = read_project(Path.cwd())
    made = editable_wheel(project, project.host(config), config, LineProgress())
    return write_wheels([made], Path(wheel_directory), _epoch())[0].name


@_hook
def build_sdist(sdist_directory: str, config_settings: _Config = None) -> str:
    from .wheel.pyproject import read_project
    from .wheel.sdist import write_sdist

    return write_sdist(read_project(Path.cwd()), Path(sdist_directory), _epoch()).name


def _epoch() -> int | None:
    from .wheel.archive import parse_epoch

    return parse_epoch(os.environ.get("SOURCE_DATE_EPOCH"))
