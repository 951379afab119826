"""A new kernel project, from the templates in ``data/project``: it builds at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..errors import UsageError
from .identity import Identity

__all__ = ["new_project"]

_TEMPLATES = Path(__file__).resolve().parent.parent / "data" / "project"
_ENDING = ".in"
_CPP, _TORCH = "cpp/", "model.py"


def new_project(folder: Path, *, cpp: bool = False, torch: bool = False) -> list[Path]:
    """Write a project into a new folder, and return the paths of its files; the folder's name is the package's."""
    name = folder.name.replace("-", "_")
    try:
        Identity.parse(name, "0.1.0")
    except UsageError as error:
        raise UsageError(error.message, hint="choose a name that Python can import, such as my_kernels") from None
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"`{folder}` exists already", hint="name a folder that does not exist")
    written = []
    for path, text in _templates():
        if (path.startswith(_CPP) and not cpp) or (path == _TORCH and not torch):
            continue
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text.replace("@NAME@", name).replace("@DISTRIBUTION@", name.replace("_", "-")))
        written.append(target)
    return written


def _templates() -> Iterator[tuple[str, str]]:
    for path in sorted(_TEMPLATES.rglob(f"*{_ENDING}")):
        yield path.relative_to(_TEMPLATES).as_posix().removesuffix(_ENDING), path.read_text("utf-8")
