"""Child processes are reached through variables, an existing ``sitecustomize`` still runs, and nobody else is touched."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from aot_runtime.__main__ import main
from aot_runtime.serving.caches import NO_CACHES, NO_CACHES_OF_SERVED
from aot_runtime.serving.environment import SITE, VARIABLE, recording_variables, variables
from aot_runtime.serving.server import MISS
from cutlass_double import write_double

COMPILES = """
import os, sys
sys.path.insert(0, os.environ["DOUBLE"])
from cutlass.base_dsl.compiler import CompileCallable
def kernel(x): pass
try:
    print(CompileCallable()(kernel, 1))
except Exception as error:
    print(type(error).__name__)
"""
CHILDREN = """
import multiprocessing, os, subprocess, sys
def compiles(queue):
    sys.path.insert(0, os.environ["DOUBLE"])
    from cutlass.base_dsl.compiler import CompileCallable
    try:
        queue.put(CompileCallable()(lambda x: x, 1))
    except Exception as error:
        queue.put(type(error).__name__)
if __name__ == "__main__":
    for method in ("spawn", "fork", "forkserver"):
        context = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        process = context.Process(target=compiles, args=(queue,))
        process.start()
        print(method, queue.get())
        process.join()
    for flags in ([], ["-I"], ["-E"], ["-S"]):
        code = "import sys; print('aot_runtime.serving' in str(sys.meta_path))"
        done = subprocess.run([sys.executable, *flags, "-c", code], capture_output=True, text=True, check=True)
        print(" ".join(flags) or "subprocess", done.stdout.strip())
"""


ORDER = """
import os, sys
sys.path.insert(0, os.environ["DOUBLE"])
from aot_runtime.serving import environment
begun = []
environment._record = lambda folder, losses: begun.append("record")
environment._begin = lambda settings: begun.append("serve")
environment.serve_as_told({environment.RECORD: "calls", environment.VARIABLE: "{}"})
import cutlass.base_dsl.compiler
print(*begun)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Finds what this process finds, and knows where a double of CuTe DSL lies."""
    write_double(tmp_path / "double")
    path = os.pathsep.join([str(tmp_path), *(entry for entry in sys.path if entry)])
    added = {"PYTHONPATH": path, "DOUBLE": str(tmp_path / "double")}
    return {name: value for name, value in os.environ.items() if name != VARIABLE} | added


def run(code: str, environment: Mapping[str, str], *flags: str, folder: Path | None = None) -> str:
    script = [sys.executable, *flags, "-c", code]
    if folder is not None:
        (folder / "program.py").write_text(code)
        script = [sys.executable, *flags, str(folder / "program.py")]
    done = subprocess.run(script, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_program_is_served_by_its_environment_alone(environment: dict[str, str], rows_bundle: Path) -> None:
    assert run(COMPILES, environment) == "compiled"
    served = environment | variables([str(rows_bundle)], "raise", False, environment)
    assert run(COMPILES, served) == "MissError"
    assert run(COMPILES, environment | variables([str(rows_bundle)], "compile", False, environment)) == "compiled"


def test_several_bundles_are_asked_and_the_first_decides_what_becomes_of_a_miss(
    environment: dict[str, str], rows_bundle: Path
) -> None:
    bundles = [str(rows_bundle)] * 3
    assert run(COMPILES, environment | variables(bundles, "raise", False, environment)) == "MissError"
    told = environment | variables(bundles, "compile", True, environment)
    done = subprocess.run([sys.executable, "-c", COMPILES], capture_output=True, text=True, env=told)
    assert done.stdout.strip() == "compiled"
    assert [line.split(", ")[1] for line in done.stderr.splitlines()] == ["1 not found"]  # one miss, whoever was asked


def test_children_of_every_kind_are_reached_but_isolated_ones_are_not(
    environment: dict[str, str], rows_bundle: Path, tmp_path: Path
) -> None:
    served = environment | variables([str(rows_bundle)], "raise", False, environment)
    assert run(CHILDREN, served, folder=tmp_path).splitlines() == [
        "spawn MissError", "fork MissError", "forkserver MissError", "subprocess True", "-I False", "-E False", "-S False",
    ]  # fmt: skip


RAISES = """
import os, sys
sys.path.insert(0, os.environ["DOUBLE"])
from cutlass.base_dsl.compiler import CompileCallable
class Kernel:
    def __init__(self):
        self.inner = Inner()
    def __call__(self, x): pass
