"""What an exercise was told instead of a result, by the line that asked."""

from __future__ import annotations

import sys

__all__ = ["Notes"]


class Notes:
    """Collects what was passed over, once for each line of the script and each reason."""

    def __init__(self, script: str) -> None:
        self._script = script
        self._found: dict[tuple[int, str], None] = {}

    def add(self, what: str) -> None:
        """Note something that the innermost running line of the script led to."""
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != self._script:
            frame = frame.f_back  # type: ignore[assignment]
        self._found[frame.f_lineno if frame is not None else 0, what] = None

    @property
    def lines(self) -> tuple[str, ...]:
        """What was passed over, as ``script.py:12, 15: what``."""
        places: dict[str, list[str]] = {}
        for line, what in sorted(self._found):
            places.setdefault(what, []).extend([str(line)] if line else [])
        return tuple(
            f"{self._script}:{', '.join(lines)}: {what}".replace(":: ", ": ") for what, lines in places.items()
        )
