"""Shares of stream-K: they cover all steps once, and every part of a tile finds the others."""

from __future__ import annotations

import subprocess
import sys

# The compiler stays out of this process: beside the stand-in it would find a driver.
SHARED = """
import itertools
from kernels.sm90.stream_k import PARTIALS, SLOTS, count_clusters, most_parts, share_of
from kernels.sm90.tiling import Tiling

tiling = Tiling(128, 16, swapped=True, cooperative=True, stream_k=True)
for tiles, steps, most in itertools.product((1, 3, 44, 131, 133), (1, 5, 64), (1, 7, 132)):
    clusters = count_clusters(tiling, tiles, steps, most, 10**9)
    assert 1 <= clusters <= min(most, tiles * most_parts(steps, tiling.merged))
    shares = [share_of(cluster, clusters, tiles, steps) for cluster in range(clusters)]
    assert [share.first for share in shares] == [0, *(share.end for share in shares[:-1])]
    assert shares[-1].end == tiles * steps
    places = set()
    for share in shares:
        assert share.first < share.end
        for tile in range(share.first // steps, -(-share.end // steps)):
            begin, end = share.part(tile)
            assert 0 <= begin < end <= steps
            earliest, latest = share.cluster_at(tile * steps), share.cluster_at(tile * steps + steps - 1)
            assert earliest <= share.cluster <= latest and (begin == 0) == (share.cluster == earliest)
            if earliest < latest:  # a slot has one part, and a word counts those of one tile
                places.add((share.cluster * SLOTS + min(share.cluster - earliest, 1), tile))
    assert len(places) == len({slot for slot, _ in places})
assert count_clusters(tiling, 44, 64, 132, 50 * (4 + 2 * 128 * 16)) == 44  # as many as the workspace has room for
assert [most_parts(steps, 4) for steps in (1, 15, 16, 35, 36, 10**6)] == [1, 1, 2, 2, 3, 16]
print(PARTIALS.name)
"""


def test_shares_cover_all_steps_and_no_part_overwrites_another() -> None:
    done = subprocess.run([sys.executable, "-c", SHARED], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["partials"]
