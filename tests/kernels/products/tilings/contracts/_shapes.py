"""Products for every tiling: few rows and many, none of them a multiple of a tile, and a long k."""

SHAPES = ((1, 8, 16), (9, 136, 1040), (16, 72, 528), (100, 200, 272), (300, 520, 1040), (1000, 1288, 2064))
