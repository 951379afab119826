"""Values in a form that is the same in every process, and different for different code."""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import functools
import linecache
import logging
import math
import multiprocessing
import queue
import random
import re
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple, Optional

import pytest
from aot_runtime.serving.values import forms
from aot_runtime.serving.values.digests import UnstableError, digest
from aot_runtime.serving.values.forms import Forms
from observing import run_python


class Color(enum.Enum):
    RED = 1


class Pair(NamedTuple):
    left: int
    right: int


class Settings:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class Slotted:
    __slots__ = ("tile",)

    def __init__(self, tile: int) -> None:
        self.tile = tile


class SymInt:
    __module__ = "cutlass"

    def __init__(self, divisibility: int = 1, width: int = 32) -> None:
        self.divisibility, self.width = divisibility, width


def form(value: Any) -> Any:
    return Forms().of(value, "value")


def defaulting(amount: int) -> Any:
    """The word lambda in a docstring is no lambda."""
    return lambda value, more=amount: value + more  # the lambda


def adder(amount: float) -> Any:
    def add(value: float) -> float:
        return value + amount

    return add


def test_numbers_of_different_types_differ() -> None:
    assert len({digest(form(value)) for value in (1, True, 1.0, "1", b"1", None, [1], (1,))}) == 8


def test_hints_of_tuples_of_any_length_have_a_form() -> None:
    assert form({"shape": tuple[int, ...]}) != form({"shape": tuple[int, int]})
    assert form(...) == form(...) != form(NotImplemented)


def test_sets_have_one_order_and_dictionaries_the_one_that_a_loop_sees() -> None:
    assert form({"b", "a", "c"}) == form({"c", "b", "a"})
    assert form({"x": 1, "y": 2}) == form({"x": 1, "y": 2}) != form({"y": 2, "x": 1})


class Scaled(dict[str, int]):
    """A dict with an attribute."""


class Named(int):
    """A number with an attribute."""


@pytest.mark.parametrize("kind", [Scaled, Named])
def test_attributes_of_collections_and_numbers_count(kind: Any) -> None:
    one, other, bare = kind(), kind(), kind()
    one.scale, other.scale = 1, 2
    assert len({digest(form(value)) for value in (one, other, bare)}) == 3


def test_what_a_dictionary_makes_for_missing_keys_counts() -> None:
    assert form(defaultdict(int)) != form(defaultdict(list))


@pytest.mark.parametrize(
    "make",
    [
        threading.Lock,
        threading.RLock,
        multiprocessing.RLock,
        threading.local,
        threading.Condition,
        threading.Event,
        lambda: queue.Queue(3),
        lambda: logging.getLogger("of.forms"),
        lambda: re.compile("a+"),
        lambda: ContextVar("of forms", default=2),
    ],
)
def test_what_an_object_keeps_for_threads_and_logs_has_a_form(make: Callable[[], Any]) -> None:
    settings = form(Settings(tile=4, kept=make()))
    assert settings == form(Settings(tile=4, kept=make())) != form(Settings(tile=8, kept=make()))


def test_a_queue_is_told_by_its_items_and_its_length() -> None:
    assert form(deque([1, 2])) == form(deque((1, 2)))
    assert len({str(form(value)) for value in (deque([1]), deque([2]), deque([1], 3), [1])}) == 4


@pytest.mark.parametrize("value", [ctypes.c_int(1), random.Random(1), memoryview(b"1")])
def test_what_c_keeps_out_of_sight_is_refused(value: Any) -> None:
    with pytest.raises(UnstableError, match="shows nothing of its content"):
        form(value)


def test_classes_enums_and_named_tuples_go_by_name_and_objects_by_their_attributes() -> None:
    assert form(Color.RED)[-1] == "RED"
    assert form(Settings) == ["class", f"{__name__}.Settings"]
    assert form(Settings(tile=(64, 128))) == form(Settings(tile=(64, 128))) != form(Settings(tile=(64, 64)))
    assert form(Slotted(1)) != form(Slotted(2))
    assert form(Pair(1, 2)) != form((1, 2))


def test_functions_differ_by_what_they_enclose_and_by_their_defaults() -> None:
    assert form(adder(1.0)) == form(adder(1.0)) != form(adder(2.0))
    assert form(functools.partial(math.pow, 2)) != form(functools.partial(math.pow, 3))
    assert form(defaulting(1)) != form(defaulting(2))


