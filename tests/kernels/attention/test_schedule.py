"""However blocks share tiles, every tile is taken once, and runs agree on who has parts of a unit. Numbers are Python's here, and a warp has one lane."""

from __future__ import annotations

from one_lane import run_as_python

SETUP = """
from kernels.attention import _schedule
from kernels.attention.decoding import _merge
_schedule.WARP = 1
MERGING = [_schedule.Tiles(*numbers) for numbers in ((0, 1, 0), (-2, 8, 3), (4, 2, 10))]
"""

PLANS = """
def pieces_of(run):
    tile, found = run.first, []
    while tile < run.end:
        piece = run.piece(tile)
        assert piece.start < piece.stop, (piece, run)
        found.append((tile, piece))
        tile = piece.next
    return found

def same_without_looking(run, found):
    # Units have no places ahead of their tiles.
    place = run.place(found[0][0])
    assert run.tiles(place) == sum(piece.stop - piece.start for _, piece in found)
    for tile, piece in found:
        assert run.piece_at(place, tile) == piece
        place = run.after(place, piece.stop - piece.start)

chance, kinds = random.Random(0), {"even": 0, "whole": 0, "parts": 0, "different whole": 0, "different parts": 0, "meeting": 0}
for _ in range(600):
    count, units, blocks = (chance.randint(1, chance.choice(most)) for most in ((3, 70), (1, 1, 9), (8, 132)))
    tile, longest = chance.choice((16, 64)), chance.choice((1, 100, 300, 500, 9000))
    lengths = [chance.choice((0, 1, longest, chance.randint(0, longest))) for _ in range(count)]
    if chance.random() < 0.5:
        lengths = [longest] * count
    elif chance.random() < 0.5:  # few short ones, none of them empty
        units, blocks = 1, chance.randint(8, 132)
        lengths = [chance.randint(1, 300) for _ in range(chance.randint(2, 8))]
        count = len(lengths)
    start = chance.choice((0, 2))
    sequences = _schedule.Sequences(lengths, 10000, tile, units, start)
    schedule = sequences.schedule(blocks, chance.choice((0, 12, 48)), chance.choice((0, 1, 2)), chance.choice(MERGING), chance.random() < 0.5)
    runs = [_merge.Run(sequences, schedule, i, *sequences.run(schedule, i), 0, 1, 1, 1) for i in range(blocks)]
    assert schedule.first(blocks) == schedule.total and runs[0].first == 0
    taken, parts, whole = {}, {}, True
    for run in runs:
        found = pieces_of(run)
        if found and (start == 0 or schedule.room > 0):
            same_without_looking(run, found)
        for tile_at, piece in found:
            for index in range(piece.start, piece.stop):
                key = piece.sequence, piece.unit, index
                assert key not in taken, (key, lengths, schedule)
                taken[key] = run.index
            parts.setdefault((piece.sequence, piece.unit), []).append((run, tile_at, piece))
            whole = whole and piece.whole
    assert len(taken) == units * sum(-(-length // tile) for length in lengths), (lengths, units, blocks, schedule)
    assert schedule.merged or whole and min(lengths) > 0
    for own in parts.values():
        for run, tile_at, piece in own:
            cut = run.cut(piece, 1)
            assert (cut.earliest, cut.latest) == (own[0][0].index, own[-1][0].index), (cut, lengths, schedule)
            assert cut.parts() == len(own) and piece.whole == (len(own) == 1)
            if schedule.meeting and max(lengths) <= (schedule.base - start) * tile:
                assert cut.parts() == 1 or cut.meets(), (cut, lengths, schedule)
                kinds["meeting"] += cut.parts() == 2
            assert cut.slot(run.index) == 2 * run.index + (0 if tile_at == run.first else 1)
    if schedule.room > 0 and len({-(-length // tile) for length in lengths}) > 1:
        assert len(lengths) * units <= blocks
        kinds["different parts" if schedule.merged else "different whole"] += 1
    kinds["even" if schedule.room == 0 else "parts" if schedule.merged else "whole"] += 1
    schedule = sequences.whole_units()
    for index in chance.sample(range(count * units), min(count * units, 5)):
        sequence, unit = divmod(index, units)
        run = _merge.Run(sequences, schedule, index, schedule.first(index), schedule.first(index + 1), 0, 1, 1, 1)
        tiles = -(-lengths[sequence] // tile)
        piece = run.piece(run.first)
        assert piece[:5] == (sequence, unit, lengths[sequence], 0, tiles) and piece.whole and piece.next == run.end
        if tiles > 0:
            assert run.tiles(run.place(run.first)) == tiles and run.cut(piece, 1).parts() == 1
assert min(kinds.values()) > 15, kinds
"""


