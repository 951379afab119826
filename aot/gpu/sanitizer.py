"""``check`` under NVIDIA's compute-sanitizer: the same calls, and every access of the kernels is watched."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import UsageError

__all__ = ["FOUND", "TOOLS", "Sanitized", "sanitize"]

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
FOUND = 99  # the exit code by which compute-sanitizer says that it found something
_PROGRAM = "compute-sanitizer"


@dataclass(frozen=True)
class Sanitized:
    command: tuple[str, ...]
    exit_code: int
    output: str

    @property
    def verdict(self) -> str:
        if self.exit_code == 0:
            return "nothing was found"
        return "it found errors" if self.exit_code == FOUND else "the check failed"


def sanitize(tool: str, watched: Sequence[str]) -> Sanitized:
    """Run a command that checks kernels under one of the tools."""
    command = [_PROGRAM, f"--tool={tool}", f"--error-exitcode={FOUND}", *watched]
    if shutil.which(_PROGRAM) is None:
        raise UsageError(
            f"{_PROGRAM} is not installed", hint=f"it comes with the CUDA toolkit; with it, run `{shlex.join(command)}`"
        )
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return Sanitized(tuple(command), done.returncode, done.stdout)
