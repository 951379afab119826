"""The order in which tiles of keys add to ``grad_q``: all tiles come once, and in turn each block of queries gets every turn once."""

from __future__ import annotations

import subprocess
import sys

# The compiler stays out of this process: beside the stand-in it would find a driver.
TURNS = """
import random
from kernels.attention._attention import UNBOUNDED, Problem, Tile
from kernels.attention._backward import Side
chance, pairs = random.Random(0), 0
for _ in range(400):
    queries, tokens = (chance.randint(1, 900) for _ in range(2))
    left, right = (chance.choice((UNBOUNDED, 0, 1, 63, 64, 200)) for _ in range(2))
    side = Side(True, Problem(None, left, right, 1), chance.choice((64, 128)), chance.choice((48, 64, 80, 128)))
    tiles = [Tile(i, 0, 0, queries, tokens) for i in range(-(-tokens // side.tile_rows))]
    for block in range(-(-queries // side.tile_columns)):
        turns = [side.turn(tile, block) for tile in tiles if side.met(tile)[0] <= block < side.met(tile)[1]]
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
    order = [causal_at_last(i, heads, tiles, group, first) for i in range(heads * tiles)]
    assert sorted(order) == [(head, tile) for head in range(heads) for tile in range(tiles)], (heads, tiles, group, first)
    assert order[:first * tiles] == [(head, tile) for head in range(first) for tile in reversed(range(tiles))]
    late = [tile for _, tile in order[first * tiles:][:min(group, heads - first) * tiles]]
    assert late == sorted(late, reverse=True)
    seen += 0 < first < heads
print(seen)
"""


def test_heads_come_one_by_one_and_the_longest_tiles_of_the_last_ones_first() -> None:
    done = subprocess.run([sys.executable, "-c", ORDER], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100


def test_a_block_of_queries_gets_every_turn_once_in_order_of_the_keys() -> None:
    done = subprocess.run([sys.executable, "-c", TURNS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 1000
