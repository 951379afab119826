"""Products that fused products of training are checked with, beside some that reach all of their tilings."""

# m, n, k. Most extents are not multiples of a tile.
SMALL = (
    (0, 8, 8),
    (1, 8, 8),
    (40, 16, 264),
    (3, 40, 24),
    (17, 136, 72),
    (64, 64, 64),
    (65, 8, 136),
    (128, 128, 8),
    (129, 264, 72),
    (333, 648, 808),
)
