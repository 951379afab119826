"""``lib/<host>/entry.txt``: the entry library's name and digest, for C programs, which parse no JSON.

The manifest stays the truth; ``verify`` compares the two.
"""

from __future__ import annotations

from aot_runtime.manifest import FileRecord

__all__ = ["FILE_NAME", "entry_note"]

FILE_NAME = "entry.txt"


def entry_note(bundle: str, entry: str, record: FileRecord) -> str:
    """The text of the note; ``entry`` is the library's file name. ``aot_read_note_`` in ``aot.h`` reads it."""
    return f"aot-entry 1\nname {bundle}\nentry {entry}\nsize {record.size}\nsha256 {record.sha256}\n"
