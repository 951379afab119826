"""What is served takes arguments in order without a detour, and names and defaults too."""

from __future__ import annotations

from typing import Any

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