def test_a_class_that_code_has_made_goes_by_what_it_holds() -> None:
    made = [type("Epilogue", (Settings,), {"act": staticmethod(adder(amount))}) for amount in (1.0, 1.0, 2.0)]
    one, same, other = (form(kind) for kind in made)
    assert one == same != other


TABLE: list[Any] = []


@TABLE.append
def _(v: int) -> int:
    return v * 2


@TABLE.append
def _(v: int) -> int:  # type: ignore[no-redef]
    return v * 3


@TABLE.append
class _:  # type: ignore[no-redef]
    scale = 2


@TABLE.append
class _:  # type: ignore[no-redef]
    scale = 3


def scaled(by: int) -> Any:
    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def call(v: int) -> int:
            return int(function(v)) * by

        return call

    return decorate


def plain(v: int) -> int:
    return v


def factory(by: int) -> Any:
    """A function and classes that differ by what a setting was when they were made, and not by their text or name."""

    def function(v: Numbers[by]) -> int:  # type: ignore[valid-type]
        return v

    function.by = by  # type: ignore[attr-defined]

    class Called:
        def __call__(self, v: int) -> int:
            return v * by

    class Listed(list):  # type: ignore[type-arg]
        scale = by

    class Fields(NamedTuple):
        left: int = 1

        def scaled(self) -> int:
            return self.left * by

    @dataclasses.dataclass
    class Options:
        items: list[int] = dataclasses.field(default_factory=lambda: [by])

    class Inherited(Called):
        pass

    level = enum.Enum("Level", {"LOW": by})  # type: ignore[misc]
    return function, Called(), Listed(), Fields(), Options, Inherited(), level.LOW


class Numbers:
    def __class_getitem__(cls, by: int) -> Any:
        return f"Numbers[{by}]"


@pytest.mark.parametrize("number", range(7))
def test_what_a_factory_made_goes_by_its_content(number: int) -> None:
    one, same, other = (form(factory(by)[number]) for by in (2, 2, 3))
    assert one == same != other


def test_forms_stay_the_same_when_they_are_asked_again_or_a_function_is_compiled() -> None:
    function, value, *_ = factory(2)
    before = form(type(value)), form(value), form(function)
    function._dsl_kernel_sym = object()  # as CuTe DSL does to those that it compiles
    assert (form(type(value)), form(value), form(function)) == before


def test_functions_and_classes_of_one_name_are_told_apart() -> None:
    assert len({digest(form(item)) for item in TABLE}) == 4
    assert form(TABLE[2]()) != form(TABLE[3]())


def test_what_wraps_a_function_counts() -> None:
    made = [plain, scaled(2)(plain), scaled(2)(plain), scaled(3)(plain)]
    bare, one, same, other = (form(function) for function in made)
    assert one == same != other and bare not in (one, other)


def named_by(name: str) -> Any:
    def function(v: int) -> int:
        return v

    function.__name__ = name
    return function


def test_the_name_that_a_function_was_given_counts() -> None:
    assert form(named_by("relu")) == form(named_by("relu")) != form(named_by("gelu"))


class Sentinel:
    """Objects of this class hold nothing."""


AUTO, NEVER = Sentinel(), Sentinel()


def test_empty_objects_go_by_the_names_that_their_module_has_for_them() -> None:
    assert form(AUTO) == form(AUTO) != form(NEVER)


SPLIT: list[Any] = [
    lambda v: (
        v * 2  # the text of this lambda does not end with its first line
    ),
    lambda v: (
        v * 3
    ),
]  # fmt: skip


def test_all_lines_of_a_lambda_count() -> None:
    one, other = (form(function) for function in SPLIT)
    assert one != other


