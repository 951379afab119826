"""Make a kernel project that builds at once: a kernel, its contract, tests, pyproject.toml."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from ..report import note, print_json
from ..schema import Key

__all__ = ["KEYS", "configure_parser", "execute"]

KEYS = (
    Key("path", str, "folder of the project"),
    Key("files", tuple[str, ...], "what was written"),
)


def configure_parser(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", type=Path, metavar="NAME", help="folder to make; its name is what users import")
    add("--cpp", action="store_true", help="add a C++ program that links the kernels, with CMake")
    add("--torch", action="store_true", help="add a torch module that calls the kernels as operators")


def execute(arguments: argparse.Namespace) -> int:
    from ...wheel.new import new_project

    written = new_project(arguments.folder, cpp=arguments.cpp, torch=arguments.torch)
    if arguments.json:
        print_json({"path": str(arguments.folder), "files": [str(path) for path in written]})
        return 0
    for path in written:
        note(arguments, f"wrote {path}")
    note(arguments, f"next: `cd {shlex.quote(str(arguments.folder))} && python -m aot build`")
    note(arguments, "then: `pip install pytest && python -m pytest tests`")
    print(arguments.folder)
    return 0
