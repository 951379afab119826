"""Runs an exercise whose compiles a bundle answers, and prints what was found: ``BUNDLE ARCH SCRIPT [--pytest ARGUMENT ...]``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from aot_runtime.arch import Arch
from aot_runtime.errors import AotError
from aot_runtime.serving.server import Serving

from aot.capture.exercise import Counts, execute, run_tests
from aot.capture.recorder import Recorder
from aot.capture.standin import Notes, standin_device
from aot.compile.device.devices import Device
from aot.compile.device.hardware_info import answer_for
from aot.errors import DeclarationError


class LookUp(Serving):
    """Answers with functions that do nothing, and looks up every call that a capture would take."""

    def _answer(
        self, original: Any, compiler: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        known = len(recorder.kernels)
        answer = recorder.answer(compiler, function, args, kwargs)
        if len(recorder.kernels) > known:  # host code and what was looked up already is none
            self._open()
            reason = getattr(self._find(compiler, function, args, kwargs), "reason", None)
            looked_up.append("" if reason is None else str(reason))
        return answer


looked_up: list[str] = []  # why a call is a miss; nothing for one that was found
bundle, arch, script, *rest = sys.argv[1:]
device, path = Device.of(Arch.parse(arch)), Path(script).resolve()
notes = Notes(str(path))
recorder = Recorder(Arch.parse(arch), str(path), notes)
LookUp(Path(bundle).resolve(), "compile")
answer_for(device)
ended, tests = "", Counts()
with standin_device(device, recorder.refuse_operator, notes):
    try:
        if rest[:1] == ["--pytest"]:
            tests = run_tests(path, rest[1:], notes)
        else:
            execute(path)
    except (AotError, DeclarationError) as error:
        ended = str(error)
missed = [reason for reason in looked_up if reason]
found = {"found": len(looked_up) - len(missed), "missed": missed, "ended": ended}
refused = [f"{one.what} by {one.called_from}: {one.reason}" for one in recorder.refused.values()]
counts = {
    "passed": tests.ran - sum(tests.failed.values()),
    "failed": sum(tests.failed.values()),
    "skipped": tests.skipped,
}
print(json.dumps({**found, "refused": refused, "tests": counts}))