def test_no_class_is_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that serves may run for months, and libraries generate classes."""
    monkeypatch.setattr(forms, "_MOST_CLASSES", 8)
    for _ in range(20):
        form(type("Made", (Settings,), {})(tile=1))
    assert len(forms._words) <= 8


def test_symbols_are_numbered_as_they_are_met() -> None:
    made, n, m = Forms(), SymInt(), SymInt(8, 64)
    assert [made.symbol(item) for item in (n, m, n)] == ["?0", "?1%8:i64", "?0"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "shows nothing of its content"),
        ([iter([1])], r"value\[0\] is a builtins.list_iterator"),
        (memoryview(b"x"), "shows nothing of its content"),
    ],
)
def test_what_has_no_lasting_form_is_refused_with_its_place(value: Any, words: str) -> None:
    with pytest.raises(UnstableError, match=words):
        form(value)


def test_a_class_that_code_makes_with_slots_has_a_form() -> None:
    def make(default: int) -> type:
        return dataclasses.make_dataclass("Made", [("alpha", int, default)], slots=True, namespace={"kind": default})

    assert form(make(1)) == form(make(1)) != form(make(2))
    assert ["alpha", "slot"] in [list(item) for item in form(make(1))[3].items()]


def test_hints_go_by_their_parts_and_not_by_what_typing_keeps_in_them() -> None:
    assert (
        form(Optional[int])  # noqa: UP045
        == form(int | None)
        == ["hint", "Union", [["class", "builtins.int"], ["class", "builtins.NoneType"]]]
    )
    assert form(list[int]) == ["hint", ["class", "builtins.list"], [["class", "builtins.int"]]] != form(list[str])
    assert form(Any) == ["hint", "typing.Any"]


def generated(body: str, **names: Any) -> Any:
    """A function whose source nobody can read, as quack makes its epilogues."""
    known = {"__name__": "lib.generated", **names}
    exec(compile(f"def epilogue(acc):\n    return {body}\n", "<lib>", "exec"), known)
    return known["epilogue"]


def test_hints_of_functions_have_a_form() -> None:
    assert form(Callable[..., int]) == form(Callable[..., int]) != form(Callable[[int], int])


def test_functions_without_a_source_go_by_their_code_and_what_it_names() -> None:
    forms = [form(generated(body)) for body in ("acc + 1", "acc + 1", "acc + 2", "acc - 1")]
    assert forms[0] == forms[1]
    assert len({digest(item) for item in forms}) == 3
    one, other = (form(generated("act(acc)", act=adder(amount))) for amount in (1.0, 2.0))
    assert one != other


def test_generated_functions_whose_text_was_kept_go_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def kept(body: str) -> Any:
        text = f"def epilogue(acc):\n    return {body}\n"
        monkeypatch.setitem(linecache.cache, "<lib>", (len(text), None, text.splitlines(True), "<lib>"))
        forms = Forms()
        return forms.of(generated(body), "value"), forms.python

    (one, python), (other, _) = kept("acc + 1"), kept("acc + 2")
    assert one != other and python is None


@pytest.fixture
def epilogue(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes a function from a text that may have the address of ``act``, which it reads, in its name or body."""

    def make(act: Any, name: str, body: str) -> Any:
        text = f"def {name}(acc):\n    {body}\n    return act(acc)\n"
        monkeypatch.setitem(linecache.cache, "<lib>", (len(text), None, text.splitlines(True), "<lib>"))
        known = {"__name__": "lib.generated", "act": act}
        exec(compile(text, "<lib>", "exec"), known)
        return known[name]

    return make


@pytest.mark.parametrize("digits", ["x", "d"])
def test_an_address_in_a_generated_identifier_is_the_name_of_what_lies_there(
    epilogue: Callable[..., Any], digits: str
) -> None:
    def form_with(act: Any, tag: str = "tag") -> Any:
        address = f"{id(act):{digits}}"
        return form(epilogue(act, f"epilogue_{address}", f"{tag} = 'act_{address}'"))

    one, same, other = adder(1.0), adder(1.0), adder(2.0)  # at three addresses
    assert form_with(one) == form_with(same) != form_with(other)
    assert form_with(one) != form_with(one, "mark")


@pytest.mark.parametrize("number", ["{:d}", "0x{:x}", "'{:d}'"])
def test_a_generated_text_with_an_address_in_a_number_is_refused(epilogue: Callable[..., Any], number: str) -> None:
    act = adder(1.0)
    with pytest.raises(UnstableError, match="the address of `act`"):
        form(epilogue(act, "epilogue", f"tag = {number.format(id(act))}"))


def test_a_function_without_a_source_notes_the_version_of_python() -> None:
    forms = Forms()
    forms.of(adder(1.0), "value")
    assert forms.python is None
    forms.of(generated("acc"), "value")
    assert forms.python == f"{sys.version_info.major}.{sys.version_info.minor}"


