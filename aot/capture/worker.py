"""The worker process of a capture: the source is an exercise, whose compiles become kernels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from aot_runtime.arch import Arch

from ..compile.origins.closure import closure_of
from ..compile.worker import RequestHandler, main
from ..declare.discover import Found
from ..errors import UsageError
from ..files import sha256_of
from ..records import encode
from .closure import source_files
from .exercise import run_exercise

__all__: list[str] = []


class CaptureHandler(RequestHandler):
    """Answers requests over an exercise."""

    passes_tensors_of_torch = True
    exercise: str = ""

    def read(self, request: dict[str, Any]) -> Found:
        if not request["arch"]:
            raise UsageError("an exercise runs for one architecture at a time", hint="pass `--arch`, such as sm90")
        self.exercise = request["source"]
        self.say({"reading": self.exercise})
        return run_exercise(self.exercise, Arch.parse(request["arch"]), self.options, Path(request["log"]))

    def do_closure(self, request: dict[str, Any]) -> Any:
        """As of declarations, with the script and the files of libraries, which may be edited where they lie."""
        closure = closure_of(self.kernels, self.watch)
        files = {str(Path(self.exercise).resolve()): sha256_of(Path(self.exercise))}
        for kernel in self.kernels:
            files.update(source_files(kernel.make(None).modules()))
        return encode(replace(closure, files={**closure.files, **files}))


if __name__ == "__main__":
    main(CaptureHandler)
