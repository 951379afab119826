"""The order in which the tiles of a product use buffers of shared memory on their way to the output."""

from __future__ import annotations


def stores_in_flight(index: int, stores: int, buffers: int) -> int:
    """Stores that may still read shared memory when store ``index`` of a tile is prepared: those from other buffers.

    The stores of a tile take the buffers in turn and begin with the first one. So if there is an odd number of stores
    and two buffers, the first store of a tile takes the buffer of the last store of the tile before.
    """
    last = max(earlier for earlier in range(index - stores, index) if earlier % stores % buffers == index % buffers)
    return index - 1 - last
