"""An exercise is told something for attributes that tracing would store, and is told nothing else."""

from __future__ import annotations

import pytest

from aot.capture.standin import Notes
from aot.capture.stored import Stored


class Kernel:
    def __call__(self) -> None:
        self.stages = 3
        self._plan()

    def _plan(self) -> None:
        self.warps, self.tile = 4, 64


class Answering(Kernel):
    def __getattr__(self, name: str) -> str:
        return f"its own {name}"


def test_an_attribute_that_tracing_stores_is_made_up_once_the_object_was_compiled() -> None:
    notes = Notes(__file__)
    stored = Stored(notes)
    kernel, other, answering = Kernel(), Kernel(), Answering()
    with stored.answered():
        assert not hasattr(kernel, "stages")
        for one in (kernel, answering):
            stored.add(one, Kernel.__call__)
        assert f"{kernel.stages}{kernel.warps}" == "" and int(kernel.tile) == 1
        assert not hasattr(kernel, "count") and not hasattr(other, "stages")
        assert answering.warps == "its own warps"
        assert vars(kernel) == {}
    assert not hasattr(kernel, "stages"), "the kernel is traced as it was called"
    assert len(notes.lines) == 1 and notes.lines[0].endswith("attributes that tracing stores were made up")


def test_a_class_that_takes_no_method_is_left_alone() -> None:
    stored = Stored(Notes(__file__))
    with stored.answered():
        stored.add(3, lambda: None)
        stored.add(None, lambda: None)
        with pytest.raises(AttributeError):
            (3).stages  # type: ignore[attr-defined]  # noqa: B018
