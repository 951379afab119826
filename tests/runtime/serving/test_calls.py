"""Arguments of a call in words: those of a tensor tell what is dynamic in it, and not the sizes of one call."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from aot_runtime.serving.calls import _Arguments
from aot_runtime.serving.forms import Forms


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
