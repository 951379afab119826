"""What a recording writes down as data is rebuilt as it was, without a pickle."""

from __future__ import annotations

import dataclasses
import enum
import functools
import logging
import math
import operator
import re
import sys
import threading
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from aot_runtime.serving.objects import Objects
from observing import run_python

from aot.compile import objects
from aot.errors import DeclarationError

CUTE_DSL = types.ModuleType("cutlass")  # as a library of kernels has it among its globals


class Mode(enum.Enum):
    FAST = 1


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass(frozen=True)
class Tile:
    m: int
    parts: Any


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x: Any) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Slotted) and other.x == self.x

    __hash__ = None  # type: ignore[assignment]

    def run(self) -> Any:
        return self.x


class Own:
    """Pickles in a way of its own."""

    def __reduce__(self) -> Any:
        return Own, ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own)

    __hash__ = None  # type: ignore[assignment]


VALUES = [
    None, True, 3, "text", 2.5, math.inf, b"bytes", [1, (2, {3}), frozenset({4})], {"a": {1: None}, (1, 2): [Mode.FAST]},
    Mode.FAST, Pair(1, [2]), Tile(64, {"x": (1, 2)}), Slotted(Tile(1, None)), math.sqrt, operator.add, Tile, int,
    OrderedDict(b=1, a=2), Counter("aab"), defaultdict(list, {1: [2]}), deque([1, 2], 3), types.SimpleNamespace(n=1), range(1, 9, 2),
    slice(1, None), 1j, bytearray(b"12"), ..., re.compile("a+", re.ASCII), logging.getLogger("of.objects"),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_is_rebuilt_without_a_pickle(value: Any) -> None:
    writer = Objects()
    again = objects.rebuilt(writer.of(value, "value"))
    assert again == value and type(again) is type(value)
    assert writer.pickled == []


def test_methods_and_partial_functions_are_rebuilt() -> None:
    method, partial = Slotted(7).run, functools.partial(max, 3, key=abs)
    assert objects.rebuilt(Objects().of(method, "method"))() == 7
    assert objects.rebuilt(Objects().of(partial, "partial"))(-5) == -5


@pytest.mark.parametrize("make", [threading.Lock, threading.RLock, threading.local])
def test_a_new_lock_takes_the_place_of_the_recorded_one(make: Any) -> None:
    writer, lock = Objects(), make()
    again = objects.rebuilt(writer.of({"held": lock}, "value"))["held"]
    assert type(again) is type(lock) and again is not lock and writer.pickled == []


OF_CUTE_DSL = """
import cutlass, cutlass.cute as cute
from cuda.bindings.driver import CUstream
from aot.compile.objects import rebuilt
from aot_runtime.serving.objects import Objects

writer = Objects()
for value in (cutlass.Float32(2.5), cutlass.Boolean(True), CUstream(256), cute.math.exp, cute.exp2, cute.math):
    again = rebuilt(writer.of(value, "value"))
    same = again is value or (type(again) is type(value) and (int(again) == int(value) if isinstance(value, CUstream) else vars(again) == vars(value)))
    print(same)
print(writer.pickled)
"""


def test_numbers_streams_and_functions_of_cute_dsl_need_no_pickle() -> None:
    *same, pickled = run_python(OF_CUTE_DSL).splitlines()
    assert same == ["True"] * 6 and pickled == "[]"


def cycle() -> Any:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize("value", [Own(), [Tile(1, Own())], cycle()], ids=["own", "inside", "cycle"])
def test_what_has_to_be_pickled_is_named_and_loaded_only_if_trusted(
    value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Objects()
    data = writer.of(value, "the callable")
    assert writer.pickled == ["the callable"]
    with pytest.raises(DeclarationError) as caught:
        objects.rebuilt(data)
    assert "--trust" in (caught.value.hint or "")
    monkeypatch.setattr(objects._Trust, "given", False)  # what it was comes back
    objects.trust(True)
    assert type(objects.rebuilt(data)) is type(value)


@pytest.fixture
def plain_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """A module that does not use CuTe DSL."""
    text = """
import dataclasses, os
done = []
@dataclasses.dataclass
class Settings:
    n: int
@dataclasses.dataclass
class Busy:
    n: int
    def __post_init__(self):
        done.append(self.n)
class Ended:
    def __del__(self):
        done.append("ended")
class Kernel:
    n = property(lambda self: done.append("asked"))
    def run(self):
        done.append("run")
def act(*args, **more):
    done.append(args)
    return (args, more)
"""
    module = types.ModuleType("plain_module")
    monkeypatch.setitem(sys.modules, "plain_module", module)
    exec(text, vars(module))
    yield module
    assert module.done == [], "no code of the module ran"


def test_only_types_of_numbers_are_called_for_a_number(plain_module: types.ModuleType) -> None:
    with pytest.raises(DeclarationError, match="no type of CuTe DSL's numbers"):
        objects.rebuilt({"made": "number", "of": [{"name": "math:sqrt"}, {"plain": 3}]})
    with pytest.raises(DeclarationError, match="does not use CuTe DSL"):
        objects.rebuilt({"made": "module", "of": [{"plain": "plain_module"}]})


def test_dataclasses_of_any_module_are_rebuilt(plain_module: types.ModuleType) -> None:
    made = objects.rebuilt({"attributes": {"n": {"plain": 3}}, "class": "plain_module:Settings"})
    assert made == plain_module.Settings(3)
    assert objects.rebuilt_fields({"name": "plain_module:Settings"}, {"n": 4}) == plain_module.Settings(4)


ACTS = [
    {"name": "subprocess:run"},
    {"name": "builtins:exec"},
    {"name": "_operator:call"},
    {"name": "plain_module:act"},
    {"name": "plain_module:os.system"},
    {"name": f"{__name__}:sys.exit"},
    {"partial": [{"name": "os:system"}, {"tuple": [{"plain": "true"}]}, {"dict": []}]},
    {"attributes": {}, "class": "plain_module:Ended"},
    {"attributes": {"name": {"plain": "x"}, "delete": {"plain": True}}, "class": "tempfile:_TemporaryFileCloser"},
    {"fields": [], "class": "plain_module:act"},
    {"method": {"attributes": {}, "class": "plain_module:Kernel"}, "of": "run"},
    {"method": {"attributes": {}, "class": f"{__name__}:Tile"}, "of": "__class__"},
    {"method": {"name": f"{__name__}:cycle"}, "of": "__globals__"},
]


@pytest.mark.parametrize("data", ACTS, ids=str)
def test_a_recording_that_is_not_trusted_reaches_code_of_kernels_alone(
    data: dict[str, Any], plain_module: types.ModuleType
) -> None:
    with pytest.raises(DeclarationError) as caught:
        objects.rebuilt(data)
    assert "--trust" in (caught.value.hint or "")


@pytest.mark.parametrize("name", ["subprocess:Popen", "subprocess:run", "plain_module:act", "plain_module:Busy"])
def test_the_fields_of_an_argument_are_passed_to_dataclasses_alone(name: str, plain_module: types.ModuleType) -> None:
    with pytest.raises(DeclarationError) as caught:
        objects.rebuilt_fields({"name": name}, {"args": ["true"], "n": 1})
    assert "--trust" in (caught.value.hint or "")
