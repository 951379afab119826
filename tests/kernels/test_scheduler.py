"""The order of tiles: whatever shares them, each is computed once, and those that are computed together share operands."""

from __future__ import annotations

from one_lane import run_as_python

SWIZZLED = """
from kernels._scheduler import swizzled, swizzled_batch
chance = random.Random(0)
for _ in range(300):
    m, n, batch, group = (chance.randint(1, most) for most in (40, 20, 4, 9))
    order = [swizzled_batch(index, (m, n, batch), group) for index in range(m * n * batch)]
    assert sorted(order) == [(i, j, k) for i in range(m) for j in range(n) for k in range(batch)], (m, n, batch, group)
    assert [k for _, _, k in order] == sorted(k for _, _, k in order), "one matrix comes after the other"
    assert [swizzled(index, m, n, group) for index in range(m * n)] == [(i, j) for i, j, _ in order[:m * n]]
    for first in range(0, m, group):
        rows = {i for i, _, _ in order[first * n:(first + group) * n] if i // group == first // group}
        assert rows == set(range(first, min(first + group, m))), "a group of rows is done before the next one begins"
"""


def test_every_tile_of_a_batch_comes_once_and_rows_come_in_groups() -> None:
    run_as_python(SWIZZLED)


EXPERTS = """
from kernels import _scheduler
_scheduler.WARP = 1
chance = random.Random(0)
for _ in range(300):
    lengths = [chance.choice((0, 1, 128, chance.randint(0, 900))) for _ in range(chance.randint(1, 40))]
    offsets = [sum(lengths[:i + 1]) for i in range(len(lengths))]
    tiles_n, height, group, blocks = (chance.choice(of) for of in ((1, 3, 8), (64, 128, 256), (1, 4), (1, 7, 132)))
    count = _scheduler.count_tiles_of_experts(offsets, tiles_n, height)
    found = []
    for block in range(blocks):
        first = before = 0
        for index in range(block, count, blocks):
            expert, start, limit, m, n, first, before = _scheduler.tile_of_expert(
                index, offsets, tiles_n, height, group, first, before)
            assert (start, limit) == (offsets[expert] - lengths[expert], offsets[expert]), (lengths, index)
            found.append((expert, m, n))
    tiles = [(i, m, n) for i, rows in enumerate(lengths) for m in range(-(-rows // height)) for n in range(tiles_n)]
    assert sorted(found) == tiles, (lengths, tiles_n, height, group, blocks)
"""


def test_blocks_find_every_tile_of_every_expert_once_however_many_blocks_there_are() -> None:
    run_as_python(EXPERTS)


ORDER = """
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
    assert int(run_as_python(ORDER)) > 100
