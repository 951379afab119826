"""Numbers of f8e4m3 that kernels and their contracts share. Imports nothing, so that kernels depend on no library of a contract."""

LARGEST = 448.0  # of f8e4m3
SMALLEST = 2.0**-100  # lower bound for the largest value of a block, so that its inverse is finite
BLOCK = 128  # elements along k, and rows of weights, that share a scale
