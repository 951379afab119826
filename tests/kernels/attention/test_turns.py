"""The order in which tiles of keys add to ``grad_q``: all tiles come once, and in turn each block of queries gets every turn once."""

from __future__ import annotations

import subprocess
import sys

# The compiler stays out of this process: beside the stand-in it would find a driver.
TURNS = """
import random
from kernels.attention.prompts._attention import UNBOUNDED, BatchOrder, Problem, Tile
from kernels.attention.gradients._backward import Side
chance, pairs = random.Random(0), 0
for _ in range(400):
    queries, tokens = (chance.randint(1, 900) for _ in range(2))
    left, right = (chance.choice((UNBOUNDED, 0, 1, 63, 64, 200)) for _ in range(2))
    rising = chance.randint(0, 1)  # whether the last keys come first
    order = BatchOrder(1, 1, 1, queries, tokens, 1, rising)
    side = Side(True, Problem(order, left, right, 1), chance.choice((64, 128)), chance.choice((48, 64, 80, 128)), True)
    tiles = [Tile(i, 0, 0, queries, tokens) for i in range(-(-tokens // side.tile_rows))]
    for block in range(-(-queries // side.tile_columns)):
        turns = [side.turn(tile, block) for tile in tiles if side.met(tile)[0] <= block < side.met(tile)[1]]
        turns = [int(turn) for turn in (reversed(turns) if rising else turns)]
        assert turns == list(range(len(turns))), (queries, tokens, left, right, side, block, turns)
        pairs += len(turns)
print(pairs)
"""

ORDER = """
import random
from kernels._scheduler import causal_at_last
chance, seen = random.Random(0), 0
for _ in range(300):
    heads, tiles, group = (chance.randint(1, most) for most in (40, 12, 50))
    first = chance.randint(0, heads)
    before = chance.randint(1, 5)
    order = [causal_at_last(i, heads, tiles, group, first, before) for i in range(heads * tiles)]
    assert sorted(order) == [(head, tile) for head in range(heads) for tile in range(tiles)], (heads, tiles, group, first)
    early = [range(head, min(head + before, first)) for head in range(0, first, before)]
    assert order[:first * tiles] == [(head, tile) for some in early for tile in reversed(range(tiles)) for head in some]
    late = [tile for _, tile in order[first * tiles:][:min(group, heads - first) * tiles]]
    assert late == sorted(late, reverse=True)
    seen += 0 < first < heads
print(seen)
"""


def test_heads_come_a_few_at_a_time_and_the_longest_tiles_of_the_last_ones_first() -> None:
    done = subprocess.run([sys.executable, "-c", ORDER], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100


def test_a_block_of_queries_gets_every_turn_once_from_the_first_or_the_last_keys_on() -> None:
    done = subprocess.run([sys.executable, "-c", TURNS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 1000
