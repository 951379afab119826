"""The order in which tiles of keys add to ``grad_q``: in turn, each block of queries gets every turn once."""

from __future__ import annotations

import json

from one_lane import run_as_python

TURNS = """
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


def test_a_block_of_queries_gets_every_turn_once_from_the_first_or_the_last_keys_on() -> None:
    assert int(run_as_python(TURNS)) > 1000


AT_LAST = """
from types import SimpleNamespace
from kernels.attention.gradients._backward import AttentionBackward
at_last = lambda dim, *sizes: AttentionBackward.at_last(SimpleNamespace(tiling=SimpleNamespace(dim=dim)), *sizes)
# Tiles of a head, heads of keys, heads of queries that share one.
print([int(at_last(*case)) for case in ((128, 16, 64, 1), (128, 16, 64, 4), (128, 64, 8, 4), (64, 64, 16, 4), (64, 32, 32, 4))])
"""


def test_heads_that_queries_share_come_fewer_at_a_time_unless_that_are_all() -> None:
    assert json.loads(run_as_python(AT_LAST)) == [32, 16, 8, 8, 16]
