"""GPU targets: parse ``sm_90a`` and say whether code for it runs on a device.

Standard library only: the loader imports this where CuTe DSL does not exist. The rule that a call
follows is in ``aot_select.c``; :meth:`Arch.runs_on` answers tools, and a test holds the two together.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import AotError

__all__ = ["Arch", "ArchError", "Capability", "parse_capability"]

Capability = tuple[int, int]

_ARCH = re.compile(r"sm_([1-9][0-9]?)([0-9])([af]?)")
_CAPABILITY = re.compile(r"([0-9]{1,2})\.([0-9]{1,2})")
_TEGRA = frozenset({(8, 7), (11, 0)})  # these parts run only code built for them


class ArchError(AotError):
    """A text does not name a GPU architecture, or not one that is supported."""


@dataclass(frozen=True, order=True)
class Arch:
    """A compile target. ``str(Arch.parse(text)) == text`` for every valid text."""

    major: int
    minor: int
    suffix: str = ""  # "a": this chip only; "f": its family; "": the portable subset

    @classmethod
    def parse(cls, text: str) -> Arch:
        match = _ARCH.fullmatch(text)
        if match is None:
            raise ArchError(f"not a GPU architecture: {text!r}", hint="write it like sm_80, sm_90a or sm_120f")
        major, minor, suffix = match.groups()
        return cls(int(major), int(minor), suffix)

    def __str__(self) -> str:
        return f"sm_{self.major}{self.minor}{self.suffix}"

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
    pair = isinstance(value, tuple) and len(value) == 2 and all(isinstance(part, int) for part in value)
    match = _CAPABILITY.fullmatch(f"{value[0]:d}.{value[1]:d}" if pair else str(value))
    if match is not None and (pair or isinstance(value, str)):
        return (int(match[1]), int(match[2]))
    raise ArchError(f"not a compute capability: {value!r}", hint='write it like "9.0" or (9, 0)')
