"""The tile scheduler of Hopper products: blocks of clusters cover an output, each tile once."""

from __future__ import annotations

from one_lane import run_as_python

COVERED = """
from kernels.sm90.scheduler import Block, TileScheduler, Work
from kernels.sm90.tiling import Tiling
chance = random.Random(0)
for _ in range(200):
    cluster_m, cluster_n = chance.choice(((1, 1), (2, 1), (1, 2), (4, 1), (1, 4), (2, 2)))
    tiling = Tiling(128, 64, cluster_m=cluster_m, cluster_n=cluster_n, gated=chance.random() < 0.3, swizzle=chance.choice((1, 4)))
    scheduler = TileScheduler(tiling)
    rows, columns, batch = chance.randint(1, 2000), chance.randint(1, 1000), chance.choice((1, 3))
    tiles = scheduler.tiles(types.SimpleNamespace(shape=(rows, columns, 1)))
    tiles = (*tiles, batch) if batch > 1 else tiles
    count, clusters = scheduler.most_tiles(tiles, None), chance.choice((1, 5, 66))
    work, found = Work(tiles, count, 0, None, ()), []
    for first in range(min(count, clusters)):
        for row in range(cluster_m):
            for column in range(cluster_n):
                block = Block(first, clusters, row, column, 0)
                assert scheduler.first_tile(work, block) == scheduler.find(first, work, block, 0, 0)[0]
                for index in range(first, count, clusters):
                    tile, _, _ = scheduler.find(index, work, block, 0, 0)
                    found.append((tile.batch, tile.top, tile.n))
    assert len(set(found)) == len(found), tiling
    needed = {
        (k, top, n) for k in range(batch) for top in range(0, rows, tiling.m) for n in range(-(-columns // tiling.columns))
    }
    assert needed <= set(found), (tiling, rows, columns, batch)
"""


def test_clusters_compute_every_tile_of_an_output_once_however_many_run() -> None:
    run_as_python(COVERED)
