"""What a recording writes down as data is rebuilt as it was, without a pickle."""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
from typing import Any, NamedTuple

import pytest
from aot_runtime.serving.objects import Objects

from aot.compile import objects
from aot.errors import DeclarationError


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
    Mode.FAST, Pair(1, [2]), Tile(64, {"x": (1, 2)}), Slotted(Tile(1, None)), math.sqrt, Tile, functools.partial,
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
