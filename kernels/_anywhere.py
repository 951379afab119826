"""Rows that may start anywhere, read and written in whole chunks.

Chunks between the ends of a row are aligned. Some elements are left at either end, fewer than a warp has threads: each of
the first threads has one of them. A row of another tensor beside it may start elsewhere: to read a chunk of it, a thread
reads the two aligned chunks around it and shifts them.
"""

from __future__ import annotations

from itertools import pairwise

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Uint32

from ._device import VECTOR_BYTES, fetch

SHORTEST = 64  # elements: a shorter row is not cut, because nothing might be left between its ends
LONGEST = 0x7FFFFF00  # elements: indices have 32 bits


@cute.jit
def cut_ends(rows: list[cute.Tensor], lane: Int32, chunk: int) -> tuple:
    """Rows without their ends; what a thread has of the ends: the element at its own index ``lane``, if there is one; and
    how many elements are before the first chunk.

    Chunks start where those of the first row do. The others are read by :func:`load_anywhere`: there must be a whole chunk
    around what it reads. All rows are as long as the first.
    """
    columns = cute.size(rows[0])
    head = missing(rows[0])
    spare = Int32(0)
    for other in rows[1:]:
        if (misplaced(other) + head) & (chunk - 1) > head:
            spare = Int32(chunk)
    head = head + spare
    whole = (columns - head) & -chunk
    if cutlass.const_expr(len(rows) > 1):
        whole = whole - chunk
    layout = cute.make_layout(whole)
    bodies = [cute.make_tensor(row.iterator + head, layout) for row in rows]
    bodies[0] = cute.make_tensor(bodies[0].iterator.align(VECTOR_BYTES), layout)
    before = Int32(cutlass.select_(lane < head, Int32(0), whole))
    edges = [cute.make_tensor(row.iterator + before, cute.make_layout(columns - before)) for row in rows]
    return bodies, edges, head


def load_anywhere(row: cute.Tensor, index: Int32, size: int) -> cute.Tensor:
    """A chunk of a row that :func:`cut_ends` has cut beside the first one; past the end, the last chunk."""
    return shifted(*load_around(row, index, size))


def load_around(row: cute.Tensor, index: Int32, size: int) -> tuple[cute.Tensor, cute.Tensor, Int32]:
    """The two aligned chunks around a chunk, which may be the same, and where it starts: see :func:`shifted`."""
    shift = misplaced(row)
    start = (row.iterator - shift).align(VECTOR_BYTES)
    chunks = cute.make_tensor(start, cute.make_layout(cute.size(row) + size))
    index = cutlass.min(index, cute.size(row) // size - 1)
    further = Int32(cutlass.select_(shift == 0, index, index + 1))
    return fetch(chunks, index, size), fetch(chunks, further, size), shift


# The numbers of elements below are not negative: bits are taken off, because a division would allow for a sign.


def misplaced(row: cute.Tensor) -> Int32:
    """How many elements a row starts after an aligned address."""
    return Int32(row.iterator.toint() & (VECTOR_BYTES - 1)) >> _shift(row)


def missing(row: cute.Tensor) -> Int32:
    """How many elements of a row are before an aligned address."""
    return Int32(-row.iterator.toint() & (VECTOR_BYTES - 1)) >> _shift(row)


def _shift(row: cute.Tensor) -> int:
    """The bytes of an element, as a power of two."""
    return (row.element_type.width // 8).bit_length() - 1


def shifted(left: cute.Tensor, right: cute.Tensor, shift: Int32) -> cute.Tensor:
    """The chunk that starts ``shift`` elements after the first of two chunks that lie side by side."""
    words = [Uint32(word) for chunk in (left, right) for word in _words(chunk)]
    in_word = 32 // left.element_type.width
    for step in (2, 1):  # whole words
        moved = (shift & step * in_word) != 0
        words = [Uint32(cutlass.select_(moved, later, word)) for word, later in zip(words, words[step:], strict=False)]
    if in_word == 2:
        # Of two words side by side, four bytes: those of the first one, or the last two of it and the first two of the next.
        pick = Int32(cutlass.select_((shift & 1) != 0, Int32(0x5432), Int32(0x3210)))
        words = [Uint32(cute.arch.prmt(word, later, pick)) for word, later in pairwise(words)]
    chunk = cute.make_rmem_tensor_like(left)
    target = cute.recast_tensor(chunk, Uint32)
    for i in range(VECTOR_BYTES // 4):
        target[i] = words[i]
    return chunk


def _words(chunk: cute.Tensor) -> list[Uint32]:
    words = cute.recast_tensor(chunk, Uint32)
    return [words[i] for i in range(VECTOR_BYTES // 4)]
