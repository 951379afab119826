"""Served code is the code that tracing would give here: whatever tracing read is compared, and nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from observing import run_python
from places import PROJECT, TESTS
from without_frameworks import RESULTS as MAY_IMPORT

from aot.bundle.manifest import Manifest
from aot.compile.messages import EXERCISE, Options

FOREIGN = TESTS / "foreign"
ALLOWED = {MAY_IMPORT: "this is such a process"}


def captured(shared_bundle: Callable[..., Path], name: str) -> Path:
    options = Options(source=EXERCISE)
    exercise = FOREIGN / f"{name}_exercise.py"
    return shared_bundle(name, exercise, ("sm_90a",), name=name, shared_cudart=True, archives=False, options=options)


@pytest.fixture(scope="session")
def deep_bundle(shared_bundle: Callable[..., Path]) -> Path:
    return captured(shared_bundle, "deep")


@pytest.fixture(scope="session")
def sly_bundle(shared_bundle: Callable[..., Path]) -> Path:
    return captured(shared_bundle, "sly")


def reads_of(bundle: Path) -> dict[str, Any]:
    (kernel,) = Manifest.read(bundle).kernels.values()
    assert kernel.captured is not None
    return dict(kernel.captured["reads"]["sm_90a"])


# Each is a statement that changes one thing that tracing read, and what the miss names.
CHANGES = {
    "a global of a helper": ("helpers.ROUNDS = 3", "deeplib.helpers.ROUNDS"),
    "a global that became another type": ("helpers.ROUNDS = 2.0", "deeplib.helpers.ROUNDS"),
    "a switch that a helper imported": ("helpers.USE_FAST_MATH = False", "deeplib.helpers.USE_FAST_MATH"),
    "an attribute of a module": ("settings.OFFSET = 2", "deeplib.helpers.settings.OFFSET"),
    "a tuple in another module": ("settings.WEIGHTS = (1, 3)", "deeplib.helpers.settings.WEIGHTS"),
    "a member of an enum": ("settings.MODE = settings.Mode.SCALED", "deeplib.helpers.settings.MODE"),
    "the value of a member": ("settings.Mode.PLAIN._value_ = 5", "deeplib.helpers.settings.MODE"),
    "a dtype": ("helpers.DTYPE = cutlass.Float16", "deeplib.helpers.DTYPE"),
    "a class": ("helpers.KIND = type('Other', (), {'most': 63})", "deeplib.helpers.KIND.most"),
    "an attribute of a class": ("settings.Limits.most = 65", "deeplib.helpers.KIND.most"),
    "an attribute of the kernel's class": ("kernel.Deep.threads = 32", "deeplib.kernel.Deep.threads"),
    "an attribute of a base in another module": ("settings.Base.bias = 2", "deeplib.kernel.Deep.bias"),
    "an item of a dict": ("helpers.TABLE['b'] = (2, 4)", "deeplib.helpers.TABLE"),
    "a closure": ("helpers.add_one.__closure__[0].cell_contents = 2", "deeplib.helpers.add_one"),
    "the closure of a decorator": (
        "helpers.raise_by.__closure__[helpers.raise_by.__code__.co_freevars.index('times')].cell_contents = 3",
        "deeplib.helpers.raise_by",
    ),
    "a default": ("helpers.raise_by.__wrapped__.__defaults__ = (2,)", "deeplib.helpers.raise_by"),
    "another function": ("helpers.raise_by = helpers.add_one", "deeplib.helpers.raise_by"),
    "what only a cached function reads": ("helpers.deepest = lambda: 7", "deeplib.helpers.deepest"),
    "an environment variable": ("os.environ['DEEPLIB_SHIFT'] = '1'", "DEEPLIB_SHIFT"),
    "a variable that only a cached function reads": ("os.environ['DEEPLIB_LEVEL'] = '4'", "DEEPLIB_LEVEL"),
    "a number of the device": (
        "HardwareInfo.get_device_multiprocessor_count = lambda self: 114", "get_device_multiprocessor_count",
    ),
    "a function of CuTe DSL that a library replaces": ("cute.math.exp = helpers.add_one", "cute.math.exp"),
}  # fmt: skip

# The same for reads that are easily overlooked, of `slylib`.
SLY_CHANGES = {
    "a name that a function imports": ("settings.IMPORTED = 9", "slylib.settings.IMPORTED:"),
    "a module that a function imports": ("settings.IMPORTED_AS = 9", "slylib.settings:"),
    "an attribute of a module by its name as a text": ("settings.ASKED = ()", "slylib.settings.ASKED:"),
    "an attribute of a module by a computed name": ("settings.COMPUTED = {}", "slylib.settings.COMPUTED:"),
    "an attribute of a class by a computed name": ("settings.Limits.most = 65", "slylib.settings.Limits.most:"),
    "a global by way of globals()": ("helpers.CONSTANT = 12", "slylib.helpers.*:"),
    "a field of a dataclass": ("settings.CONFIG.stages = 3", "slylib.helpers.CONFIG.stages:"),
    "a field of a dataclass in another": ("settings.CONFIG.inner.depth = 3", "slylib.helpers.CONFIG.inner.depth:"),
    "a list in a dict in a dataclass": ("settings.CONFIG.by_name['rows'][0] = 3", "slylib.helpers.CONFIG.by_name:"),
    "a namespace": ("settings.NAMESPACE.rows = 5", "slylib.helpers.settings.NAMESPACE.rows:"),
    "an argument of a partial": ("settings.PARTIAL.keywords['factor'] = 3", "slylib.helpers.PARTIAL:"),
    "a closure in a list": ("settings.CLOSURES[0].__closure__[0].cell_contents = 9", "slylib.helpers.CLOSURES:"),
    "a closure in a dict in a list": (
        "settings.CLOSURES[1]['two'].__closure__[0].cell_contents = 9", "slylib.helpers.CLOSURES:",
    ),
    "an attribute of a function": ("settings.attributed.step = 9", "slylib.settings.attributed.step:"),
    "an attribute of a function that is passed on": ("settings.marked.weight = 9", "slylib.settings.marked.weight:"),
    "an attribute of a member that is an argument": ("settings.Level.LOW.rounds = 9", "slylib.settings.Level.LOW:"),
    "the value of a member that is an argument": ("settings.Level.LOW._value_ = 9", "slylib.settings.Level.LOW:"),
    "an attribute of a member": ("settings.Level.HIGH.rounds = 9", "slylib.helpers.Level.HIGH:"),
    "the order of a dict": ("settings.ORDERED['first'] = settings.ORDERED.pop('first')", "helpers.settings.ORDERED:"),
    "what a dict makes for missing keys": ("settings.DEFAULTS.default_factory = int", "settings.DEFAULTS.default_factory:"),
    "what a metaclass answers from": ("settings.Meta.hidden['width'] = 4", "slylib.settings.Meta.hidden:"),
    "an object behind a proxy": ("settings.PROXY.target.depth = 6", "slylib.helpers.settings.PROXY.depth:"),
    "an attribute of a dict": ("settings.TABLE.scale = 3", "slylib.helpers.settings.TABLE.scale:"),
    "a slot": ("settings.SLOTTED.value = 3", "slylib.helpers.settings.SLOTTED.value:"),
    "an attribute of a number": ("settings.NAMED.extra = 3", "slylib.helpers.settings.NAMED.extra:"),
    "what a property of a tuple reads": ("settings.Point.scale = 3", "slylib.settings.Point.scale:"),
    "flags": ("settings.FLAGS = settings.Flag.FAST | settings.Flag.EXACT", "slylib.helpers.settings.FLAGS:"),
    "an item of a list": ("settings.LISTED[-1] = 8", "slylib.helpers.settings.LISTED:"),
    "a type that the text of an annotation names": ("kernel.Scale = cutlass.Float16", "slylib.kernel.Scale:"),
    "a variable through getenv": ("os.environ['SLYLIB_ASKED'] = 'x'", "SLYLIB_ASKED"),
    "a variable through another name": ("os.environ['SLYLIB_ALIAS'] = 'x'", "SLYLIB_ALIAS"),
    "a variable that Python's own function expands": ("os.environ['SLYLIB_EXPANDED'] = 'x'", "SLYLIB_EXPANDED"),
    "a variable that is only looked for": ("os.environ['SLYLIB_IN'] = ''", "SLYLIB_IN"),
}  # fmt: skip

COMPARE = """
import importlib, json, os, sys
record, statements, folder, library = json.loads(sys.argv[1]), json.loads(sys.argv[2]), *sys.argv[3:]
sys.path.insert(0, folder)
import cutlass, cutlass.cute as cute
from cutlass.utils import HardwareInfo
from aot_runtime.arch import Arch
from aot_runtime.serving.reading.reads import changes
from aot.compile.device.devices import Device
from aot.compile.device.hardware_info import answer_for
answer_for(Device.of(Arch.parse("sm_90a")))
helpers, kernel, settings = (importlib.import_module(f"{library}.{name}") for name in ("helpers", "kernel", "settings"))
print(json.dumps(list(changes(record))), flush=True)  # or each child would print it too
for statement in statements:
    child = os.fork()
    if child == 0:
        exec(statement)
        print(json.dumps(list(changes(record))), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


def compare(
    bundle: Path, statements: list[str], folder: Path = FOREIGN, library: str = "deeplib", **variables: str
) -> list[list[str]]:
    """What differs in a fresh process, and then after each of the statements in one of its own."""
    given = json.dumps(reads_of(bundle)), json.dumps(statements), folder, library
    printed = run_python(COMPARE, *given, variables={**ALLOWED, **variables})
    return [json.loads(line) for line in printed.splitlines()]


def check_misses(changes: dict[str, tuple[str, str]], found: list[list[str]]) -> None:
    """Nothing differs at first, and each change is named."""
    before, *after = found
    assert before == []
    for (what, (_, named)), lines in zip(changes.items(), after, strict=True):
        assert any(named in line for line in lines), (what, lines)


def test_one_change_of_anything_that_tracing_read_is_a_miss_that_names_it(deep_bundle: Path) -> None:
    check_misses(CHANGES, compare(deep_bundle, [statement for statement, _ in CHANGES.values()]))


def test_reads_that_are_easily_overlooked_are_compared(sly_bundle: Path) -> None:
    statements = [statement for statement, _ in SLY_CHANGES.values()]
    check_misses(SLY_CHANGES, compare(sly_bundle, statements, library="slylib"))


def test_what_tracing_does_not_read_is_not_compared(deep_bundle: Path) -> None:
    unread = [
        "settings.UNREAD = 1",
        "kernel.server.PORT = 1",
        "kernel.Deep.describe = None",
        "kernel.deep = None",
        "os.environ['DEEPLIB_OTHER'] = '1'",
        "HardwareInfo.get_l2_cache_size_in_bytes = lambda self: 1",
    ]
    assert compare(deep_bundle, unread) == [[] for _ in range(len(unread) + 1)]
    sources = {name for name, read in reads_of(deep_bundle)["modules"].items() if read["source"] is not None}
    assert sources == {"deeplib.helpers", "deeplib.kernel"}


def test_a_switch_that_a_variable_sets_at_import_is_compared(deep_bundle: Path) -> None:
    ((found,),) = compare(deep_bundle, [], DEEPLIB_FAST_MATH="0")
    assert found == "deeplib.helpers.USE_FAST_MATH: captured true, now false"


@pytest.mark.parametrize(
    ("module", "changed"), [("helpers", True), ("kernel", True), ("server", False), ("settings", False)]
)
def test_only_the_source_of_what_ran_is_compared(deep_bundle: Path, tmp_path: Path, module: str, changed: bool) -> None:
    shutil.copytree(FOREIGN / "deeplib", tmp_path / "deeplib", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "deeplib" / f"{module}.py").open("a") as file:
        file.write("\n# an edit\n")
    (found,) = compare(deep_bundle, [], tmp_path)
    assert found == ([f"the source of deeplib.{module} changed"] if changed else [])


SERVED = """
import sys
from pathlib import Path
import aot_runtime
from standin import Standin
bundle, directory, foreign = map(Path, sys.argv[1:])
cuda = Standin.load(directory)
cuda.reset(capabilities=[(9, 0)])
serving = aot_runtime.serve(bundle)
sys.path.insert(0, str(foreign))
from aot_runtime.arch import Arch
from aot.compile.device.devices import Device
from aot.compile.device.hardware_info import answer_for
from deeplib.kernel import deep
answer_for(Device.of(Arch.parse("sm_90a")))
x, out = (cuda.tensor((5,), "float32") for _ in range(2))
try:
    deep(x, out)
except aot_runtime.MissError as error:
    print(error)
print(len(cuda.launches), serving.hits, serving.misses)
"""


@pytest.mark.parametrize(("fast", "ends"), [("1", "1 1 0"), ("0", "0 0 1")])
def test_code_with_fast_math_does_not_answer_for_code_without(
    deep_bundle: Path, standin_directory: Path, fast: str, ends: str
) -> None:
    guide = (PROJECT / "docs" / "guides" / "capture.md").read_text()
    printed = run_python(
        SERVED, deep_bundle, standin_directory, FOREIGN, variables={**ALLOWED, "DEEPLIB_FAST_MATH": fast}
    ).splitlines()
    assert printed[-1] == ends
    if fast == "0":
        assert printed[0].removeprefix(f"`{deep_bundle}`") in guide and printed[1] in guide
        assert "USE_FAST_MATH: captured true, now false" in printed[1]
