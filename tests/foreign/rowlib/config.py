"""How many threads a row gets. A module that does not import CuTe DSL and shapes the code all the same."""

MOST = 128


def threads_for(n: int) -> int:
    return min(MOST, 32 * ((n + 31) // 32))