QUOTIENTS = """
import struct

class Single(float):
    def __new__(cls, value):
        return super().__new__(cls, struct.unpack("f", struct.pack("f", value))[0])
    def __add__(self, other):
        return Single(float(self) + other)
    def __mul__(self, other):
        return Single(float(self) * other)

def rounded(value, error):
    bits, = struct.unpack("i", struct.pack("f", 1 / value))
    return Single(struct.unpack("f", struct.pack("i", bits + error))[0])

_schedule.Float32 = Single
chance = random.Random(0)
for error in (-1, 0, 1):  # of an approximate reciprocal, in units of its last place
    _schedule.cute.arch.rcp_approx = lambda value: rounded(value, error)
    for divisor in [*range(1, 300), *(chance.randint(300, _schedule.FEW - 1) for _ in range(300))]:
        multiples = [divisor * chance.randint(1, (_schedule.FEW - 1) // divisor) for _ in range(20)]
        for number in [0, divisor - 1, divisor, _schedule.FEW - 1, *multiples, *(number - 1 for number in multiples)]:
            assert _schedule.divide_few(number, divisor) == number // divisor, (number, divisor)
"""


SPARING = """
def parts(tiles, units, blocks):
    sequences = _schedule.Sequences([tiles * 64] * units, 10**6, 64, 1, 2)
    schedule = sequences.schedule(blocks, 16, 2, _schedule.NO_TILES, True)
    return -(-schedule.room // schedule.base)

assert parts(16, 4, 66) == 8  # instead of 16 parts of a tile, which would need nearly all blocks
assert parts(9, 1, 66) == 9  # there are blocks enough
assert parts(17, 12, 132) == 6
assert parts(64, 32, 66) == 2
"""


GRIDS = """
def grid(batch, heads, capacity, lanes=1, most=132):
    kernel = types.SimpleNamespace(
        lanes=lambda group: lanes, blocks=lambda call, most: most, row_tiles=lambda group: 1, tile=128, alone=_schedule.Tiles(2, 8, 8))
    call = types.SimpleNamespace(lengths=[0] * batch, heads=heads, group=1, capacity=capacity)
    return _merge.Merging.grid(kernel, call, most)

assert grid(1, 8, 3 * 128) == (8, True)
assert grid(1, 8, 3 * 128 + 1) == (132, False)  # few units: to merge their parts takes not long
assert grid(8, 8, 7 * 128) == (64, True)
assert grid(100, 8, 8 * 128, lanes=2) == (1600, True)  # more than the workspace has room for, which is not used
assert grid(100, 8, 9 * 128) == (132, False)  # lengths may be so different that blocks wait for a long one
assert grid(1, 1, 0) == (1, True)
"""


RAGGED = """
from kernels.attention.prompts import _attention
_attention.WARP = 1

chance = random.Random(0)
for _ in range(300):
    rows, heads, count = chance.choice((64, 128, 192)), chance.randint(1, 6), chance.randint(1, 40)
    lengths = [chance.choice((0, 1, rows, chance.randint(0, 700))) for _ in range(count)]
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + length)
    most = chance.choice((None, 1, 300, 3000))
    order = _attention.RaggedOrder(starts, _attention.SideBySide(starts), rows, heads, most)
    taken = [order.tile_at(index) for index in range(order.count())]
    expected = [
        (i, head, sequence, lengths[sequence], lengths[sequence], starts[sequence], starts[sequence])
        for sequence in range(count) for head in range(heads) for i in range(-(-lengths[sequence] // rows))
    ]
    assert sorted(taken) == sorted(expected), (lengths, rows, heads, most)
    assert [tile.sequence for tile in taken] == sorted(tile.sequence for tile in taken)
    for one, other in zip(taken, taken[1:]):
        if (one.sequence, one.head) == (other.sequence, other.head):
            assert one.index > other.index, "the longest tiles come first"
"""


def test_sequences_side_by_side_have_every_tile_once_and_the_longest_first() -> None:
    run_as_python(SETUP + RAGGED)


def test_whole_units_are_launched_if_sequences_have_room_for_few_tokens() -> None:
    run_as_python(SETUP + GRIDS)


def test_quotients_of_floats_are_exact() -> None:
    run_as_python(SETUP + QUOTIENTS)


def test_short_parts_leave_blocks_to_those_that_merge() -> None:
    run_as_python(SETUP + SPARING)


def test_runs_take_every_tile_once_and_agree_on_who_has_parts_of_a_unit() -> None:
    run_as_python(SETUP + PLANS)
