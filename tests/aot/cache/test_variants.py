"""A compiled variant out of the cache has its launcher and facts, and files that a compile writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from aot.cache.entries import EntryError, pack, record_bytes
from aot.cache.variants import pack_variant, unpack_variant
from aot.compile.messages import Compiled

COMPILED = Compiled("k__f32", (), ("ab" * 32,), 10, 0.5)
FACTS = record_bytes(COMPILED)


def test_a_variant_comes_back_with_what_was_kept(tmp_path: Path) -> None:
    for name in ("k.ll", "k.ptx", "k.cubin", "other.ptx"):
        (tmp_path / name).write_text(name)
    content = pack_variant(tmp_path / "k.ll", COMPILED, ("ptx",))
    there = tmp_path / "there"
    there.mkdir()
    assert unpack_variant(content).write(there / "k.ll") == COMPILED
    assert {path.name: path.read_text() for path in there.iterdir()} == {"k.ll": "k.ll", "k.ptx": "k.ptx"}


@pytest.mark.parametrize(
    "parts",
    [
        {"ll": b""},
        {"facts.json": FACTS},
        {"facts.json": b"{}", "ll": b""},
        {"facts.json": b"[", "ll": b""},
        {"facts.json": FACTS, "ll": b"", "so": b""},
    ],
    ids=str,
)
def test_what_is_not_a_variant_is_refused(parts: dict[str, bytes]) -> None:
    with pytest.raises(EntryError):
        unpack_variant(pack(parts))
