"""Follow ``docs/guides/first-kernel.md`` to the letter, in an empty environment, and a folder with the wheel alone.

    python tools/follow_guide.py            # installs the dependencies, which pip downloads

Blocks of code are written into the files that the guide names, and commands are run in the order of the page. The step
that needs a GPU is left out if there is none. The tests do the same with dependencies that are installed already.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]

_PART = re.compile(
    r"^## (?P<heading>[^\n]*)$|^(?:<!-- (?P<file>\S+) -->\n)?```(?P<language>\w+)\n(?P<code>.*?)^```$", re.M | re.S
)


@dataclass(frozen=True)
class Guide:
    """A page, and the folder of the project whose files it shows."""

    page: Path
    example: str


FIRST = Guide(PROJECT / "docs" / "guides" / "first-kernel.md", "examples/kernel_package/")
SHARED_MEMORY = Guide(PROJECT / "docs" / "guides" / "shared-memory.md", "examples/shared_memory/")
TENSOR_CORES = Guide(PROJECT / "docs" / "guides" / "tensor-cores.md", "examples/tensor_cores/")


@dataclass(frozen=True)
class Step:
    """A command to run, or text to add to a file."""

    command: str = ""
    file: str = ""
    text: str = ""
    on_gpu: bool = False


def steps(guide: Guide) -> Iterator[Step]:
    on_gpu = False
    for part in _PART.finditer(guide.page.read_text()):
        if part["heading"]:
            on_gpu = part["heading"].endswith("on a GPU")
        elif part["language"] == "bash":
            yield from (Step(command=line, on_gpu=on_gpu) for line in part["code"].splitlines())
        elif (part["file"] or "").startswith(guide.example):
            yield Step(file=part["file"].removeprefix(guide.example), text=part["code"])


def follow(
    folder: Path,
    environment: Mapping[str, str],
    *,
    gpu: bool,
    wanted: Callable[[str], bool] = lambda command: True,
    guide: Guide = FIRST,
) -> list[str]:
    """Do every step in ``folder``; returns the commands that were run. The first that fails raises."""
    done = []
    for step in steps(guide):
        if step.file:
            path = folder / step.file
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                file.write(("\n\n" if file.tell() else "") + step.text)
        elif wanted(step.command) and (gpu or not step.on_gpu):
            run(step.command, folder, environment)
            done.append(step.command)
    return done


def run(command: str, folder: Path, environment: Mapping[str, str]) -> None:
    words = ["bash", "-euo", "pipefail", "-c", command]
    shown = subprocess.run(
        words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if shown.returncode != 0:
        raise RuntimeError(f"`{command}` ended with exit code {shown.returncode}:\n{shown.stdout}")


def inside(environment: Path) -> dict[str, str]:
    """The variables of a shell in which a virtual environment is active."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    path = f"{environment / 'bin'}{os.pathsep}{kept.get('PATH', os.defpath)}"
    return {**kept, "PATH": path, "VIRTUAL_ENV": str(environment)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", action="store_true", help="this machine has a GPU: install torch, and check on it too")
    gpu = parser.parse_args().gpu
    with tempfile.TemporaryDirectory() as name:
        empty, project = Path(name) / "environment", Path(name) / "project"
        project.mkdir()
        subprocess.run([sys.executable, "-m", "venv", str(empty)], check=True)
        environment = inside(empty)
        run(f"pip wheel -q '{PROJECT}' --no-deps --wheel-dir wheels", project, environment)
        if gpu:
            run("pip install -q torch", project, environment)
        for command in follow(project, environment, gpu=gpu):
            print(f"ok: {command}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
