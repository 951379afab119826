"""vLLM's monitor of compiles hears of what is compiled while a bundle is served, and not of look-ups."""

from __future__ import annotations

from pathlib import Path

import pytest
from cutlass_double import write_double
from observing import run_python

# As vLLM has it: once active, it replaces `cute.compile` by a function that tells of every call.
MONITOR = """
import functools
_active = _cutedsl_hook_installed = False
events = []
def activate():
    global _active, _cutedsl_hook_installed
    _active = True
    if not _cutedsl_hook_installed:
        import cutlass.base_dsl.compiler as module
        original = module.compile
        def monitored(function, *args, **kwargs):
            _log_cutedsl_jit_compile(function.__name__)
            return original(function, *args, **kwargs)
        module.compile, _cutedsl_hook_installed = monitored, True
def _log_cutedsl_jit_compile(fn_name):
    events.append(fn_name)
"""
PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import cutlass.base_dsl.compiler as compiler
compiler.compile = compiler.CompileCallable()
from aot_runtime.serving.server import Serving, _Miss
class Served(Serving):
    known = "known"
    def _prepare(self):
        pass
    def _open(self):
        return None
    def _find(self, compiler, function, args, kwargs):
        return "served" if function.__name__ == self.known else _Miss("not there", self.path)
class Other(Served):
    known = "other"
def known():
    pass
def other():
    pass
def unknown():
    pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_double(tmp_path)
    (tmp_path / "vllm" / "utils").mkdir(parents=True)
    (tmp_path / "vllm" / "utils" / "jit_monitor.py").write_text(MONITOR)
    return tmp_path


@pytest.mark.parametrize("first", ["import vllm.utils.jit_monitor", ""])
def test_the_monitor_hears_of_compiles_and_not_of_look_ups(folder: Path, first: str) -> None:
    code = f"""{PROGRAM}
{first}
outer = Other(Path("two"), "compile")
serving = Served(Path("one"), "compile")
import vllm.utils.jit_monitor as monitor
monitor.activate()
assert compiler.compile(known) == compiler.compile(other) == "served" and monitor.events == []
assert compiler.compile(unknown) == "compiled" and monitor.events == ["unknown"]
print("ok")
"""
    assert run_python(code, folder) == "ok"


def test_the_monitor_is_left_as_it_was_once_nothing_is_served(folder: Path) -> None:
    code = f"""{PROGRAM}
outer = Other(Path("two"), "compile")
with Served(Path("one"), "compile"):
    import vllm.utils.jit_monitor as monitor
assert monitor._cutedsl_hook_installed
outer.close()
outer.close()
monitor.activate()
assert compiler.compile(known) == "compiled" and monitor.events == ["known"]
print("ok")
"""
    assert run_python(code, folder) == "ok"