class Inner:
    __slots__ = ("size",)
    def __getattribute__(self, name):
        raise RuntimeError("not now")
try:
    print(CompileCallable()(Kernel(), 1, options="--enable-tvm-ffi"))
except Exception as error:
    print(type(error).__name__, "not now" in str(error))
"""


def test_an_object_that_raises_when_it_is_looked_at_is_a_miss_with_that_reason(
    environment: dict[str, str], rows_bundle: Path
) -> None:
    served = {miss: environment | variables([str(rows_bundle)], miss, False, environment) for miss in MISS}
    assert run(RAISES, served["raise"]) == "MissError True"
    assert run(RAISES, served["compile"]) == "compiled"


def test_a_sitecustomize_that_was_there_still_runs(
    environment: dict[str, str], rows_bundle: Path, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text("ran = 'theirs'\n")
    served = environment | variables([str(rows_bundle)], "raise", False, environment)
    assert run("import sitecustomize; print(sitecustomize.ran)", served) == "theirs"
    del served[VARIABLE]
    assert run("import sitecustomize; print(sitecustomize.ran)", served) == "theirs"


def test_a_process_that_never_compiles_imports_little(environment: dict[str, str], rows_bundle: Path) -> None:
    served = environment | variables([str(rows_bundle)], "raise", False, environment)
    found = run("import sys; print('tvm_ffi' in sys.modules, 'aot_runtime.serving.server' in sys.modules)", served)
    assert found == "False False"


def test_the_folder_comes_first_and_once(rows_bundle: Path) -> None:
    once = variables([str(rows_bundle)], "warn", True, {"PYTHONPATH": "/theirs"})
    again = variables([str(rows_bundle)], "warn", True, once)
    assert once == {**once, **again} and once["PYTHONPATH"].split(os.pathsep) == [SITE, "/theirs"]


def test_wrong_commands_are_reported_before_a_program_runs(
    rows_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", str(tmp_path), "--", "true"]) == 2
    assert "manifest.json" in capsys.readouterr().err
    assert main(["serve", str(rows_bundle)]) == 2
    assert "no program is named" in capsys.readouterr().err
    assert main(["serve", str(rows_bundle), "python", "program.py"]) == 2
    assert "`python` is not a bundle: it does not exist\n\nhint: `python -m aot_runtime serve BUNDLE --" in (
        capsys.readouterr().err
    )
    assert main(["serve", str(rows_bundle), "--", "no-such-program-here"]) == 2
    assert "`no-such-program-here` cannot be run: No such file" in capsys.readouterr().err
    for words in ([], ["serv"], ["serve"], ["serve", str(rows_bundle), "--miss", "go", "--", "true"]):
        assert main(words) == 2
        message, _, hint = capsys.readouterr().err.partition("\n\n")
        assert message.startswith("error: ") and hint.startswith("hint: `python -m aot_runtime serve BUNDLE --")


def test_if_a_process_is_served_and_recorded_the_bundle_is_asked_first(environment: dict[str, str]) -> None:
    assert run(ORDER, environment) == "record serve", "the hook that is installed last is asked first"


def test_disk_caches_that_hide_compiles_are_off_unless_somebody_set_them() -> None:
    assert NO_CACHES.items() <= recording_variables("calls", {}).items()
    assert NO_CACHES_OF_SERVED.items() <= variables([], "compile", False, {}).items()
    own = dict.fromkeys(NO_CACHES, "mine")
    assert not NO_CACHES.keys() & {**recording_variables("calls", own), **variables([], "compile", False, own)}.keys()