def test_a_function_with_several_lambdas_inside_has_a_form() -> None:
    def choose(first):
        return (lambda x: x + 1) if first else (lambda x: x + 2)

    assert Forms().of(choose, "choose") == Forms().of(choose, "choose")


def test_two_lambdas_on_one_line_cannot_be_told_apart() -> None:
    pair = [lambda x: x + 1, lambda x: x + 2]  # fmt: skip
    with pytest.raises(UnstableError, match="lambdas on one line"):
        form(pair)


def test_lambdas_of_one_statement_in_lines_of_their_own_are_told_apart() -> None:
    table = {"relu": lambda x: max(x, 0),
             "twice": lambda x: x * 2}  # fmt: skip
    assert form(table["relu"]) != form(table["twice"])
    assert form(table) == form(dict(table))


def test_a_value_that_contains_itself_has_a_form_that_shows_where_it_leads_back() -> None:
    def cycle(depth: int) -> list[Any]:
        value: list[Any] = []
        value.append(value if depth == 0 else [value])
        return value

    assert form(cycle(0)) == form(cycle(0)) == ["list", [["above", 0]]]
    assert form(cycle(1)) == ["list", [["list", [["above", 0]]]]]
    assert form([cycle(0)]) == ["list", [["list", [["above", 1]]]]]


def test_forms_are_the_same_in_processes_with_other_hash_seeds() -> None:
    code = """
    from aot_runtime.serving.values.digests import digest
    from aot_runtime.serving.values.forms import Forms
    def outer(k):
        def modify(x):
            return {"a", "b", k} and (lambda: x)
        return modify
    class Kernel:
        def __init__(self):
            self.names, self.modify = {"a", "b", "c", "d"}, outer(3)
    import pathlib, sys
    print(digest(Forms().of({"set": {"a", "b", "c", "d", "e"}, "kind": pathlib.Path}, "value")))
    """
    assert len({run_python(code, variables={"PYTHONHASHSEED": seed}) for seed in ("1", "2", "3")}) == 1


class _Bound:
    """A function of C++ as nanobind shows it."""

    __module__ = "cutlass._mlir._mlir_libs._cutlass_ir._cute"
    __qualname__ = "pack_int_tuple"

    def __call__(self) -> None: ...


def test_a_function_of_c_plus_plus_is_known_by_its_name() -> None:
    bound = type("nb_func", (_Bound,), {})()
    type(bound).__module__ = "nanobind"
    bound.__module__, bound.__qualname__ = _Bound.__module__, "pack_int_tuple"
    assert form(bound) == ["builtin", "cutlass:pack_int_tuple"]


class BitCode(Settings):
    __module__ = "cutlass.base_dsl.ffi"


def test_a_library_that_is_linked_goes_by_its_content(tmp_path: Path) -> None:
    found = []
    for name, content in (("a", b"1"), ("b", b"1"), ("a", b"2")):
        (tmp_path / name).write_bytes(content)
        found.append(form(BitCode(path=str(tmp_path / name))))
    assert found[0] == found[1] != found[2]


def test_streams_show_their_handles() -> None:
    driver = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
    default, legacy = (Forms().of(driver.CUstream(handle), "stream") for handle in (0, 1))
    assert default == ["stream", 0] and legacy == ["stream", 1]


def test_arrays_go_by_their_content_and_functions_of_numpy_by_name() -> None:
    numpy = pytest.importorskip("numpy")
    arrays = [numpy.array([1, 2]), numpy.array([1, 3]), numpy.array([1, 2], dtype="i2"), numpy.array([[1, 2]])]
    arrays += [numpy.ones((2, 2)), numpy.ones((2, 2), order="F")]
    assert len({digest(form(array)) for array in arrays}) == len(arrays)
    assert form(numpy.array([1, 2])) == form(arrays[0])
    assert form(numpy.add) == ["builtin", "numpy.add"] and form(numpy.prod) == ["builtin", "numpy.prod"]
    for value in (numpy.array([object()]), numpy.frompyfunc(len, 1, 1)):
        with pytest.raises(UnstableError):
            form(value)


def test_methods_of_classes_of_c_go_by_name() -> None:
    assert form(str.upper) == ["builtin", "builtins.str.upper"] != form(str.lower)
    assert form(int.__add__) != form(int.__mul__)
