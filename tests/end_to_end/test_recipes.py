"""The scripts of ``examples/capture``, where their libraries are installed: every call is captured, and found again.

Nothing is built here: that takes minutes. In a process of its own, since torch and CuTe DSL are imported.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from places import PROJECT

RECIPES = {"quack_kernels": ("quack-kernels", 9), "flash_attention_4": ("flash-attn-4", 12)}
# Captures twice: what the second run would look up must be what the first one has kept.
PROGRAM = """
import json, sys
from pathlib import Path
from aot_runtime.arch import Arch
from aot.compile.messages import EXERCISE, Options
from aot.compile.process import Worker

def capture(log):
    worker = Worker(sys.argv[1], Arch.parse(sys.argv[2]), Options(source=EXERCISE), Path(log), module="aot.capture.worker")
    tables = [worker.expand(kernel.name)[0].table.name for kernel in worker.declared.kernels]
    worker.close()
    keys = sorted(kernel.captured["key"] for kernel in worker.declared.kernels)
    return keys, tables, [failure.message for failure in worker.declared.failures]

print(json.dumps([capture(log) for log in sys.argv[3:]]))
"""


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100f"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_call_of_a_recipe_is_captured_under_lasting_keys(recipe: str, arch: str, tmp_path: Path) -> None:
    library, count = RECIPES[recipe]
    try:
        importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{library} is not installed")
    script = PROJECT / "examples" / "capture" / f"{recipe}.py"
    command = [sys.executable, "-c", PROGRAM, str(script), arch, str(tmp_path / "one"), str(tmp_path / "two")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": "random"})
    assert done.returncode == 0, done.stderr
    one, two = json.loads(done.stdout)
    assert one == two
    keys, tables, failures = one
    assert not failures
    assert len(keys) == len(tables) == count
