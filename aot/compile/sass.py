"""The machine code of a cubin as text, by NVIDIA's ``nvdisasm``: from its wheel, or from a CUDA toolkit."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ..errors import BuildError

__all__ = ["HINT", "disassemble", "find_nvdisasm"]

_DISTRIBUTION = "nvidia-cuda-nvdisasm"
_NAME = "nvdisasm"
HINT = f"`pip install {_DISTRIBUTION}`, or set CUDA_HOME to a CUDA toolkit"


def find_nvdisasm(environment: Mapping[str, str]) -> Path | None:
    """The wheel's goes first: its version does not depend on the machine."""
    places = [_of_wheel(), shutil.which(_NAME, path=environment.get("PATH", os.defpath))]
    places += [
        os.path.join(home, "bin", _NAME) for name in ("CUDA_HOME", "CUDA_PATH") if (home := environment.get(name))
    ]
    return next((Path(place) for place in places if place and os.access(place, os.X_OK)), None)


def _of_wheel() -> str | None:
    try:
        files = importlib.metadata.files(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((str(file.locate()) for file in files if file.name == _NAME), None)


def disassemble(cubin: bytes) -> str:
    """The text of a cubin; :class:`BuildError` if there is no disassembler, or it does not know the architecture."""
    program = find_nvdisasm(os.environ)
    if program is None:
        raise BuildError(f"`--keep sass` needs {_NAME}, which is not installed", hint=HINT)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([program, "-c", file.name], capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        raise BuildError(
            f"`{program}` cannot read the code: {done.stderr.strip()}", hint="install a newer version of it"
        )
    return done.stdout
