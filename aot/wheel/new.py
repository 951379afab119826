"""A new kernel project, from the templates in ``data/project``: it builds at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..errors import UsageError
from .identity import Identity

__all__ = ["new_project"]

_TEMPLATES = Path(__file__).resolve().parent.parent / "data" / "project"
_ENDING = ".in"
_README = "README.md"
_ONLY_FOR = {"cpp/": "cpp", "README.cpp.md": "cpp", "model.py": "torch", "README.torch.md": "torch"}


def new_project(folder: Path, *, cpp: bool = False, torch: bool = False) -> list[Path]:
    """Write a project into a new folder, and return the paths of its files; the folder's name is the package's."""
    name = folder.name.replace("-", "_")
    try:
        Identity.parse(name, "0.1.0")
    except UsageError as error:
        raise UsageError(error.message, hint="choose a name that Python can import, such as my_kernels") from None
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"`{folder}` exists already", hint="name a folder that does not exist")
    asked = {"cpp": cpp, "torch": torch}
    texts = {path: text for path, text in _templates() if all(asked[part] for part in _parts(path))}
    sections = [texts.pop(path) for path in list(texts) if path.startswith("README.") and path != _README]
    texts[_README] += "".join(sections)
    for path, text in texts.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text.replace("@NAME@", name).replace("@DISTRIBUTION@", name.replace("_", "-")))
    return [folder / path for path in texts]


def _parts(path: str) -> list[str]:
    """The options that a template is written for; none if every project has it."""
    return [option for start, option in _ONLY_FOR.items() if path.startswith(start)]


def _templates() -> Iterator[tuple[str, str]]:
    for path in sorted(_TEMPLATES.rglob(f"*{_ENDING}")):
        yield path.relative_to(_TEMPLATES).as_posix().removesuffix(_ENDING), path.read_text("utf-8")
