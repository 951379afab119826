"""Where tokens of a cache are."""

from __future__ import annotations

from cutlass import Int32


def find_token(pages, sequence: Int32, token: Int32, size: Int32) -> tuple[Int32, Int32]:
    """The page of a token, and its place there. ``pages`` names the pages of each sequence, of ``size`` tokens.

    Without pages, a sequence is in line, as if it were a page of its own.
    """
    return (sequence, token) if pages is None else (pages[sequence, token // size], token % size)
