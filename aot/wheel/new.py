"""A new kernel project, from the templates in ``data/project``: it builds at once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..errors import UsageError
from ..files import making, naming, scratch_directory
from .identity import Identity

__all__ = ["new_project"]

_TEMPLATES = Path(__file__).resolve().parent.parent / "data" / "project"
_ENDING = ".in"
_README = "README.md"
_ONLY_FOR = {"cpp/": "cpp", "README.cpp.md": "cpp", "model.py": "torch", "README.torch.md": "torch"}


def new_project(folder: Path, *, cpp: bool = False, torch: bool = False) -> list[Path]:
    """Write a project into a new folder, and return the paths of its files; the folder's name is the package's."""
    name = _name(folder).replace("-", "_")
    try:
        Identity.parse(name, "0.1.0")
    except UsageError as error:
        raise UsageError(
            error.message,
            hint="choose a name of letters (a to z), digits and `_` that is not taken, such as my_kernels",
        ) from None
    if os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"`{folder}` exists already", hint="name a folder that does not exist")
    asked = {"cpp": cpp, "torch": torch}
    texts = {path: text for path, text in _templates() if all(asked[part] for part in _parts(path))}
    sections = [texts.pop(path) for path in list(texts) if path.startswith("README.") and path != _README]
    texts[_README] += "".join(sections)
    names = {"@NAME@": name, "@DISTRIBUTION@": name.replace("_", "-")}
    _write(folder, {path: _filled(text, names) for path, text in texts.items()})
    return [folder / path for path in texts]


def _name(folder: Path) -> str:
    if folder.name in (
        "",
        "..",
    ):  # `.` too: another folder takes the place of an empty one, and a shell would stay in that
        raise UsageError(
            f"`{folder}` is a folder that is there", hint="name one to make: `python -m aot new my_kernels`"
        )
    return folder.name


def _filled(text: str, names: Mapping[str, str]) -> str:
    for placeholder, name in names.items():
        text = text.replace(placeholder, name)
    return text


def _write(folder: Path, texts: Mapping[str, str]) -> None:
    """Write the files beside the folder first, so that it appears with all of them."""
    folder = folder.absolute()
    with making(folder.parent), scratch_directory(folder.parent, prefix=f".{folder.name}.new.") as scratch:
        staged = scratch / folder.name
        for path, text in texts.items():
            target = staged / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with naming(folder / path):
                target.write_text(text)
        staged.rename(folder)


def _parts(path: str) -> list[str]:
    """The options that a template is written for; none if every project has it."""
    return [option for start, option in _ONLY_FOR.items() if path.startswith(start)]


def _templates() -> Iterator[tuple[str, str]]:
    for path in sorted(_TEMPLATES.rglob(f"*{_ENDING}")):
        yield path.relative_to(_TEMPLATES).as_posix().removesuffix(_ENDING), path.read_text("utf-8")
