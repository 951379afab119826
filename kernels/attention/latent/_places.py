"""How threads bring tokens of a latent cache to shared memory: where chunks go, and how lines are handed over to consumers."""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Int32, Uint8, pipeline

from ...sm80.tiles import CHUNK, past_l1
from ..decoding._cache_sm90 import ELEMENT_BYTES, LINE
from ._latent_sm90 import TOKENS, line_state

CHUNK_BYTES = CHUNK * ELEMENT_BYTES
LINE_CHUNKS = LINE // CHUNK


def copy_bytes(source: cute.Pointer, target: cute.Pointer) -> None:
    """Start to copy 16 bytes between places that are known to be aligned."""
    dtype = source.dtype
    layout = cute.make_layout(CHUNK_BYTES * 8 // dtype.width)
    places = source, cute.recast_ptr(target, dtype=dtype)
    atom = cute.make_copy_atom(past_l1(), dtype, num_bits_per_copy=CHUNK_BYTES * 8)
    cute.copy(atom, *(cute.make_tensor(place, layout) for place in places))


@cute.jit
def copy_chunk(token, exists, column, target):
    """The same for a token that may not exist: then the place is cleared."""
    if exists:
        copy_bytes((token.iterator + column).align(CHUNK_BYTES), target)
    else:
        zeros = cute.make_rmem_tensor(CHUNK_BYTES, Uint8)
        zeros.fill(0)
        cute.autovec_copy(zeros, cute.make_tensor(cute.recast_ptr(target, dtype=Uint8), zeros.layout))


def place_of(keys: cute.Tensor, line: Int32, row: Int32, chunk: Int32) -> cute.Pointer:
    """Where a chunk of a line is in shared memory: the eight of a row of 128 bytes are swizzled by its number."""
    memory = cute.recast_ptr(keys.iterator, dtype=keys.element_type)  # without the swizzle of the layout
    return (memory + (line * TOKENS + row) * LINE + (chunk ^ row % 8) * CHUNK).align(CHUNK_BYTES)


def await_empty(work, stage, use: Int32, line) -> None:
    """Wait until the memory of a line is empty."""
    # Not the method of its class: that would arrive for TMA.
    pipeline.PipelineAsync.producer_acquire(work.arrived, line_state(stage, use + 1, line))


def hand_over(work, stage, use: Int32, lines) -> None:
    """A warp has written its part of lines."""
    cute.arch.fence_proxy("async.shared", space="cta")  # wgmma reads what threads have written
    cute.arch.sync_warp()  # orders the writes of all lanes before the arrival of one
    arrive(work, stage, use, lines)


@cute.jit
def arrive(work, stage, use, lines):
    if cute.arch.lane_idx() == 0:
        for line in lines:
            work.ready.producer_commit(line_state(stage, use, line))
