"""Every compile is seen, whether CuTe DSL was imported before or comes later, until the hook is removed."""

from __future__ import annotations

from pathlib import Path

import pytest
from cutlass_double import write_double
from observing import run_python

BEGIN = """
import sys
sys.path.insert(0, sys.argv[1])
from aot_runtime.serving.hook import Hook
seen = []
def answer(original, compiler, function, args, kwargs):
    seen.append((function, args, kwargs))
    return original(compiler, function, *args, **kwargs) + " and seen"
hook = Hook(answer)
"""


@pytest.fixture
def double(tmp_path: Path) -> Path:
    write_double(tmp_path)
    return tmp_path


def test_a_compiler_that_is_imported_later_is_seen(double: Path) -> None:
    code = (
        BEGIN
        + """
hook.install()
assert "cutlass" not in sys.modules
from cutlass.base_dsl.compiler import CompileCallable
assert CompileCallable()("f", 1, options="x") == CompileCallable()["O"]("f") == "compiled and seen"
assert seen[0] == ("f", (1,), {"options": "x"})
import cutlass.base_dsl.compiler as module
assert module.__spec__.loader.get_source(module.__name__).count("CompileCallable")
assert type(module.__spec__.loader).__name__ == type(module.__loader__).__name__ == "SourceFileLoader"
hook.remove()
assert CompileCallable()("f") == "compiled" and len(seen) == 2
print("ok")
"""
    )
    assert run_python(code, double) == "ok"


def test_a_host_function_that_is_called_is_seen_unless_it_is_part_of_a_compile(double: Path) -> None:
    code = (
        BEGIN
        + """
class Host:
    def run(self, x):
        pass
def alone(x):
    pass
hook.install()
from cutlass.base_dsl.dsl import BaseDSL
import cutlass._mlir.ir as ir
host = Host()
assert BaseDSL()._func(Host.run, host, 1) == BaseDSL()._func(alone, 2) == "called and seen"
assert seen[0] == (host.run, (1,), {}) and seen[1] == (alone, (2,), {})
assert BaseDSL()._func(alone, 2, compile_only=True) == "called"
ir.Context.current = ir.InsertionPoint.current = object()
assert BaseDSL()._func(alone, 2) == "called"
print("ok")
"""
    )
    assert run_python(code, double) == "ok"


def test_host_functions_are_seen_if_the_hook_comes_while_their_module_is_imported(double: Path) -> None:
    module = double / "cutlass" / "base_dsl" / "dsl.py"
    module.write_text("import cutlass.base_dsl.compiler\n" + module.read_text())
    compiler = double / "cutlass" / "base_dsl" / "compiler.py"
    compiler.write_text(compiler.read_text().replace("from .dsl import BaseDSL", ""))
    code = (
        BEGIN
        + """
from aot_runtime.serving.hook import when_loaded
when_loaded(lambda module: hook.install())  # as the environment has it
from cutlass.base_dsl.dsl import BaseDSL
import json.tool
assert BaseDSL()._func(print, 2) == "called and seen"
print("ok")
"""
    )
    assert run_python(code, double) == "ok"


def test_several_hooks_wait_for_one_compiler_and_the_last_is_asked_first(double: Path) -> None:
    code = (
        BEGIN
        + """
def other(original, compiler, function, args, kwargs):
    return original(compiler, function, *args, **kwargs) + " by another"
hook.install()
Hook(other).install()
from cutlass.base_dsl.compiler import CompileCallable
assert CompileCallable()("f") == "compiled and seen by another"
print("ok")
"""
    )
    assert run_python(code, double) == "ok"


def test_a_compiler_that_is_there_already_is_seen_and_waiting_can_be_stopped(double: Path) -> None:
    code = (
        BEGIN
        + """
before = list(sys.meta_path)
hook.install()
hook.remove()
assert sys.meta_path == before
from cutlass.base_dsl.compiler import CompileCallable
hook = Hook(answer)
hook.install()
assert CompileCallable()("f") == "compiled and seen" and sys.meta_path == before
theirs = CompileCallable._compile
CompileCallable._compile = lambda self, *args: theirs(self, *args) + " by them"
hook.remove()
assert CompileCallable()("f") == "compiled by them"
print("ok")
"""
    )
    assert run_python(code, double) == "ok"
