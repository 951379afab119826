"""GPU targets: parse ``sm_90a`` and say whether code for it runs on a device.

Standard library only: the loader imports this where CuTe DSL does not exist. The rule that a call
follows is in ``aot_select.c``. :meth:`Arch.runs_on` answers tools, and a test compares the two.
"""

from __future__ import annotations

from .errors import AotError
from .values import Value

__all__ = ["Arch", "ArchError", "Capability", "parse_capability"]

Capability = tuple[int, int]

_DIGITS = frozenset("0123456789")
_TEGRA = frozenset({(8, 7), (11, 0)})  # these parts run only code built for them


class ArchError(AotError):
    """A text does not name a GPU architecture, or not one that is supported."""


class Arch(Value):
    """A compile target. ``str(Arch.parse(text)) == text`` for every valid text."""

    __slots__ = ("major", "minor", "suffix")

    major: int
    minor: int
    suffix: str  # "a": this chip only; "f": its family; "": the portable subset

    def __init__(self, major: int, minor: int, suffix: str = "") -> None:
        self._set(major=major, minor=minor, suffix=suffix)

    @classmethod
    def parse(cls, text: str) -> Arch:
        """The target of that name. Texts other than ``sm_80``, ``sm_90a``, ``sm_120f`` raise :class:`ArchError`."""
        suffix = text[-1:] if text[-1:] in ("a", "f") else ""
        number = text[len("sm_") : len(text) - len(suffix)]
        if (
            not text.startswith("sm_")
            or len(number) not in (2, 3)
            or number[0] == "0"
            or not _DIGITS.issuperset(number)
        ):
            raise ArchError(f"not a GPU architecture: {text!r}", hint="write it like sm_80, sm_90a or sm_120f")
        return cls(int(number[:-1]), int(number[-1]), suffix)

    def __str__(self) -> str:
        return f"sm_{self.major}{self.minor}{self.suffix}"

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Arch) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __lt__(self, other: Arch) -> bool:
        return self._key() < other._key() if isinstance(other, Arch) else NotImplemented

    def __le__(self, other: Arch) -> bool:
        return self._key() <= other._key() if isinstance(other, Arch) else NotImplemented

    def _key(self) -> tuple[int, int, str]:
        return (self.major, self.minor, self.suffix)

    @property
    def capability(self) -> Capability:
        return (self.major, self.minor)

    def runs_on(self, device: Capability) -> bool:
        """Whether code for this target runs on a device of that compute capability."""
        if self.suffix == "a" or self.capability in _TEGRA or device in _TEGRA:
            return self.capability == device
        return self.major == device[0] and self.minor <= device[1]


def parse_capability(value: str | Capability) -> Capability:
    """``"9.0"``, ``(9, 0)`` -> ``(9, 0)``."""
    if isinstance(value, str):
        numbers = value.split(".")
    elif isinstance(value, tuple) and all(isinstance(part, int) for part in value):
        numbers = [f"{part:d}" for part in value]
    else:
        numbers = []
    if len(numbers) == 2 and all(1 <= len(number) <= 2 and _DIGITS.issuperset(number) for number in numbers):
        return (int(numbers[0]), int(numbers[1]))
    raise ArchError(f"not a compute capability: {value!r}", hint='write it like "9.0" or (9, 0)')
