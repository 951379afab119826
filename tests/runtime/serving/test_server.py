"""What is served takes arguments in order without a detour, and names and defaults too."""

from __future__ import annotations

from typing import Any

from aot_runtime.serving.captured import CapturedCalls
from aot_runtime.serving.server import _positional


class _Bundle:
    """A bundle of one kernel with three parameters, which notes who is called."""

    def _symbol(self, kernel: str) -> Any:
        return lambda *args: ("entry", *args)

    def __getitem__(self, kernel: str) -> Any:
        return lambda a, b, c=None: ("function", a, b, c)


def test_arguments_in_order_reach_the_entry_and_others_the_function_with_names_and_defaults() -> None:
    served = _positional(_Bundle(), "scale_1", 3)  # type: ignore[arg-type]
    assert served(1, 2, 3) == ("entry", 1, 2, 3)
    assert served(1, 2) == ("function", 1, 2, None)
    assert served(1, b=2, c=3) == ("function", 1, 2, 3)
    assert served.__name__ == "scale_1"


def test_the_classes_that_were_compiled_are_known_by_their_modules() -> None:
    def call(kind: Any, *modules: str) -> Any:
        return {"key": "", "call": {"class": kind}, "sources": dict.fromkeys(modules, "")}

    captured = CapturedCalls.__new__(CapturedCalls)
    captured.calls = {
        "a": call(["class", "lib.norm.Norm"], "lib", "lib.norm"),
        "b": call(["class", "lib.norm.Back"], "lib", "lib.norm"),
        "c": call(["class", "elsewhere.Kernel"], "lib"),
        "d": {"key": "", "call": {"function": "f"}, "sources": {"lib": ""}},
    }
    assert captured.classes() == {"lib.norm": ["Back", "Norm"]}
