"""How products are scaled, on every architecture."""

from __future__ import annotations

from dataclasses import dataclass

BLOCK = 128  # rows of b, and elements along k, that share a scale


@dataclass(frozen=True)
class Scaling:
    """``rows``: a scale per row of ``a`` and per row of ``b``, or one for all. ``blocks``: 1 x 128 and 128 x 128."""

    kind: str = ""  # "": none
