"""Arguments of a call in words: those of a tensor tell what is dynamic in it, and not the sizes of one call."""

from __future__ import annotations

import dataclasses
import enum
import linecache
from types import SimpleNamespace
from typing import Any, Union

import pytest
from aot_runtime.serving.calls import _Arguments, describe
from aot_runtime.serving.values.digests import UnstableError
from aot_runtime.serving.values.forms import Forms


class Float16:
    width = 16


class _Tensor:
    """A tensor of a framework: the layout in words is last in its key."""

    element_type, dynamic_shapes_mask = Float16, (0, 1)
    __cache_key__: Any = (Float16, "gmem o (?,64):(64,1)")

    def __init__(self, rows: int = 4) -> None:
        self.shape, self.stride = (rows, 64), (64, 1)
        self.memspace = SimpleNamespace(name="gmem")


class _FakeTensor(_Tensor):
    @property
    def __cache_key__(self) -> Any:  # type: ignore[override]
        raise AssertionError("the layout of a fake is in its attributes")


def words(value: Any) -> str:
    return _Arguments(Forms())._tensor(value)


def test_a_tensor_of_a_framework_is_known_by_its_layout_in_words() -> None:
    assert words(_Tensor()) == "tensor Float16 gmem o (?,64):(64,1) align 2" == words(_Tensor(rows=8))


def test_a_fake_is_known_by_its_extents_and_strides() -> None:
    assert words(_FakeTensor()) == "tensor Float16 (4, 64) strides (64, 1) gmem align 2"
    assert words(_FakeTensor(rows=8)) == "tensor Float16 (8, 64) strides (64, 1) gmem align 2"


class Shape(tuple):
    pass


@dataclasses.dataclass
class Config:
    n: int

    def run(self, x: Any) -> None: ...


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Constexpr:
    __module__ = "cutlass"


class Known(Constexpr): ...


def function(x: Any) -> None: ...


def with_a_constant(x: Known) -> None: ...


def with_attribute(value: Any, n: int) -> Any:
    value.n_of_tests = n
    return value


def key(called: Any, *args: Any, **kwargs: Any) -> str:
    return describe(None, called, args, kwargs).key


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1, 2], (1, 2)),
        (Shape((1, 2)), (1, 2)),
        (with_attribute(Shape((1, 2)), 1), with_attribute(Shape((1, 2)), 2)),
        (with_attribute(Config(1), 1), with_attribute(Config(1), 2)),
        (Level.LOW, Level.HIGH),
        (True, 1),
    ],
)
def test_arguments_that_tracing_can_tell_apart_have_other_keys(one: Any, other: Any) -> None:
    assert key(function, one) != key(function, other)


def test_the_size_of_a_number_is_no_part_of_a_key() -> None:
    assert key(function, 1) == key(function, 2)
    assert key(function, Config(1)) == key(function, Config(2))


Shapes = Union[int, tuple["Shape", ...]]  # noqa: UP007  as CuTe DSL writes its own


def with_a_shape(x: Shapes) -> None: ...


@dataclasses.dataclass
class TakenApart:
    """CuTe DSL asks such an object what it passes on. What it keeps is a constant of the code."""

    n: int

    def __new_from_mlir_values__(self, values: Any) -> Any:
        return self


class Numeric:
    __module__ = "cutlass"


class Int32(Numeric): ...


class Int64(Numeric): ...


def converting(to: type) -> Any:
    def function(n: Any) -> None: ...

    function.__annotations__["n"] = to
    return function


def test_numbers_that_become_constants_are_part_of_the_key() -> None:
    assert key(with_a_shape, (1, (2, 3))) == key(with_a_shape, (1, (2, 3))) != key(with_a_shape, (1, (2, 4)))
    assert key(function, TakenApart(1)) != key(function, TakenApart(2))
    assert key(function, (TakenApart(1), 1)) == key(function, (TakenApart(1), 2))


def test_the_type_that_an_annotation_makes_of_a_number_is_part_of_the_key() -> None:
    assert key(converting(Int32), 1) == key(converting(Int32), 2) != key(converting(Int64), 1)


class Act(enum.Enum):
    RELU = 1
    GELU = 2

    def __call__(self, x: Any) -> None: ...

    def run(self, x: Any) -> None: ...


class Table(dict[str, int]):
    def run(self, x: Any) -> None: ...


def of_a_class(n: int) -> Any:
    class Op:
        scale = n

        @classmethod
        def run(cls, x: Any) -> None: ...

    return Op.run


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Act.RELU, Act.GELU),
        (Act.RELU.run, Act.GELU.run),
        (of_a_class(1), of_a_class(2)),
        (with_attribute(Table(), 1).run, with_attribute(Table(), 2).run),
    ],
)
def test_whatever_a_method_is_called_of_is_part_of_the_key(one: Any, other: Any) -> None:
    assert key(one, 1) != key(other, 1)


def test_an_object_whose_method_is_called_by_its_class_is_part_of_the_key() -> None:
    assert key(Config.run, Config(1), 1) != key(Config.run, Config(2), 1)
    assert key(Config.run, Config(1), 1) == key(Config.run, Config(1), 2)


def test_a_class_of_constants_may_have_a_name_of_its_own() -> None:
    assert key(with_a_constant, 1) != key(with_a_constant, 2)


def test_keywords_that_change_the_code_are_refused() -> None:
    with pytest.raises(UnstableError, match="the keyword pipeline"):
        key(function, 1, pipeline="another")
    assert key(function, 1, pipeline=None) == key(function, 1)


def variable(x: Any, *more: Any, **named: Any) -> None: ...


def test_variable_arguments_have_names_of_their_own() -> None:
    data = describe(None, variable, (1, 2.0, True), {"by": 1}).data
    assert data["arguments"] == {"x": "int", "vararg_1": "float", "vararg_2": "bool", "by": "int"}
    assert key(variable, 1, 2) != key(variable, 1, 2, 3)


def test_a_wrapper_with_an_address_in_its_name_has_the_key_of_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Helion names the wrapper of a kernel after the kernel and its address."""

    def call() -> Any:
        kernel = type("Kernel", (), {})
        text = f"def launch_{id(kernel):x}(x):\n    kernel(x)\n"
        monkeypatch.setitem(linecache.cache, "<lib>", (len(text), None, text.splitlines(True), "<lib>"))
        known: dict[str, Any] = {"kernel": kernel}
        exec(compile(text, "<lib>", "exec"), known)
        kept.append(kernel)  # no other one gets its address
        return describe(None, known[f"launch_{id(kernel):x}"], (1,), {})

    kept: list[Any] = []
    one, other = call(), call()
    assert one.data["callable"] == other.data["callable"] == "launch_kernel"
    assert one.key == other.key


class Pointer:
    """A class of a library that is called as one of CuTe DSL's."""

    def __init__(self, dtype: type, align: int, level: int) -> None:
        self.dtype, self._assumed_align, self.level = dtype, align, level
        self.memspace = SimpleNamespace(name="gmem")


def test_a_class_of_a_library_with_a_name_of_cute_dsl_goes_by_its_content() -> None:
    def described(level: int) -> Any:
        return _Arguments(Forms()).of(Pointer(Float16, 16, level), "pointer")

    assert described(1) == described(1) != described(2)
